"""Tables of benchmarks on the terminal."""

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import TypeVar

from rich.table import Table

from agentkv.terminal import human_bytes

FULL = "full"
"""The policy with which the others of a measurement are compared."""
GATE = 0.6
"""Score of the full cache from which on a task decides (our choice)."""

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
