"""The table of `agentkv bench serve`; it fits 80 columns."""

import statistics
from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from agentkv_tasks.bench.serve.rows import ServeRow
from agentkv_tasks.bench.tables import BYTES, bench_table, bytes_cells, threads_text, with_gaps
from agentkv_tasks.report.plot import Figure, over_lengths

_CAPTION = (
    "{model}, {device}, {threads}; {rounds} rounds, medians. first: milliseconds from the request "
    "to the first token. x: relative to re-read, which renders and reads the whole conversation in "
    "each turn (transformers, in the process); the others are asked over HTTP. read: tokens read "
    "in the turn. {bytes}the most bytes of the cache so far, a full one counted in 16 bits; its "
    "cold tier; both. growth: first at this turn relative to turn {early}, medians over five turns."
)

_AROUND = 2
"""Turns before and after one over which its growth is averaged."""


def table(rows: Sequence[ServeRow]) -> Table:
    """Return time and bytes at some turns."""
    first, last = rows[0], max(row.turn for row in rows)
    early = min(5, last)
    shown = sorted({1, early, *(turn for turn in (10, 20, 30) if turn < last), last})
    caption = _CAPTION.format(
        model=first.model,
        device=first.device,
        threads=threads_text(first.threads),
        rounds=first.settings["num_rounds"],
        early=early,
        bytes=BYTES,
    )
    columns = ("prompt", "read", "first", "x", "growth", "hot", "cold", "all", "x hot")
    found = bench_table(caption, *columns, length="turn", label="cache")
    chosen = [row for row in rows if row.turn in shown]
    for row in with_gaps(found, chosen, key=lambda row: row.turn):
        found.add_row(
            str(row.turn),
            Text(row.label),
            str(row.num_prompt),
            str(row.num_read),
            f"{1000 * row.first_token_s:.0f}",
            f"{row.first_token_ratio:.3f}",
            f"{_around(rows, row.label, row.turn) / _around(rows, row.label, early):.2f}",
            *bytes_cells(row.peak_bytes, row.cold_bytes),
            f"{row.bytes_ratio:.3f}",
        )
    return found


def _around(rows: Sequence[ServeRow], label: str, turn: int) -> float:
    """Return the median time to the first token in the turns around one, cut at the last turn."""
    last = max(row.turn for row in rows)
    center = min(max(turn, 1 + _AROUND), max(1, last - _AROUND))
    near = range(center - _AROUND, center + _AROUND + 1)
    return statistics.median(
        row.first_token_s for row in rows if row.label == label and row.turn in near
    )


def figures(rows: Sequence[ServeRow]) -> Iterator[Figure]:
    """Yield time to the first token and peak bytes over the tokens of the conversation."""
    yield Figure(
        "Time to the first token of a turn, and the most bytes of the cache so far.",
        (
            over_lengths(
                "first token",
                "ms",
                [(row.label, row.num_prompt, 1000 * row.first_token_s) for row in rows],
            ),
            over_lengths(
                "peak", "MiB", [(row.label, row.num_prompt, row.peak_bytes / 2**20) for row in rows]
            ),
        ),
    )
