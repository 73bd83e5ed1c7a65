"""The tables of `agentkv_lab ocr`; they fit 80 columns."""

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from agentkv_lab.ocr.grid import BANDS, SIZES
from agentkv_lab.ocr.rows import OcrRow
from agentkv_tasks.bench.tables import bench_table, with_gaps

_READ = (
    "{device}. Percent of the words in pictures that were read exactly, by contrast ratio (WCAG) "
    "and font size in pixels. rotated: at 16 px or more, by 2 and 5 degrees. alone: Tesseract on "
    "each picture as it is, one process for each."
)
_TIME = (
    "Milliseconds for a page, median, in one interleaved run. x: relative to {baseline}, median "
    "over pages. equal: pictures with exactly the text of {baseline}."
)
LEAST_SIZE = 16
"""Pixels from which rotated words count in the table."""


def tables(rows: Sequence[OcrRow]) -> Iterator[Table]:
    """Yield the words that were read, and the time of pages."""
    grid = [row for row in rows if row.source == "grid"]
    labels = list(dict.fromkeys(row.label for row in rows))
    read = bench_table(
        _READ.format(device=rows[0].device),
        *(f"{size} px" for size in SIZES),
        "rotated",
        length="contrast",
        label="reader",
    )
    lines = [(band, label) for band, _ in BANDS for label in labels]
    for band, label in with_gaps(read, lines, key=lambda line: line[0]):
        own = {row.size: row for row in grid if row.contrast == band and row.label == label}
        rotated = [
            (row.recall_rotated, row.num_words_rotated)
            for row in own.values()
            if row.size >= LEAST_SIZE and row.recall_rotated is not None
        ]
        read.add_row(
            band,
            Text(label),
            *(_percent(own[size].recall if size in own else None) for size in SIZES),
            _percent(_mean(rotated)),
        )
    yield read
    time = bench_table(
        _TIME.format(baseline=rows[0].baseline),
        *("pages", "pictures", "page", "x", "equal"),
        length="source",
        label="reader",
    )
    sources = dict.fromkeys((row.source, row.label) for row in rows)
    for source, label in with_gaps(time, sources, key=lambda line: line[0]):
        chosen = [row for row in rows if row.source == source and row.label == label]
        time.add_row(
            source,
            Text(label),
            str(chosen[0].num_pages),
            str(sum(row.num_pictures for row in chosen)),
            f"{1000 * chosen[0].page_s:.0f}",
            f"{chosen[0].page_ratio:.2f}",
            str(sum(row.num_equal for row in chosen)),
        )
    yield time


def _mean(shares: Sequence[tuple[float, int]]) -> float | None:
    """Return the mean of shares with weights; None without any."""
    total = sum(weight for _, weight in shares)
    return sum(share * weight for share, weight in shares) / total if total else None


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f}"
