"""The report's grid: a line for each task, a mark for each episode, links to their pages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentkv.trace import Trace
from agentkv_tasks.report.summary import Summary
from agentkv_tasks.results import FAILURES, Row

_SIGNS = {"yes": "✓", "no": "✗", "broken": "!"}


@dataclass(frozen=True, slots=True)
class Cell:
    """One episode."""

    row: Row
    kind: str
    sign: str
    href: str
    """Empty where there is no trace."""


@dataclass(frozen=True, slots=True)
class Line:
    """One task."""

    name: str
    goal: str
    category: str
    cells: tuple[tuple[Cell, ...], ...]
    """By policy; of each, one per seed."""


def grid(
    summaries: Sequence[Summary], traces: Mapping[str, Trace], hrefs: Mapping[str, str]
) -> list[Line]:
    """A line for each task of each world.

    Args:
        summaries: the policies, in the order of the columns.
        traces: by the key of their row.
        hrefs: where the page of a row's episode is, by the same key.
    """
    rows = [row for summary in summaries for row in summary.rows]
    several = len({(row.suite, row.world_seed) for row in rows}) > 1
    firsts: dict[tuple[str, int, int], Row] = {}
    for row in rows:
        place = row.suite, row.world_seed, row.task_id
        if place not in firsts or firsts[place].key not in traces:
            firsts[place] = row
    cells: dict[tuple[str, int, int], list[list[Cell]]] = {
        place: [[] for _ in summaries] for place in firsts
    }
    for column, summary in enumerate(summaries):
        for row in sorted(summary.rows, key=lambda row: row.seed):
            cell = Cell(row, kind(row), _SIGNS[kind(row)], hrefs.get(row.key, ""))
            cells[row.suite, row.world_seed, row.task_id][column].append(cell)
    return [
        Line(
            f"{place[1]}: {place[2]}" if several else str(place[2]),
            goal(firsts[place], traces.get(firsts[place].key)),
            firsts[place].category,
            tuple(map(tuple, cells[place])),
        )
        for place in sorted(firsts)
    ]


def kind(row: Row) -> str:
    """`yes`, `no`, or `broken` where the harness ended the episode."""
    if row.success:
        return "yes"
    return "broken" if row.status in FAILURES else "no"


def goal(row: Row, trace: Trace | None) -> str:
    """What was asked for, as far as the trace tells."""
    return str(trace.head.get("goal", "")) if trace is not None else f"task {row.task_id}"
