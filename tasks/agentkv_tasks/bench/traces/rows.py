"""Rows of `agentkv bench traces`: one for every contender and conversation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from agentkv_tasks.bench.rows import BenchRow


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow(BenchRow):
    """All requests of one conversation, as one contender answered them. Lists have a figure for
    each request."""

    BENCH: ClassVar[str] = "traces"
    SUMMARY: ClassVar[tuple[str, ...]] = ("label", "edits", "session", "sum_prompt", "sum_read")

    label: str
    """Policy of agentkv's server, or llama.cpp's server."""
    edits: str
    """What became of edited messages, see the server's `--edits`; empty for llama.cpp."""
    session: str
    kind: str
    """What the host did with earlier messages."""
    group: int
    """Number of the sessions' group; each begins with servers that know nothing."""
    parameters: Mapping[str, Any]
    """All parameters of the policy, and the budget; of llama.cpp, those of the server."""
    model: str
    source: str
    """Origin of the trace."""
    num_prompt: Sequence[int]
    """Tokens of each prompt."""
    num_read: Sequence[int]
    """Tokens of it that were read; the others were matched."""
    num_prefix_read: Sequence[int]
    """Tokens that a server would read that keeps every prompt with its reply, and goes on from the
    longest one that a prompt begins with."""
    how: Sequence[str]
    """How a request found its session, see `usage.agentkv.reuse`; of llama.cpp, `new` where nothing
    was matched, else `prefix`."""
    first_token_s: Sequence[float]
    """Seconds from a request to the first token of its reply."""
    sum_prompt: int
    sum_read: int
    sum_prefix_read: int
    memory_bytes: int
    """The most bytes of all entries that the server may have in memory."""
    reserved_bytes: int
    """Bytes of them that it takes at its start."""
    cache_peak_bytes: int | None
    """The most bytes of all sessions up to the end of the group; None: the server does not say."""
    process_peak_bytes: int | None
    """The most resident bytes of the server's process up to then; None for agentkv, which runs in
    the process that measures."""
    num_spills: int
    """Times that a session of the group went to disk."""
    threads: int
    command: str = ""
    schema: int = 2
