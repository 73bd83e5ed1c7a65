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


_PROCESS_CAPTION = (
    "load: peak resident memory while the model is loaded, beyond what the process held before; x: "
    "relative to its file of {file}. end: resident memory of the process after the last token. x: "
    "its peak relative to {other}."
)


def process_table(rows: Sequence[MemoryRow]) -> Table | None:
    """Return what loading took and what the process held at the end, or None for rows that have no
    size of a file; peaks stand beside llama.cpp's with the smallest one at that length."""
    known = [row for row in rows if row.file_bytes and row.load_bytes is not None]
    if not known:
        return None
    theirs: dict[int, MemoryRow] = {}
    for row in known:
        if row.kind == "llama.cpp":
            least = theirs.get(row.seen, row)
            theirs[row.seen] = min(least, row, key=lambda each: each.resident_bytes)
    other = "the smallest of llama.cpp" if theirs else "llama.cpp, which was not measured"
    size = next(row.file_bytes for row in known if row.file_bytes)
    caption = _PROCESS_CAPTION.format(file=human_bytes(size), other=other)
    found = bench_table(caption, "load", "x", "peak", "x", "end", length="seen", label="cache")
    for row in with_gaps(found, known, key=lambda row: row.seen):
        assert row.file_bytes and row.load_bytes is not None
        base = theirs.get(row.seen)
        found.add_row(
            str(row.seen),
            Text(row.label),
            human_bytes(row.load_bytes),
            f"{row.load_bytes / row.file_bytes:.2f}",
            human_bytes(row.resident_bytes),
            f"{row.resident_bytes / base.resident_bytes:.2f}" if base else "-",
            "-" if row.end_bytes is None else human_bytes(row.end_bytes),
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
