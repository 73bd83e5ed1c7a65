"""Rows of `agentkv bench memory`: one for every cache and length."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from agentkv_tasks.bench.rows import BenchRow


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow(BenchRow):
    """One episode under one cache, in its own process."""

    BENCH: ClassVar[str] = "memory"
    SUMMARY: ClassVar[tuple[str, ...]] = (
        "label", "seen", "loaded_bytes", "peak_bytes", "growth_bytes", "ratio", "growth_ratio",
        "live_bytes", "cold_bytes", "cache_peak_bytes", "kept_rows",
    )  # fmt: skip

    label: str
    kind: str
    """Library of the cache: agentkv, transformers, kvpress or llama.cpp."""
    parameters: Mapping[str, Any]
    """All parameters, and the budget."""
    model: str
    scaled: str
    """Changes to the size of a named shape; empty for none."""
    weights: str
    """`own`, or `random` for a shape."""
    seen: int
    """Tokens of the prompt, read in chunks."""
    num_decoded: int
    """Tokens decoded after the prompt, greedily."""

    measured: str
    """`process`: resident memory; `device`: memory of the CUDA allocator."""
    loaded_bytes: int
    """Memory before the episode: the model, after it has read one token. A process of llama.cpp
    holds the model of its file, and no torch."""
    peak_bytes: int
    """Peak memory during the episode."""
    growth_bytes: int
    """Difference of the two: the cache and all temporary memory."""
    ratio: float
    """Peak relative to the same cache's peak at the shortest length."""
    growth_ratio: float
    """Growth relative to the same cache's growth at the shortest length."""
    live_bytes: int
    """Storage of the cache at the end, without its cold tier."""
    cache_peak_bytes: int | None
    """Peak storage of the cache; None if the cache does not report it."""
    resident_bytes: int
    """Peak resident memory of the process, also if the device is measured."""
    kept_rows: float
    """Entries at the end, mean over layers and heads."""
    checked: Mapping[str, float]
    """Distances found by the checks before the measurement, as shares; see `verify`."""
    cold_bytes: int | None = None
    """Cold tier and its index at the end; None in rows of versions that did not count it."""
    end_bytes: int | None = None
    """Resident memory of the process after the last token; None where the system does not tell, and
    in rows of versions that did not read it."""
    load_bytes: int | None = None
    """Peak resident memory while the model is loaded, beyond what the process held before. For
    agentkv this is the model alone: libraries that it imports first are not counted."""
    file_bytes: int | None = None
    """Size of the GGUF file; None for other models."""
    form: str = ""
    """Formats of the weights, or their dtype; empty in rows of versions that knew floating point
    alone."""
    threads: int = 1
    command: str = ""
    schema: int = 2
