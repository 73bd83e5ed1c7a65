"""What `agentkv bench memory` finds: a row for every cache and length."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

SCHEMA = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """One episode under one cache, in a process of its own that did nothing else."""

    label: str
    kind: str
    """Whose cache it is: agentkv, transformers or kvpress."""
    parameters: Mapping[str, Any]
    """All of them, with the budget."""
    model: str
    scaled: str
    """What of a named shape was made smaller or larger; empty where nothing was."""
    weights: str
    """`own`, or `random` with a shape only."""
    seen: int
    """Tokens of the prompt, read in chunks."""
    num_decoded: int
    """Tokens decoded after it, the likeliest each time."""

    measured: str
    """`process`: what it had resident; `device`: what CUDA's allocator gave out on the device."""
    loaded_bytes: int
    """Of that, before the episode: the model, after it has read one token without a cache."""
    peak_bytes: int
    """The most during the episode."""
    growth_bytes: int
    """The difference: the cache, and all that reading takes besides."""
    ratio: float
    """Peak by the same cache's peak at the shortest length."""
    growth_ratio: float
    """The same of growth."""
    live_bytes: int
    """Of the cache's storage at the end."""
    cache_peak_bytes: int | None
    """Of the cache's storage at any moment; None where the cache does not say."""
    resident_bytes: int
    """The most that the process had resident, also where the device is measured."""
    kept_rows: float
    """Rows held at the end, mean over layers and heads."""
    checked: Mapping[str, float]
    """The distances found before anything was measured, as shares; see `speed.verify`."""
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
    "label", "seen", "loaded_bytes", "peak_bytes", "growth_bytes", "ratio", "growth_ratio",
    "live_bytes", "cache_peak_bytes", "kept_rows",
)  # fmt: skip
"""What a row says in the line that ends the output."""


def summary(rows: Sequence[MemoryRow], out: str) -> str:
    """All rows in short, as one line of JSON."""
    short = [{name: getattr(row, name) for name in SHORT} for row in rows]
    return json.dumps({"bench": "memory", "out": out, "rows": short}, ensure_ascii=False)
