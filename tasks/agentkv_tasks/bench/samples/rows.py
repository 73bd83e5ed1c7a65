"""The part of a row that all benchmarks of samples share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentkv_tasks.bench.rows import BenchRow


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRow(BenchRow):
    """One policy on the continuations of all samples of one length."""

    label: str
    parameters: Mapping[str, Any]
    """All parameters of the policy, and its budget."""
    model: str
    weights: str
    """Digest of the weights; see `weights_digest`."""
    source: str
    """Origin of the tokens: `world 75`, or the name of a file."""
    stream_sha256: str
    """Digest of the stream; rows with equal digests may be paired."""
    seen: int
    """Tokens that each sample reads before its continuation."""
    num_tokens: int
    """Most tokens of a continuation."""
    of_replies: bool
    """True if the continuations are replies."""
    stream_tokens: int
    """Tokens of the stream that the samples lie in."""
    entries: int
    """Entries of the window whose bytes all policies with a budget share."""
    budget_bytes: int
    sample_tokens: Sequence[int]
    """Tokens of each continuation."""
    mean_bytes: float
    """Storage of the cache, mean over the tokens of the continuations."""
    seconds: float
    threads: int = 1
    command: str = ""

    @property
    def place(self) -> tuple[int, str]:
        """The key of the row."""
        return self.seen, self.label
