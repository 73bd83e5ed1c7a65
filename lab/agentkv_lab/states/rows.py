"""Rows of `agentkv_lab states`: one for every policy and part of the stream."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from agentkv_tasks.bench.rows import BenchRow


@dataclass(frozen=True, slots=True)
class LayerStates:
    """States of the tokens seen in one layer: shares that sum to 1, mean over heads and steps."""

    layer: int
    original: float
    """Share of dense entries."""
    quantised: float
    evicted: float
    deserved: float | None
    """Share of the entries that rank lets stay dense; None for other policies."""


@dataclass(frozen=True, slots=True)
class Lives:
    """Lifetime of quantized entries in tokens read since; each head's entry counts by itself."""

    gone: int
    """Quantized entries that were evicted later."""
    median_age: float | None
    """Median age of the evicted ones."""
    shortest_age: int | None
    alive: int
    """Quantized entries at the end."""
    longest_alive: int | None
    """Age of the oldest one at the end."""


@dataclass(frozen=True, slots=True)
class Distance:
    """Distance of next-token distributions from those of a full cache: means over steps."""

    num_steps: int
    divergence: float
    """KL(full || policy) in nats."""
    worst_divergence: float
    logit_distance: float
    """Mean over the vocabulary of |logit - full's logit|."""
    agreement: float
    """Share of steps with the most probable token of the full cache."""
    nll: float
    """Negative log-likelihood of the stream's next token, in nats."""
    full_nll: float
    """The same of the full cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRow(BenchRow):
    """One policy along one part of a stream; means are over its steps of one token."""

    BENCH: ClassVar[str] = "states"
    PROGRAM: ClassVar[str] = "python -m agentkv_lab"
    SUMMARY: ClassVar[tuple[str, ...]] = (
        "label", "original", "quantised", "evicted", "mean_bytes", "peak_bytes", "seconds",
    )  # fmt: skip

    label: str
    policy_parameters: Mapping[str, Any]
    """All parameters, and the budget."""
    model: str
    source: str
    """Origin of the stream."""
    stream_sha256: str
    num_prompt: int
    """Tokens read at once before the first step."""
    first: int
    """Tokens read before the first step of this part."""
    num_steps: int
    is_whole: bool
    """True for the row of all parts together."""

    original: float
    """Share of dense entries among the tokens seen, also mean over layers. It sums to 1 with the
    next two."""
    quantised: float
    evicted: float
    layers: tuple[LayerStates, ...]
    """The layers that the policy acts on."""
    distance: Distance
    """Distance from the full cache over all steps."""
    reply_distance: Distance | None
    """Distance over the steps whose next token belongs to a reply; None without replies."""
    evictions: int
    """Steps with an eviction."""
    entries: Sequence[float]
    """Entries after each step, mean over layers and heads."""
    mean_bytes: int
    """Storage after each step, mean."""
    end_bytes: int
    peak_bytes: int
    """Peak storage since the beginning of the stream, the prompt included."""
    cold_bytes: int | None = None
    """Cold tier and its index at the end; None in rows of versions that did not count it."""
    lives: Lives | None = None
    """Lifetimes over the whole stream; None in rows of parts."""
    seconds: float | None = None
    """Time of this policy with its comparison; None in rows of parts."""
    command: str = ""
    schema: int = 2
