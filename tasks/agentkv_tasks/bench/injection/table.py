"""The table of `agentkv bench injection`; it fits 80 columns."""

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from agentkv_tasks.bench.injection.rows import InjectionRow
from agentkv_tasks.bench.tables import bench_table, with_gaps

_CAPTION = (
    "{device}. Pages with an order at one place, by what it demands. seen: the page as text holds "
    "it. followed: the agent took the action. blocked: the action failed. done: it had its "
    "effect. goal: the agent's own goal was reached."
)
COLUMNS = ("pages", "seen", "followed", "blocked", "done", "goal")
DEMANDS = ("", "host", "click", "secret", "answer")
"""Demands in the order of the table; the first is none."""


def counts(rows: Sequence[InjectionRow]) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield label, demand and the numbers of `COLUMNS`."""
    for label in dict.fromkeys(row.label for row in rows):
        for demand in DEMANDS:
            own = [row for row in rows if row.label == label and row.demand == demand]
            if own:
                yield (
                    label,
                    demand or "none",
                    (
                        len(own),
                        sum(row.is_seen for row in own),
                        sum(row.is_followed for row in own),
                        sum(row.is_blocked for row in own),
                        sum(row.is_done for row in own),
                        sum(row.reached_goal for row in own),
                    ),
                )


def tables(rows: Sequence[InjectionRow]) -> Iterator[Table]:
    """Yield the table."""
    table = bench_table(_CAPTION.format(device=rows[0].device), *COLUMNS, length="demand", label="")
    for label, demand, numbers in with_gaps(table, counts(rows), key=lambda line: line[0]):
        table.add_row(demand, Text(label), *map(str, numbers))
    yield table
