"""The table of `agentkv bench memory`; it fits 80 columns."""

from collections.abc import Callable, Iterator, Sequence

from rich.table import Table
from rich.text import Text

from agentkv.terminal import human_bytes
from agentkv_tasks.bench.memory.rows import MemoryRow
from agentkv_tasks.bench.tables import (
    BYTES,
    bench_table,
    bytes_cells,
    model_text,
    threads_text,
    with_gaps,
)
from agentkv_tasks.report.plot import Figure, over_lengths

_CAPTION = (
    "{model}, {device}, {dtype}, {threads}. peak: {measured} while a process reads the tokens in "
    "chunks of {chunk} and decodes {decoded}; every line has its own process. growth: beyond the "
    "{loaded} of the loaded model{alone}. x: relative to the same cache at {shortest} tokens. "
    "{bytes}storage of the cache at the end; its cold tier; both. at most: storage at any moment "
    "(unknown for other libraries' caches)."
)

_ALONE = " (for llama.cpp without torch and transformers)"

_MEASURED = {
    "process": "resident memory",
    "device": "memory of the CUDA allocator",
}


def table(rows: Sequence[MemoryRow]) -> Table:
    """Return the memory of each cache at each length, and its growth."""
    first = rows[0]
    loaded = sorted(row.loaded_bytes for row in rows)
    caption = _CAPTION.format(
        model=model_text(first.model, first.weights, first.scaled),
        device=first.device,
        dtype=first.settings["dtype"],
        measured=_MEASURED[first.measured],
        threads=threads_text(first.threads),
        chunk=first.settings["chunk"],
        decoded=first.num_decoded,
        loaded=f"{human_bytes(loaded[0])} to {human_bytes(loaded[-1])}",
        alone=_ALONE * any(row.kind == "llama.cpp" for row in rows),
        bytes=BYTES,
        shortest=min(row.seen for row in rows),
    )
    columns = ("peak", "x", "growth", "x", "hot", "cold", "all", "at most", "tokens")
    found = bench_table(caption, *columns, length="seen", label="cache")
    for row in with_gaps(found, rows, key=lambda row: row.seen):
        found.add_row(
            str(row.seen),
            Text(row.label),
            human_bytes(row.peak_bytes),
            f"{row.ratio:.2f}",
            human_bytes(row.growth_bytes),
            f"{row.growth_ratio:.2f}",
            *bytes_cells(row.live_bytes, row.cold_bytes),
            bytes_cells(row.cache_peak_bytes, None)[0],
            f"{row.kept_rows:.0f}",
        )
    return found


def figures(rows: Sequence[MemoryRow]) -> Iterator[Figure]:
    """Yield the memory of processes and of caches over the tokens seen."""
    yield Figure(
        "Growth of the process beyond the loaded model, and storage of the cache at the end.",
        (
            over_lengths("growth", "MiB", _mebibytes(rows, lambda row: row.growth_bytes)),
            over_lengths("cache", "MiB", _mebibytes(rows, lambda row: row.live_bytes)),
        ),
    )


def _mebibytes(
    rows: Sequence[MemoryRow], measure: Callable[[MemoryRow], int]
) -> list[tuple[str, int, float]]:
    return [(row.label, row.seen, measure(row) / 2**20) for row in rows]
