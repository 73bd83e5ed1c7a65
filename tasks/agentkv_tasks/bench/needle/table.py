"""The tables of `agentkv bench needle`; with up to seven depths they fit 80 columns."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.table import Table
from rich.text import Text

from agentkv_tasks.bench.needle.rows import NeedleRow
from agentkv_tasks.report.statistics import Paired, Rate, paired, wilson_interval
from agentkv_tasks.report.summary import human_bytes

_FOUND = (
    "{model}, {decoding}, {device}, {threads}. By length in tokens: % of {needles} needles found "
    "at each depth (0: the page's first line, 100: its last); of all depths together with Wilson's "
    "95 % interval."
)
_TAKEN = (
    "peak: the most that any needle's cache held; rows: held at the end, mean over layers and "
    "heads. On the same needles as {against}: found by both, only by {against} (lost), only by "
    "this policy (won), by neither; p: exact McNemar test."
)


def tables(rows: Sequence[NeedleRow], *, against: str) -> Iterator[Table]:
    """What was found, and what that took, beside the policy `against`.

    Args:
        rows: those of a length and policy side by side.
    """
    groups = [list(group) for _, group in groupby(rows, key=lambda row: (row.length, row.label))]
    yield _found(groups)
    yield _taken(groups, against)


def _found(groups: Sequence[Sequence[NeedleRow]]) -> Table:
    first = groups[0][0]
    depths = sorted({row.depth for group in groups for row in group})
    caption = _FOUND.format(
        model=first.model,
        decoding=first.settings["decoding"],
        device=first.device,
        threads=f"{first.threads} thread" + "s" * (first.threads != 1),
        needles=first.num_needles,
    )
    table = _table(caption, *map(str, depths), "found", "95 %")
    for group in _with_gaps(table, groups):
        by_depth = {row.depth: f"{100 * row.share:.0f}" for row in group}
        every = Rate(sum(row.num_found for row in group), sum(row.num_needles for row in group))
        low, high = wilson_interval(every)
        table.add_row(
            str(group[0].length),
            Text(group[0].label),
            *(by_depth.get(depth, "-") for depth in depths),
            f"{every.num_successes}/{every.num_episodes}",
            f"{100 * low:.0f}-{100 * high:.0f}",
        )
    return table


def _taken(groups: Sequence[Sequence[NeedleRow]], against: str) -> Table:
    names = ("peak", "rows", "both", "lost", "won", "neither", "p")
    table = _table(_TAKEN.format(against=against), *names)
    others = {group[0].length: group for group in groups if group[0].label == against}
    for group in _with_gaps(table, groups):
        length, label = group[0].length, group[0].label
        cells = ["-"] * 5
        if label != against and length in others:
            cells = _cells(compared(others[length], group))
        table.add_row(
            str(length),
            Text(label),
            human_bytes(max(row.peak_bytes for row in group)),
            f"{sum(row.kept_rows for row in group) / len(group):.0f}",
            *cells,
        )
    return table


def compared(first: Sequence[NeedleRow], second: Sequence[NeedleRow]) -> Paired:
    """Two policies on the needles that both were given."""
    units = [
        {
            (row.length, row.depth, number): found
            for row in rows
            for number, found in enumerate(row.found)
        }
        for rows in (first, second)
    ]
    return paired(units[0], units[1])


def _cells(pairs: Paired) -> list[str]:
    counts = (pairs.both, pairs.only_first, pairs.only_second, pairs.neither)
    return [*map(str, counts), f"{pairs.p_value:.2g}"]


def _with_gaps(
    table: Table, groups: Sequence[Sequence[NeedleRow]]
) -> Iterator[Sequence[NeedleRow]]:
    """The groups, an empty line of the table before each further length."""
    for number, (_, alike) in enumerate(groupby(groups, key=lambda group: group[0].length)):
        if number:
            table.add_row()
        yield from alike


def _table(caption: str, *names: str) -> Table:
    table = Table(
        box=None,
        padding=(0, 1, 0, 0),
        header_style="bold",
        caption=caption,
        caption_justify="left",
    )
    table.add_column("length", justify="right", no_wrap=True)
    table.add_column("policy", overflow="fold", max_width=16)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table
