"""The tables and figures of `agentkv_lab confidence`; the tables fit 80 columns."""

import math
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from rich.table import Table
from rich.text import Text

from agentkv_lab.confidence.read import FEATURES
from agentkv_lab.confidence.rows import ConfidenceRow
from agentkv_tasks.bench.tables import bench_table, threads_text, with_gaps
from agentkv_tasks.report.plot import (
    Figure,
    Plot,
    Series,
    from_zero,
    line_plot,
    naming,
    percentages,
)
from agentkv_tasks.report.statistics import cluster_interval, rank_correlation, separation

_Item = TypeVar("_Item")
THRESHOLDS = (0.7, 0.9, 0.99, 0.999, 0.9999)
"""Confidences below which the table counts an alarm (our choice)."""
TOP = list(FEATURES).index("top")
_NUM_BINS = 8
_CORRELATED = (
    "{tokens} tokens of {samples} {what} of {source}. KL: KL(full || policy) in nats before any "
    "look, mean. changed: % of the tokens whose likeliest candidate differs from a full cache. "
    "alarm: rank correlation of that KL and the probability of the likeliest token under the "
    "policy. forecast: the same with a full cache, before anything is forgotten; 95 % intervals "
    "over the {what}. {model}, {device}, {threads}."
)
_CAUGHT = (
    "missed: tokens that a look changes, or, under a policy that does not look, that differ from a "
    "full cache. alarm, forecast: probability that such a token has less confidence than another, "
    "under the policy and with a full cache (0.5: by chance). Further columns: of the missed "
    "tokens, % with a confidence below the threshold / % of all tokens that it alarms."
)


def tables(rows: Sequence[ConfidenceRow]) -> Iterator[Table]:
    """Yield the correlations, and what alarms catch."""
    yield _correlated(rows)
    yield _caught(rows)


def figures(rows: Sequence[ConfidenceRow]) -> Iterator[Figure]:
    """Yield what was forgotten over confidence, and what alarms catch, by length."""
    lengths = list(dict.fromkeys(row.seen for row in rows))
    groups = {seen: [row for row in rows if row.seen == seen] for seen in lengths}
    yield Figure(
        "Mean KL(full || policy) of the tokens, in eight groups of equal size from the least "
        "confidence to the most.",
        tuple(_forgotten(seen, group) for seen, group in groups.items()),
    )
    yield Figure(
        "Share of the missed tokens among those with the least confidence. By chance, it is the "
        "share of all tokens.",
        tuple(_catches(seen, group) for seen, group in groups.items()),
    )


class Tokens(Protocol):
    """Tokens of some samples, predicted with the whole past and with less."""

    @property
    def features(self) -> Sequence[Sequence[float]]:
        """Features of each token's confidence; `ConfidenceRow` explains this and what follows."""

    @property
    def full_features(self) -> Sequence[Sequence[float]]: ...

    @property
    def divergence(self) -> Sequence[float]: ...

    @property
    def samples(self) -> Sequence[Sequence[int]]: ...


def correlation(row: Tokens, of_full: bool) -> tuple[float, float, float]:
    """Return the rank correlation of confidence and KL, and its 95 % interval over samples."""
    features = row.full_features if of_full else row.features
    confidence = [each[TOP] for each in features]

    def of(tokens: Sequence[int]) -> float:
        return rank_correlation(
            [confidence[i] for i in tokens], [row.divergence[i] for i in tokens]
        )

    return of(range(len(confidence))), *cluster_interval(of, row.samples)


def area(row: ConfidenceRow, of_full: bool, feature: int = TOP) -> float:
    """Return the probability that a missed token has less confidence than another."""
    features = row.full_features if of_full else row.features
    return separation([-each[feature] for each in features], row.missed)


def caught(row: ConfidenceRow, threshold: float) -> tuple[float, float]:
    """Return the share of the missed tokens below a threshold, and the share of all tokens."""
    alarms = [each[TOP] < threshold for each in row.features]
    missed = [alarm for alarm, is_missed in zip(alarms, row.missed, strict=True) if is_missed]
    return sum(missed) / len(missed) if missed else math.nan, sum(alarms) / len(alarms)


def _correlated(rows: Sequence[ConfidenceRow]) -> Table:
    longest = rows[-1]
    caption = _CORRELATED.format(
        tokens=len(longest.divergence),
        samples=len(longest.sample_tokens),
        what="replies" if longest.of_replies else "continuations",
        source=longest.source,
        model=longest.model,
        device=longest.device,
        threads=threads_text(longest.threads),
    )
    columns = ("KL", "changed", "alarm", "95 %", "forecast", "95 %")
    found = bench_table(caption, *columns, length="seen", label="policy")
    for row in with_gaps(found, rows, key=lambda row: row.seen):
        found.add_row(
            str(row.seen),
            Text(row.label),
            f"{row.mean_divergence:.3f}",
            f"{100 * row.changed_share:.1f}",
            *signed(correlation(row, of_full=False)),
            *signed(correlation(row, of_full=True)),
        )
    return found


def _caught(rows: Sequence[ConfidenceRow]) -> Table:
    names = tuple(f"{threshold:g}" for threshold in THRESHOLDS)
    found = bench_table(
        _CAUGHT, "missed", "alarm", "forecast", *names, length="seen", label="policy"
    )
    for row in with_gaps(found, rows, key=lambda row: row.seen):
        cells = []
        for threshold in THRESHOLDS:
            share, of_all = caught(row, threshold)
            cells.append("-" if math.isnan(share) else f"{100 * share:.0f}/{100 * of_all:.0f}")
        found.add_row(
            str(row.seen),
            Text(row.label),
            str(sum(row.missed)),
            _number(area(row, of_full=False)),
            _number(area(row, of_full=True)),
            *cells,
        )
    return found


def _forgotten(seen: int, rows: Sequence[ConfidenceRow]) -> Plot:
    series = []
    for number, row in enumerate(rows):
        pairs = sorted(zip((x[TOP] for x in row.features), row.divergence, strict=True))
        means = [
            sum(kl for _, kl in group) / len(group) for group in _parts(pairs, _NUM_BINS) if group
        ]
        series.append(Series(row.label, tuple(enumerate(means)), number, f"{means[-1]:.4f} nats"))
    names = ["least", *("" for _ in range(_NUM_BINS - 2)), "most"]
    most = max(value for each in series for _, value in each.points)
    return line_plot(
        f"KL after {seen:,} tokens, nats",
        series,
        x=naming(names),
        y=from_zero(most),
        x_title="confidence",
    )


def _catches(seen: int, rows: Sequence[ConfidenceRow]) -> Plot:
    series = []
    for number, row in enumerate(rows):
        order = sorted(range(len(row.missed)), key=lambda i: row.features[i][TOP])
        num_missed, points, so_far = sum(row.missed), [(0.0, 0.0)], 0
        for place, token in enumerate(order, start=1):
            so_far += row.missed[token]
            points.append((place / len(order), so_far / num_missed if num_missed else math.nan))
        last = f"area {_number(area(row, of_full=False))}"
        series.append(Series(row.label, tuple(points), number, last))
    return line_plot(
        f"missed tokens caught after {seen:,}, %",
        series,
        x=percentages(),
        y=percentages(),
        x_title="% of the tokens that alarm",
    )


def _parts(values: Sequence[_Item], count: int) -> Iterator[Sequence[_Item]]:
    for number in range(count):
        yield values[number * len(values) // count : (number + 1) * len(values) // count]


def signed(found: tuple[float, float, float]) -> tuple[str, str]:
    """Return the cells of a correlation and of its interval, such as `+.11` and `-.02 to +.24`."""
    value, low, high = found
    if math.isnan(value):
        return "-", "-"
    shown = (f"{number:+.2f}".replace("0.", ".") for number in (value, low, high))
    found_value, *interval = shown
    return found_value, " to ".join(interval)


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"
