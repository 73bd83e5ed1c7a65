"""What `agentkv bench states` finds: a row for every policy and part of the stream."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class LayerStates:
    """Where the tokens seen stand in one layer: shares that sum to 1, mean over heads and steps."""

    layer: int
    original: float
    """In the model's dtype."""
    quantised: float
    evicted: float
    deserved: float | None
    """The share of its rows that rank lets stay original; None where rank decides nothing."""


@dataclass(frozen=True, slots=True)
class Lives:
    """How long quantised rows lived, in tokens read since; a row of each head counts by itself."""

    gone: int
    """Quantised rows that were evicted later."""
    median_age: float | None
    """Of those, when they went."""
    shortest_age: int | None
    alive: int
    """Quantised rows at the end."""
    longest_alive: int | None
    """Age of the oldest of them."""


@dataclass(frozen=True, slots=True)
class Distance:
    """How far next-token distributions are from a full cache's: means over so many steps."""

    num_steps: int
    divergence: float
    """KL(full || this), in nats."""
    worst_divergence: float
    logit_distance: float
    """Mean over the vocabulary of |logit - full's logit|."""
    agreement: float
    """Share of steps with the same likeliest token as full's."""
    nll: float
    """Negative log-likelihood of the stream's next token, in nats."""
    full_nll: float
    """The same of the full cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRow:
    """One policy along one part of one stream; means are over its steps, of one token each."""

    label: str
    policy_parameters: Mapping[str, Any]
    """All of them, with the budget."""
    model: str
    source: str
    """Where the stream is from."""
    stream_sha256: str
    num_prompt: int
    """Tokens read at once before the first step."""
    first: int
    """Tokens read before the first step of this part."""
    num_steps: int
    is_whole: bool
    """Whether this is the row of all parts together."""

    original: float
    """Share of the tokens seen, mean over layers too; with the next two it sums to 1."""
    quantised: float
    evicted: float
    layers: tuple[LayerStates, ...]
    """Those that the policy acts on."""
    distance: Distance
    """From the full cache, over all steps."""
    reply_distance: Distance | None
    """Over the steps whose next token is one that a model is to write; None without such."""
    evictions: int
    """Steps in which rows went."""
    mean_bytes: int
    """Held after each step."""
    end_bytes: int
    peak_bytes: int
    """At any moment of the whole stream so far, the prompt's reading included."""
    lives: Lives | None = None
    """Of the whole stream; None in rows of parts."""
    seconds: float | None = None
    """This policy's own time, the comparing included; None in rows of parts."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    device: str = ""
    commit: str = ""
    finished_at: str = ""
    """UTC, ISO 8601."""
    schema: int = SCHEMA

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)
