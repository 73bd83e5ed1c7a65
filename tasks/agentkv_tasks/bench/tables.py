"""Tables of benchmarks on the terminal, and the end of their output."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentkv.terminal import human_bytes
from agentkv_tasks.bench.page import write_page
from agentkv_tasks.bench.rows import BenchRow, summary
from agentkv_tasks.report.heat import Maps
from agentkv_tasks.report.plot import Figure

_Item = TypeVar("_Item")


def bench_table(caption: str, *columns: str, length: str | None = None, label: str) -> Table:
    """Return an empty table for 80 columns.

    Args:
        columns: names of the columns with figures.
        length: name of a first column with lengths; None: no such column.
        label: name of the column with labels.
    """
    table = Table(
        box=None,
        padding=(0, 1, 0, 0),
        header_style="bold",
        caption=caption,
        caption_justify="left",
    )
    if length is not None:
        table.add_column(length, justify="right", no_wrap=True)
    table.add_column(label, overflow="fold", max_width=16)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def with_gaps(
    table: Table, items: Iterable[_Item], key: Callable[[_Item], object]
) -> Iterator[_Item]:
    """Yield `items`, adding an empty line to the table wherever `key` changes."""
    for number, (_, group) in enumerate(groupby(items, key=key)):
        if number:
            table.add_row()
        yield from group


BYTES = "hot, cold, all (K, M, G: KiB, MiB, GiB): "
"""How a caption begins to explain the cells of `bytes_cells`."""


def bytes_cells(hot: float | None, cold: float | None) -> tuple[str, str, str]:
    """Return the cells of hot, cold and all bytes, which together fit into 17 columns.

    Args:
        hot: None if unknown.
        cold: of the cold tier with its index; None or 0: a dash.
    """
    whole = None if hot is None else hot + (cold or 0)
    return _short(hot), _short(cold or None), _short(whole)


def _short(count: float | None) -> str:
    """Return `812K` for 812 KiB."""
    return human_bytes(count).replace(" ", "").replace("iB", "")


def threads_text(count: int) -> str:
    """Return `1 thread` or `2 threads`."""
    return f"{count} thread" + "s" * (count != 1)


def model_text(model: str, weights: str, scaled: str) -> str:
    """Return the name of a model, the origin of its weights and its changes."""
    return f"{model} ({weights} weights" + f"; {scaled}" * bool(scaled) + ")"


def print_results(
    console: Console,
    kind: type[BenchRow],
    rows: Sequence[BenchRow],
    out: Path,
    *,
    tables: Iterable[Table],
    figures: Iterable[Figure | Maps] = (),
    interrupted: bool,
    resume: str = "; run the same command again to continue",
) -> None:
    """Print the tables, the paths of the rows and of their page, and the summary of the rows.

    The page, which also shows the figures, is written beside the rows if there are any.

    Args:
        interrupted: raise KeyboardInterrupt after the tables.
        resume: how an interrupted benchmark continues.

    Raises:
        KeyboardInterrupt: the benchmark was interrupted; the message says what was kept.
        WriteError: the page could not be written.
    """
    shown = list(tables)
    for table in shown:
        console.print(table)
        console.print()
    page = write_page(out, rows, tables=shown, figures=figures) if rows else None
    if interrupted:
        kept = f"{len(rows)} rows measured so far: {out}" if rows else "no rows yet"
        raise KeyboardInterrupt(f"interrupted; {kept}{resume}")
    console.print(Text(f"rows: {out}"), soft_wrap=True)
    if page is not None:
        console.print(Text(f"page: {page}"), soft_wrap=True)
    console.print(Text(summary(kind, rows, str(out))), soft_wrap=True)
