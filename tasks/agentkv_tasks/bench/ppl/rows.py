"""Rows of `agentkv bench ppl`: one for every policy and length."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from agentkv_tasks.bench.samples.rows import SampleRow


@dataclass(frozen=True, slots=True, kw_only=True)
class PerplexityRow(SampleRow):
    """One policy on the continuations of all samples of one length."""

    BENCH: ClassVar[str] = "ppl"
    SUMMARY: ClassVar[tuple[str, ...]] = (
        "label", "seen", "nll", "mean_bytes", "look_share", "seconds",
    )  # fmt: skip

    sample_nll: Sequence[float]
    """Mean negative log-likelihood of each continuation, in nats per token."""
    nll: float
    """Mean over the tokens of all continuations."""
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
    schema: int = 1
