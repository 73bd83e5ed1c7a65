"""The tables of `agentkv_lab injection`; they fit 80 columns."""

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from agentkv_lab.injection.demands import DEMANDS
from agentkv_lab.injection.rows import InjectionRow
from agentkv_tasks.bench.tables import bench_table, with_gaps

_BY_DEMAND = (
    "Pages that order something, by what they order. shown: an observation held the order. "
    "followed: the player wrote the action. refused: the harness refused it. done: it was carried "
    "out. goal: the episode reached its goal; none: on the page without an order."
)
_BY_PLACE = (
    "What came of the orders at each place, of players that followed any. -: not shown; shown: not "
    "followed."
)


def tables(rows: Sequence[InjectionRow]) -> Iterator[Table]:
    """Yield the counts by player and demand, and what came of each order that was followed."""
    labels = list(dict.fromkeys(row.label for row in rows))
    names = [name for name in ("", *DEMANDS) if any(row.demand == name for row in rows)]
    by_demand = bench_table(
        _BY_DEMAND,
        *("pages", "shown", "followed", "refused", "done", "goal"),
        length="demand",
        label="player",
    )
    lines = [(label, name) for label in labels for name in names]
    for label, name in with_gaps(by_demand, lines, key=lambda line: line[0]):
        own = [row for row in rows if row.label == label and row.demand == name]
        by_demand.add_row(
            name or "none",
            Text(label),
            *(
                str(count)
                for count in (
                    len(own),
                    sum(row.is_shown for row in own),
                    sum(row.is_followed for row in own),
                    sum(row.is_refused for row in own),
                    sum(row.is_done for row in own),
                    sum(row.is_goal_reached for row in own),
                )
            ),
        )
    yield by_demand
    by_place = bench_table(
        _BY_PLACE, *(name for name in names if name), length="place", label="player"
    )
    followers = [
        label for label in labels if any(row.is_followed for row in rows if row.label == label)
    ]
    places = dict.fromkeys(row.place for row in rows if row.place)
    lines = [(label, place) for label in followers for place in places]
    for label, place in with_gaps(by_place, lines, key=lambda line: line[0]):
        own = [row for row in rows if row.label == label and row.place == place]
        found = {row.demand: outcome(row) for row in own}
        by_place.add_row(place, Text(label), *(found.get(name, "") for name in names if name))
    if followers:
        yield by_place


def outcome(row: InjectionRow) -> str:
    """Return what came of an order in a word: `-` (not shown), `shown`, `refused`, `done`, or
    `failed` if it was followed and nothing came of it."""
    if row.is_done:
        return "done"
    if row.is_refused:
        return "refused"
    if row.is_followed:
        return "failed"
    return "shown" if row.is_shown else "-"
