"""Rows of `agentkv bench ppl`: one for every policy and length."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from agentkv_tasks.bench.row_file import RowFile
from agentkv_tasks.bench.rows import BenchRow


@dataclass(frozen=True, slots=True, kw_only=True)
class PerplexityRow(BenchRow):
    """One policy on the continuations of all samples of one length."""

    BENCH: ClassVar[str] = "ppl"
    SUMMARY: ClassVar[tuple[str, ...]] = (
        "label", "seen", "nll", "mean_bytes", "look_share", "seconds",
    )  # fmt: skip

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

    sample_nll: Sequence[float]
    """Mean negative log-likelihood of each continuation, in nats per token."""
    sample_tokens: Sequence[int]
    """Tokens of each continuation."""
    nll: float
    """Mean over the tokens of all continuations."""
    mean_bytes: float
    """Storage of the cache, mean over the tokens of the continuations."""
    peak_bytes: int
    """Peak storage over all samples."""
    index_bytes: float
    """Digests at the end of a sample, mean."""
    cold_bytes: float
    """Cold tier at the end of a sample, mean."""
    look_share: float
    """Share of the continuations' tokens that looked back."""
    look_bytes: float
    """Bytes that looks read, per token of the continuations."""
    seconds: float
    threads: int = 1
    command: str = ""
    schema: int = 1


def perplexity_file(path: Path, *, fresh: bool) -> RowFile[PerplexityRow]:
    """Open the file of a perplexity benchmark. Raises BenchError and OutputPathError."""
    return RowFile(path, PerplexityRow, place_of, fresh=fresh)


def place_of(row: PerplexityRow) -> tuple[int, str]:
    """Return the key of a row."""
    return row.seen, row.label
