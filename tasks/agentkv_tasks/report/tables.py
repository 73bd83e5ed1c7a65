"""The main table: one line per policy with paired tests and cache bytes as shares of the baseline.

It adds to each `Summary` success by memory distance and comparisons with several policies, and
prints the table as Markdown.
"""

import statistics as figures
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agentkv_tasks.report.statistics import Paired, Rate, paired, rate
from agentkv_tasks.report.summary import Summary, baseline_name, human_bytes, outcomes, percent
from agentkv_tasks.results import ResultsError, Row

REFERENCES = ("full", "window")
"""Default references of the paired comparison, as far as a run contains them."""

_BANDS = ((16, "16 or more"), (8, "8 to 15"), (1, "1 to 7"), (0, "0"))
"""Least distance in pages and name of each band (our choice: each band holds a share of the tasks
of vwa75 or vwa-long)."""
BANDS = tuple(name for _, name in reversed(_BANDS))


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes of a cache, and their share of the baseline's bytes on the episodes that both ran."""

    bytes: float | None
    share: float | None
    """Share of the baseline's bytes; None for the baseline itself."""


@dataclass(frozen=True, slots=True)
class PolicyLine:
    """One policy's line of the table."""

    summary: Summary
    by_distance: Mapping[str, Rate]
    """Success by the distance in pages of the furthest needed fact; empty if no row records it."""
    against: Mapping[str, Paired | None]
    """Counts by reference, where the reference comes first and this policy second. None for the
    reference itself, and for a suite or a model without the reference."""
    peak: Cost
    """Mean over episodes of the peak bytes."""
    worst: Cost
    """Maximum over episodes of the peak bytes."""
    mean: Cost
    """Mean over episodes of the mean bytes over steps."""


def policy_lines(
    summaries: Sequence[Summary], against: Sequence[str] | None = None
) -> list[PolicyLine]:
    """Return a line for each summary.

    Args:
        summaries: result of `summarize`.
        against: labels or names of the reference policies; the first policy of a suite and model
            with that name counts. None takes the policies of `REFERENCES` that exist, or else the
            baseline.

    Raises:
        ResultsError: no policy has that name; the message names the existing ones.
    """
    if against is None:
        against = [name for name in REFERENCES if _named(name, summaries)]
        against = against or list(
            dict.fromkeys(summary.policy for summary in summaries if summary.against is None)
        )
    for name in against:
        if not _named(name, summaries):
            known = ", ".join(summary.label for summary in summaries)
            raise ResultsError(f"no policy {name!r} to compare with; known: {known}")
    return [_policy_line(summary, summaries, against) for summary in summaries]


def distance_bands(lines: Sequence[PolicyLine]) -> list[str]:
    """Return the bands that contain tasks, or nothing if there is only one band."""
    present = [name for name in BANDS if any(name in line.by_distance for line in lines)]
    return present if len(present) > 1 else []


def references(lines: Sequence[PolicyLine]) -> list[str]:
    """Return the names of the reference policies."""
    return list(lines[0].against)


def p_value(value: float) -> str:
    """Format a p-value as `0.021` or `< 0.001`."""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def markdown(lines: Sequence[PolicyLine]) -> str:
    """Return the lines as a Markdown table."""
    categories = sorted({name for line in lines for name in line.summary.by_category})
    bands, others = distance_bands(lines), references(lines)
    baseline = baseline_name([line.summary for line in lines])
    head = [
        "policy",
        "solved",
        *categories,
        *(f"{name} pages back" for name in bands),
        *(f"against {name}" for name in others),
        *("peak cache", "largest peak", "mean cache"),
    ]
    rows = [head, ["---", *("--:" for _ in head[1:])]]
    for line in lines:
        summary = line.summary
        rows.append([
            summary.label,
            f"{_counts(summary.success)}, {percent(summary.success.value)}",
            *(_counts(summary.by_category.get(name)) for name in categories),
            *(_counts(line.by_distance.get(name)) for name in bands),
            *(_pairs(line.against.get(name)) for name in others),
            *(_cost(cost, baseline) for cost in (line.peak, line.worst, line.mean)),
        ])  # fmt: skip
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)


def _named(name: str, summaries: Sequence[Summary]) -> Summary | None:
    exact = [summary for summary in summaries if summary.label == name]
    return next(iter(exact + [summary for summary in summaries if summary.policy == name]), None)


def _policy_line(
    summary: Summary, summaries: Sequence[Summary], against: Sequence[str]
) -> PolicyLine:
    by_distance: dict[str, list[bool]] = {}
    for row in summary.rows:
        if row.memory_distance_pages is not None:
            by_distance.setdefault(_band(row.memory_distance_pages), []).append(row.success)
    peers = [
        other for other in summaries if (other.suite, other.model) == (summary.suite, summary.model)
    ]
    pairs: dict[str, Paired | None] = {}
    for name in against:
        other = _named(name, peers)
        pairs[name] = None
        if other is not None and other is not summary:
            pairs[name] = paired(outcomes(other.rows), outcomes(summary.rows))
    baseline = next(other for other in peers if other.against is None)
    return PolicyLine(
        summary=summary,
        by_distance={name: rate(by_distance[name]) for name in BANDS if name in by_distance},
        against=pairs,
        peak=_costs(summary, baseline, lambda row: row.kv_peak_bytes, figures.fmean),
        worst=_costs(summary, baseline, lambda row: row.kv_peak_bytes, max),
        mean=_costs(summary, baseline, lambda row: row.kv_mean_bytes, figures.fmean),
    )


def _band(distance: int) -> str:
    return next(name for least, name in _BANDS if distance >= least)


def _costs(
    summary: Summary,
    baseline: Summary,
    measure: Callable[[Row], int | None],
    gather: Callable[[list[int]], float],
) -> Cost:
    ours = _measured(summary, measure)
    if summary is baseline or not ours:
        return Cost(gather(list(ours.values())) if ours else None, None)
    theirs = _measured(baseline, measure)
    shared = [unit for unit in ours if theirs.get(unit)]
    share = None
    if shared:
        share = gather([ours[unit] for unit in shared]) / gather([theirs[unit] for unit in shared])
    return Cost(gather(list(ours.values())), share)


def _measured(
    summary: Summary, measure: Callable[[Row], int | None]
) -> dict[tuple[str, int, int, int], int]:
    return {row.unit: held for row in summary.rows if (held := measure(row)) is not None}


def _counts(rate: Rate | None) -> str:
    return "-" if rate is None else f"{rate.num_successes}/{rate.num_episodes}"


def _pairs(counts: Paired | None) -> str:
    if counts is None:
        return "-"
    return f"{counts.only_second} won, {counts.only_first} lost, p {p_value(counts.p_value)}"


def _cost(cost: Cost, baseline: str) -> str:
    share = "" if cost.share is None else f" ({percent(cost.share)} of {baseline})"
    return human_bytes(cost.bytes) + share
