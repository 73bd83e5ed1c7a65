"""Numbers of the engine for the metrics."""

from collections import Counter, deque
from dataclasses import dataclass, field

from agentkv.serve.job import ReplyEnd
from agentkv.serve.reuse import How


@dataclass(slots=True)
class Counters:
    """Numbers for the metrics; sums are since the start."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    written_tokens: int = 0
    read_s: float = 0.0
    write_s: float = 0.0
    spills: int = 0
    loads: int = 0
    sessions: int = 0
    sessions_in_memory: int = 0
    session_bytes: int = 0
    forgotten_tokens: int = 0
    reuses: Counter[How] = field(default_factory=Counter)
    peak_bytes: int = 0
    _first_token_s: deque[float] = field(default_factory=lambda: deque(maxlen=100_000))

    def count(self, end: ReplyEnd) -> None:
        """Count the tokens of a reply that has ended."""
        self.prompt_tokens += end.num_prompt
        self.cached_tokens += end.num_cached
        self.written_tokens += end.num_written
        self.forgotten_tokens += end.reuse.num_forgotten
        self.reuses[end.reuse.how] += 1
        self.read_s += end.read_s
        self.write_s += end.write_s

    def note_first_token(self, seconds: float) -> None:
        """Note the seconds from a request to the first token of its reply."""
        self._first_token_s.append(seconds)

    def take_first_token_s(self) -> list[float]:
        """Return the seconds that were noted since the last call."""
        return [self._first_token_s.popleft() for _ in range(len(self._first_token_s))]
