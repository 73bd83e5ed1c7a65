"""Rows of `agentkv bench ruler`: one for every policy, task, mode and length."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from agentkv_tasks.bench.rows import BenchRow

Place = tuple[int, str, str, str]
"""Length, task, mode and label of a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RulerRow(BenchRow):
    """One policy on the cases of one task, mode and length."""

    BENCH: ClassVar[str] = "ruler"
    SUMMARY: ClassVar[tuple[str, ...]] = (
        "label", "length", "task", "mode", "score", "mean_bytes", "all_bytes", "look_share",
    )  # fmt: skip

    label: str
    parameters: Mapping[str, Any]
    """All parameters of the policy, and its budget."""
    model: str
    weights: str
    """Digest of the weights; see `weights_digest`."""
    task: str
    mode: str
    """How the questions were asked: `one`, `requests` or `turns`."""
    length: int
    """Most tokens of the context, all questions and all replies."""
    seed: int
    num_samples: int
    """Contexts."""
    source: str
    """Name of the text around needles; empty where none was given."""
    prompts_sha256: str
    """Digest of all contexts and questions; rows with equal digests may be paired."""
    score: float
    """Share of the expected texts that replies contain, mean over questions."""
    scores: Sequence[Sequence[float]]
    """Share of each question of each context."""
    expected: Sequence[Sequence[Sequence[str]]]
    """Texts that a right reply contains, for each question of each context."""
    replies: Sequence[Sequence[str]]
    context_tokens: float
    """Tokens of a context with what stands before it, mean."""
    mean_bytes: float
    """Storage of the cache, mean over the tokens of the replies."""
    peak_bytes: int
    """Peak storage at any moment."""
    cold_bytes: float
    """Cold tier, mean over the tokens of the replies."""
    cold_peak_bytes: int
    """Cold tier with its digests, maximum over the tokens of the replies."""
    index_bytes: float
    """Digests, mean over the tokens of the replies."""
    all_bytes: float
    """Storage, cold tier and digests, mean over the tokens of the replies."""
    all_peak_bytes: int
    """Storage, cold tier and digests, maximum over the tokens of the replies."""
    look_share: float
    """Share of the tokens of questions and replies that looked back."""
    reply_tokens: float
    """Tokens of a reply, mean."""
    read_seconds: float
    """Time of reading a context, mean."""
    reply_seconds: float
    """Time of all questions and replies of a context, mean."""
    threads: int = 1
    command: str = ""
    schema: int = 1

    @property
    def place(self) -> Place:
        """The key of the row."""
        return self.length, self.task, self.mode, self.label
