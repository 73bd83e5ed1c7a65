"""Rows of `agentkv bench calls`: one for every policy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from agentkv_tasks.bench.rows import BenchRow


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsRow(BenchRow):
    """One policy on all conversations."""

    BENCH: ClassVar[str] = "calls"
    SUMMARY: ClassVar[tuple[str, ...]] = (
        "label", "hit_share", "exact_share", "nll", "mean_bytes", "all_bytes", "look_share",
    )  # fmt: skip

    label: str
    parameters: Mapping[str, Any]
    """All parameters of the policy, and its budget."""
    model: str
    weights: str
    """Digest of the weights; see `weights_digest`."""
    source: str
    """Name of the wheel or folder."""
    names: Sequence[str]
    """Conversations, which the lists below follow."""
    prompts_sha256: str
    """Digest of all conversations; rows with equal digests may be paired."""
    num_tokens: Sequence[int]
    """Tokens of each conversation."""
    num_answer_tokens: Sequence[int]
    """Tokens of its answers."""
    hits: Sequence[int]
    """Tokens of its answers that were the likeliest ones."""
    num_answers: Sequence[int]
    exact: Sequence[int]
    """Answers of which every token was the likeliest one."""
    sum_nll: Sequence[float]
    """Negative log-likelihood of its answers, in nats."""
    hit_share: float
    """Share of all tokens of answers that were the likeliest ones."""
    exact_share: float
    """Share of all answers of which every token was."""
    nll: float
    """Nats per token of an answer."""
    mean_bytes: float
    """Storage of the cache, mean over the tokens of the answers."""
    peak_bytes: int
    """Peak storage at any moment."""
    cold_bytes: float
    """Cold tier with its digests, mean over the tokens of the answers."""
    all_bytes: float
    """Storage, cold tier and digests, mean over the tokens of the answers."""
    look_share: float
    """Share of the tokens of requests and answers that looked back."""
    seconds: float
    """Time of all conversations."""
    threads: int = 1
    command: str = ""
    schema: int = 1
