"""What `agentkv bench speed` finds: a row for every contender, batch and length."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

SCHEMA = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedRow:
    """One contender that decodes so many sequences after so many tokens; times are of a step, in
    which each sequence gets one token."""

    label: str
    kind: str
    """Whose cache it is: agentkv, transformers or kvpress."""
    parameters: Mapping[str, Any]
    """All of them, with the budget."""
    attention: str
    """What computed it in a step: of ours the kernels' implementation, of others sdpa or eager."""
    model: str
    scaled: str
    """What of a named shape was made smaller or larger; empty where nothing was."""
    weights: str
    """`own`, or `random` with a shape only."""
    batch: int
    seen: int
    """Tokens of each sequence that were read before."""
    num_tokens: int
    """Steps of a round, not counting those that warm up."""
    num_rounds: int

    p20_ms: float
    """Over the steps of all rounds."""
    p50_ms: float
    p80_ms: float
    tokens_per_second: float
    """Of all sequences together: median over rounds of a round's tokens by its steps' time."""
    ratio: float
    """Median over rounds of this one's median step by the baseline's in the same round."""
    ratio_least: float
    ratio_most: float
    whole_ratio: float
    """The same of the rounds' whole times, steps counted in which memory was laid out anew."""
    round_p50_ms: Sequence[float]
    split_ms: Mapping[str, float]
    """Mean of a step, median over rounds of their own; the cost of asking taken off. Empty if
    nobody asked."""
    split_parts_ms: Mapping[str, float]
    """The same in smaller parts."""
    keeping_share: float | None
    """Of these the part for the cache beside attention: bookkeeping and compaction."""
    prefill_seconds: float
    """Reading what was seen, once."""

    live_bytes: int
    """Of the cache's storage before the first step."""
    peak_bytes: int | None
    """At any moment from the first token on; None where the cache does not say."""
    allocator_bytes: int | None
    """Most that CUDA's allocator gave out in a round beyond what it had before the state was
    there; None without CUDA."""
    kept_rows: float
    """Rows held before the first step, mean over layers, sequences and heads."""
    checked: Mapping[str, float]
    """The distances found before anything was timed, as shares; see `verify`."""
    load_average: Sequence[float]
    """The machine's, over a minute, before and after the rounds; empty where it does not say."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    device: str = ""
    threads: int = 1
    commit: str = ""
    command: str = ""
    finished_at: str = ""
    """UTC, ISO 8601."""
    schema: int = SCHEMA

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)


SHORT = (
    "label", "attention", "batch", "seen", "p20_ms", "p50_ms", "p80_ms", "tokens_per_second",
    "ratio", "ratio_least", "ratio_most", "whole_ratio", "split_ms", "keeping_share", "live_bytes",
    "peak_bytes", "kept_rows",
)  # fmt: skip
"""What a row says in the line that ends the output."""


def summary(rows: Sequence[SpeedRow], out: str) -> str:
    """All rows in short, as one line of JSON."""
    short = [{name: _rounded(getattr(row, name)) for name in SHORT} for row in rows]
    return json.dumps({"bench": "speed", "out": out, "rows": short}, ensure_ascii=False)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, Mapping):
        return {name: _rounded(each) for name, each in value.items()}
    return value
