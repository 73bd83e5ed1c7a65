"""Rows of `agentkv bench speed`: one for every contender, batch and length."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from agentkv_tasks.bench.row_file import RowFile
from agentkv_tasks.bench.rows import BenchRow


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedRow(BenchRow):
    """Decoding with one contender. A step decodes one token of every sequence."""

    BENCH: ClassVar[str] = "speed"
    SUMMARY: ClassVar[tuple[str, ...]] = (
        "label", "attention", "decoding", "batch", "seen", "p20_ms", "p50_ms", "p80_ms", "p99_ms",
        "tokens_per_second", "ratio", "ratio_least", "ratio_most", "whole_ratio", "page_ms",
        "page_ratio", "split_ms", "keeping_share", "look_share", "live_bytes", "cold_bytes",
        "peak_bytes", "kept_rows",
    )  # fmt: skip

    label: str
    kind: str
    """Library of the cache: agentkv, transformers, kvpress or llama.cpp."""
    parameters: Mapping[str, Any]
    """All parameters, and the budget."""
    attention: str
    """Attention of a step layer by layer: the kernels' implementation for agentkv, ggml for
    llama.cpp, sdpa or eager for others."""
    decoding: str
    """`compiled: one call per token`, or the library that runs the model, with the reason for
    agentkv."""
    model: str
    scaled: str
    """Changes to the size of a named shape; empty for none."""
    weights: str
    """`own`, or `random` for a shape."""
    batch: int
    seen: int
    """Tokens of each sequence that were read before."""
    num_tokens: int
    """Steps of a round, without the warm-up."""
    num_rounds: int
    num_page: int
    """Tokens of the page that every round reads; 0 for none."""

    p20_ms: float
    """Percentiles of the latency of a step, over the steps of all rounds."""
    p50_ms: float
    p80_ms: float
    p99_ms: float
    tokens_per_second: float
    """Tokens of all sequences per second: median over rounds."""
    ratio: float
    """Median latency relative to the baseline's in the same round: median over rounds."""
    ratio_least: float
    ratio_most: float
    whole_ratio: float
    """Time of a whole round relative to the baseline's, which includes steps that lay out memory
    anew: median over rounds."""
    round_p50_ms: Sequence[float]
    page_ms: float | None
    """Time of reading a page after the tokens seen: median over rounds. None without pages, and for
    kvpress, which reads them one by one."""
    page_ratio: float | None
    """The same relative to the baseline's in the same round: median over rounds."""
    split_ms: Mapping[str, float]
    """Mean time of a step by part, median over separate rounds; the measured cost of
    instrumentation is subtracted. Empty without such rounds, and for llama.cpp. Compiled steps have
    other parts than those layer by layer; see `split`."""
    split_parts_ms: Mapping[str, float]
    """The same in smaller parts."""
    keeping_share: float | None
    """Share of a step for the cache outside of attention: bookkeeping and compaction; None where a
    compiled step has both in one call with the model."""
    prefill_seconds: float
    """Time of reading the tokens seen, once."""

    look_share: float | None
    """Share of the timed tokens that looked back; None for caches that do not. The tokens are
    random, and where a model is unsure of them, alarms are more frequent than in text."""
    live_bytes: int
    """Storage of the cache before the first step, without its cold tier."""
    cold_bytes: int
    """Storage of its cold tier at that time; 0 without one."""
    peak_bytes: int | None
    """Peak storage of the cache since the first token; None if the cache does not report it."""
    allocator_bytes: int | None
    """Peak of the CUDA allocator in a round beyond its level before the state; None without
    CUDA."""
    kept_rows: float
    """Entries before the first step, mean over layers, sequences and heads."""
    checked: Mapping[str, float]
    """Distances found by the checks before the measurement, as shares; see `verify`."""
    load_average: Sequence[float]
    """Load of the machine over a minute, before and after the rounds; empty if unknown."""
    form: str = ""
    """Formats of the weights, or their dtype; empty in rows of versions that knew floating point
    alone."""
    threads: int = 1
    command: str = ""
    schema: int = 5


def speed_file(path: Path, *, fresh: bool) -> RowFile[SpeedRow]:
    """Open the file of a speed benchmark. Raises BenchError and OutputPathError."""
    return RowFile(path, SpeedRow, lambda row: (row.batch, row.seen, row.label), fresh=fresh)
