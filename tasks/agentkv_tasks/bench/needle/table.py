"""The tables of `agentkv bench needle`; with up to seven depths they fit 80 columns."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.table import Table
from rich.text import Text

from agentkv_tasks.bench.needle.rows import NeedleRow
from agentkv_tasks.bench.tables import BYTES, bench_table, bytes_cells, threads_text, with_gaps
from agentkv_tasks.report.statistics import Paired, Rate, paired, wilson_interval

ALL = "all"
"""Name of the lines that take all lengths together."""
_FOUND = (
    "{model}, {kind}, {decoding}, {device}, {threads}, question {question} the page. Percentage of "
    "{needles} needles found by length in tokens and depth (0: first line of the page, 100: last "
    "line). found: all depths together, with Wilson's 95 % interval."
)
_FIRST = " The depth is that of the first line that the answer needs."
_VALUES = " values: percentage of the values that answers listed."
_TAKEN = (
    "Question {question} the page. {bytes}peak of the cache, maximum over needles; cold tier at "
    "the end, mean; both. tokens: kept at the end, mean over layers and heads. Paired with "
    "{against} on the same needles: found by both, only by {against} (lost), only by this policy "
    "(won), by neither. p: exact McNemar test."
)
_KINDS = {
    "one": "the code of one name",
    "several": "the codes of {asked} of {facts} names",
    "chain": "a code behind {hops} hops",
}


def tables(rows: Sequence[NeedleRow], *, against: str) -> Iterator[Table]:
    """Yield, for each place of the question, a table of outcomes, which is one map of lengths and
    depths for each policy, and a table of cost with the comparison to `against`.

    Args:
        rows: rows sorted by question, length and policy.
    """
    for _, asked in groupby(rows, key=lambda row: row.question):
        places = list(asked)
        yield _found(places)
        yield _taken(places, against)


def groups_of(rows: Sequence[NeedleRow]) -> list[tuple[str, str, list[NeedleRow]]]:
    """Return length, policy and rows of each length and policy; after several lengths also of all
    lengths together."""
    lengths = dict.fromkeys(row.length for row in rows)
    labels = dict.fromkeys(row.label for row in rows)
    names: list[tuple[str, set[int]]] = [(str(length), {length}) for length in lengths]
    names += [(ALL, set(lengths))] * (len(lengths) > 1)
    groups = [
        (name, label, [row for row in rows if row.label == label and row.length in within])
        for name, within in names
        for label in labels
    ]
    return [group for group in groups if group[2]]


def kind_text(row: NeedleRow) -> str:
    """Return what the needles of a row's file ask for."""
    return _KINDS[row.kind].format(**row.kind_parameters)


def _found(rows: Sequence[NeedleRow]) -> Table:
    first = rows[0]
    depths = sorted({row.depth for row in rows})
    has_several = any(len(values) > 1 for values in first.values)
    caption = _FOUND.format(
        model=first.model,
        kind=kind_text(first),
        decoding=first.settings["decoding"],
        question=first.question,
        device=first.device,
        threads=threads_text(first.threads),
        needles=first.num_needles,
    )
    caption += _FIRST * (first.kind != "one") + _VALUES * has_several
    columns = [*map(str, depths), "found", "95 %", *["values"] * has_several]
    table = bench_table(caption, *columns, length="length", label="policy")
    labels = list(dict.fromkeys(row.label for row in rows))
    by_policy = sorted(groups_of(rows), key=lambda group: labels.index(group[1]))
    has_maps = len(by_policy) > len(labels)
    for length, label, group in with_gaps(table, by_policy, key=lambda each: has_maps and each[1]):
        every = rate_of(group)
        low, high = wilson_interval(every)
        table.add_row(
            length,
            Text(label),
            *(_percentage([row for row in group if row.depth == depth]) for depth in depths),
            f"{every.num_successes}/{every.num_episodes}",
            f"{100 * low:.0f}-{100 * high:.0f}",
            *[f"{_values_share(group):.0f}"] * has_several,
        )
    return table


def _taken(rows: Sequence[NeedleRow], against: str) -> Table:
    names = ("hot", "cold", "all", "tokens", "both", "lost", "won", "neither", "p")
    caption = _TAKEN.format(question=rows[0].question, against=against, bytes=BYTES)
    table = bench_table(caption, *names, length="length", label="policy")
    groups = groups_of(rows)
    others = {length: group for length, label, group in groups if label == against}
    for length, label, group in with_gaps(table, groups, key=lambda each: each[0]):
        cells = ["-"] * 5
        if label != against and length in others:
            cells = _cells(compared(others[length], group))
        table.add_row(
            length,
            Text(label),
            *bytes_cells(
                max(row.peak_bytes for row in group),
                sum(row.cold_bytes for row in group) / len(group),
            ),
            f"{sum(row.kept_rows for row in group) / len(group):.0f}",
            *cells,
        )
    return table


def rate_of(rows: Sequence[NeedleRow]) -> Rate:
    """Return the rate of needles found over all rows."""
    return Rate(sum(row.num_found for row in rows), sum(row.num_needles for row in rows))


def compared(first: Sequence[NeedleRow], second: Sequence[NeedleRow]) -> Paired:
    """Compare two policies on the needles that both tried."""
    units = [
        {
            (row.question, row.length, row.depth, number): found
            for row in rows
            for number, found in enumerate(row.found)
        }
        for rows in (first, second)
    ]
    return paired(units[0], units[1])


def _percentage(rows: Sequence[NeedleRow]) -> str:
    return f"{100 * rate_of(rows).value:.0f}" if rows else "-"


def _values_share(rows: Sequence[NeedleRow]) -> float:
    """Return the percentage of values that answers listed; all rows have equally many needles."""
    return 100 * sum(row.values_share for row in rows) / len(rows)


def _cells(pairs: Paired) -> list[str]:
    counts = (pairs.both, pairs.only_first, pairs.only_second, pairs.neither)
    return [*map(str, counts), f"{pairs.p_value:.2g}"]
