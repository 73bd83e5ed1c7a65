"""The report's grid: one line per task, one mark per episode, with links to the episodes' pages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentkv.trace import Trace
from agentkv_tasks.report.summary import Summary
from agentkv_tasks.results import FAILURES, Row

SIGNS = {"yes": "✓", "no": "✗", "broken": "!"}
"""Mark of each outcome."""


@dataclass(frozen=True, slots=True)
class GridCell:
    """One episode."""

    row: Row
    kind: str
    sign: str
    href: str
    """Link to the episode's page; empty without a trace."""


@dataclass(frozen=True, slots=True)
class GridLine:
    """One task."""

    name: str
    goal: str
    category: str
    cells: tuple[tuple[GridCell, ...], ...]
    """Episodes by policy, then by seed."""


def grid(
    summaries: Sequence[Summary], traces: Mapping[str, Trace], hrefs: Mapping[str, str]
) -> list[GridLine]:
    """Return a line for each task of each world of one suite.

    Args:
        summaries: policies of one suite, in the order of the columns.
        traces: trace by the key of its row.
        hrefs: link to the page of an episode, by the key of its row.
    """
    rows = [row for summary in summaries for row in summary.rows]
    several = len({row.world_seed for row in rows}) > 1
    firsts: dict[tuple[int, int], Row] = {}
    for row in rows:
        place = row.world_seed, row.task_id
        if place not in firsts or firsts[place].key not in traces:
            firsts[place] = row
    cells: dict[tuple[int, int], list[list[GridCell]]] = {
        place: [[] for _ in summaries] for place in firsts
    }
    for column, summary in enumerate(summaries):
        for row in sorted(summary.rows, key=lambda row: (row.seed, row.repeat)):
            cell = GridCell(row, outcome_of(row), SIGNS[outcome_of(row)], hrefs.get(row.key, ""))
            cells[row.world_seed, row.task_id][column].append(cell)
    return [
        GridLine(
            f"{place[0]}: {place[1]}" if several else str(place[1]),
            goal_of(firsts[place], traces.get(firsts[place].key)),
            firsts[place].category,
            tuple(map(tuple, cells[place])),
        )
        for place in sorted(firsts)
    ]


def outcome_of(row: Row) -> str:
    """Return `yes`, `no`, or `broken` if the harness ended the episode."""
    if row.success:
        return "yes"
    return "broken" if row.status in FAILURES else "no"


def goal_of(row: Row, trace: Trace | None) -> str:
    """Return the goal of an episode, or the number of its task without a trace."""
    return str(trace.head.get("goal", "")) if trace is not None else f"task {row.task_id}"
