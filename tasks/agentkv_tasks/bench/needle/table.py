"""The tables of `agentkv bench needle`; with up to seven depths they fit 80 columns."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.table import Table
from rich.text import Text

from agentkv_tasks.bench.needle.rows import NeedleRow
from agentkv_tasks.bench.tables import bench_table, threads_text, with_gaps
from agentkv_tasks.report.statistics import Paired, Rate, paired, wilson_interval
from agentkv_tasks.report.summary import human_bytes

_FOUND = (
    "{model}, {decoding}, {device}, {threads}, question {question} the page. Percentage of "
    "{needles} needles found by length in tokens and depth (0: first line of the page, 100: last "
    "line). found: all depths together, with Wilson's 95 % interval."
)
_TAKEN = (
    "peak: storage of the cache, maximum over needles. tokens: kept at the end, mean over layers "
    "and heads. Paired with {against} on the same needles: found by both, only by {against} "
    "(lost), only by this policy (won), by neither. p: exact McNemar test."
)


def tables(rows: Sequence[NeedleRow], *, against: str) -> Iterator[Table]:
    """Yield a table of outcomes and a table of cost with the comparison to `against`.

    Args:
        rows: rows sorted by length and policy.
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
        question=first.settings["question"],
        device=first.device,
        threads=threads_text(first.threads),
        needles=first.num_needles,
    )
    table = _empty_table(caption, *map(str, depths), "found", "95 %")
    for group in with_gaps(table, groups, key=lambda group: group[0].length):
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
    names = ("peak", "tokens", "both", "lost", "won", "neither", "p")
    table = _empty_table(_TAKEN.format(against=against), *names)
    others = {group[0].length: group for group in groups if group[0].label == against}
    for group in with_gaps(table, groups, key=lambda group: group[0].length):
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
    """Compare two policies on the needles that both tried."""
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


def _empty_table(caption: str, *columns: str) -> Table:
    return bench_table(caption, *columns, length="length", label="policy")
