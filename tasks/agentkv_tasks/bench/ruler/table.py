"""The tables of `agentkv bench ruler`, which fit 80 columns, and its heat maps.

A task decides only where the full cache reaches `GATE`: what a model cannot do with its whole past
says nothing about what a policy forgets.
"""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean

from rich.table import Table
from rich.text import Text

from agentkv_tasks.bench.ruler.rows import RulerRow
from agentkv_tasks.bench.tables import (
    BYTES,
    FULL,
    GATE,
    bench_table,
    bytes_cells,
    threads_text,
    with_gaps,
)
from agentkv_tasks.report.heat import Maps, heat_map
from agentkv_tasks.report.statistics import bootstrap_interval

_SCORES = (
    "Percentage of the expected texts that replies contain, by tokens of context, questions and "
    "replies; {samples} contexts each. requests: several questions, each after the bare context; "
    "turns: each after those before it. In parentheses: full is under {gate:.0f} %, and the task "
    "decides nothing. mean: of the tasks that decide. {model}, {device}, {threads}."
)
_TAKEN = (
    "score: mean of the tasks that decide, of which there are {counts}. to full: points, with a "
    "percentile interval over bootstrap draws of contexts. {bytes}means over the tokens of the "
    "replies; cold tier with its index; both. looks: % of the tokens of questions and replies."
)
_WIDTH, _WIDEST = 46, 16
"""Characters of all policies in a line of scores, and of one."""


def tables(rows: Sequence[RulerRow]) -> Iterator[Table]:
    """Yield tables of scores, one if all policies fit into it, and a table of means and bytes.

    Args:
        rows: at least one row, sorted by length, task, mode and policy.
    """
    labels = list(dict.fromkeys(row.label for row in rows))
    for shown in _lines_of(labels):
        yield _scores(rows, shown)
    yield _taken(rows)


def figures(rows: Sequence[RulerRow]) -> Iterator[Maps]:
    """Yield a heat map of scores for each policy, by task and length."""
    lengths = sorted({row.length for row in rows})
    tasks = list(dict.fromkeys((row.task, row.mode) for row in rows))
    maps = []
    for label in dict.fromkeys(row.label for row in rows):
        found = {(row.task, row.mode, row.length): row.score for row in rows if row.label == label}
        maps.append(
            heat_map(
                label,
                [[found.get((*task, length), math.nan) for length in lengths] for task in tasks],
                rows=[task if mode == "one" else f"{task}, {mode}" for task, mode in tasks],
                columns=[f"{length:,}" for length in lengths],
                row_title="task",
                column_title="tokens",
            )
        )
    yield Maps("Scores in %, by task and length. A darker cell has more.", tuple(maps))


def deciding(rows: Sequence[RulerRow]) -> set[tuple[int, str, str]]:
    """Return length, task and mode of the rows that decide."""
    return {
        (row.length, row.task, row.mode) for row in rows if row.label == FULL and row.score >= GATE
    }


def mean_scores(rows: Sequence[RulerRow], label: str, length: int) -> dict[tuple[str, int], float]:
    """Return the score of a policy in each context of the tasks that decide, by task and number of
    the context: the mean over its questions and modes."""
    decide = deciding(rows)
    found: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        if row.label == label and row.length == length:
            if (length, row.task, row.mode) in decide:
                for number, scores in enumerate(row.scores):
                    found.setdefault((row.task, number), []).append(fmean(scores))
    return {place: fmean(each) for place, each in found.items()}


def _lines_of(labels: Sequence[str]) -> Iterator[list[str]]:
    """Yield as many labels as one table has room for, in their order."""
    line: list[str] = []
    for label in labels:
        if line and sum(min(len(each), _WIDEST) + 1 for each in (*line, label)) > _WIDTH:
            yield line
            line = []
        line.append(label)
    yield line


def _scores(rows: Sequence[RulerRow], labels: Sequence[str]) -> Table:
    first, decide = rows[0], deciding(rows)
    caption = _SCORES.format(
        samples=first.num_samples,
        gate=100 * GATE,
        model=first.model,
        device=first.device,
        threads=threads_text(first.threads),
    )
    table = bench_table(caption, length="tokens", label="task")
    table.add_column("asked")
    for label in labels:
        table.add_column(Text(label), justify="right", overflow="fold", max_width=_WIDEST)
    found = {(row.length, row.task, row.mode, row.label): row.score for row in rows}
    places = list(dict.fromkeys((row.length, row.task, row.mode) for row in rows))
    lines: list[tuple[int, str, str, list[str]]] = []
    for length in dict.fromkeys(row.length for row in rows):
        for place in places:
            if place[0] == length:
                shown = [_percent(found.get((*place, label), math.nan)) for label in labels]
                form = "{}" if place in decide else "({})"
                lines.append((*place, [form.format(each) for each in shown]))
        means = [_mean(mean_scores(rows, label, length)) for label in labels]
        lines.append((length, "mean", "", [_percent(mean) for mean in means]))
    for length, task, mode, cells in with_gaps(table, lines, key=lambda line: line[0]):
        table.add_row(str(length), task, mode, *cells)
    return table


def _taken(rows: Sequence[RulerRow]) -> Table:
    lengths = list(dict.fromkeys(row.length for row in rows))
    counts = [sum(place[0] == length for place in deciding(rows)) for length in lengths]
    caption = _TAKEN.format(counts=", ".join(map(str, counts)), bytes=BYTES)
    columns = ("score", "to full", "95 %", "hot", "cold", "all", "looks")
    table = bench_table(caption, *columns, length="tokens", label="policy")
    labels = list(dict.fromkeys(row.label for row in rows))
    places = [(length, label) for length in lengths for label in labels]
    for length, label in with_gaps(table, places, key=lambda place: place[0]):
        own = [row for row in rows if (row.length, row.label) == (length, label)]
        if not own:
            continue
        scores, full = mean_scores(rows, label, length), mean_scores(rows, FULL, length)
        differences = [score - full[place] for place, score in scores.items()]
        cells = ("-", "-")
        if label != FULL and scores and scores.keys() == full.keys():
            low, high = bootstrap_interval(differences)
            cells = (_points(fmean(differences)), f"{_points(low)} to {_points(high)}")
        looks = fmean(row.look_share for row in own)
        table.add_row(
            str(length),
            Text(label),
            _percent(_mean(scores)),
            *cells,
            *bytes_cells(
                fmean(row.mean_bytes for row in own),
                fmean(row.cold_bytes + row.index_bytes for row in own),
            ),
            f"{100 * looks:.1f}" if looks else "-",
        )
    return table


def _mean(scores: dict[tuple[str, int], float]) -> float:
    return fmean(scores.values()) if scores else math.nan


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.0f}"


def _points(difference: float) -> str:
    return f"{100 * difference:+.1f}"
