"""The main table: one line per policy with paired tests and cache bytes as shares of the baseline.

It adds to each `Summary` success by memory distance and comparisons with several policies, and
prints the table as Markdown.
"""

import statistics as figures
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from agentkv.terminal import human_bytes
from agentkv_tasks.report.statistics import FEWEST, MARGIN, Paired, Rate, rate
from agentkv_tasks.report.summary import (
    Summary,
    compare,
    corrected_p_values,
    percent,
    stored_baseline,
)
from agentkv_tasks.results import ResultsError, Row, Unit, unreset_warning

LEVEL = 0.05
"""A difference with a corrected p-value of at most this is called more than chance."""

REFERENCES = ("full", "window")
"""Default references of the paired comparison, as far as a run contains them."""

Bands = Sequence[tuple[int, str]]
"""Least value and name of each band, from the highest to the lowest."""

_DISTANCES: Bands = ((16, "16 or more"), (8, "8 to 15"), (1, "1 to 7"), (0, "0"))
"""Distances in pages (our choice: each band holds a share of the tasks of vwa75 or vwa-long)."""
_LENGTHS: Bands = (
    (16384, "16,384 or more"), (8192, "8,192 to 16,383"), (4096, "4,096 to 8,191"),
    (2048, "2,048 to 4,095"), (0, "up to 2,047"),
)  # fmt: skip
"""Tokens that the baseline had seen at the end of a task (our choice: each twice the one below)."""


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
    by_length: Mapping[str, Rate]
    """Success by the tokens that the baseline had seen at the end of the same task; empty if no row
    of the baseline records them."""
    against: Mapping[str, Paired | None]
    """Counts by reference, where the reference comes first and this policy second. None for the
    reference itself, and for a suite or a model without the reference."""
    p_values: Mapping[str, float | None]
    """p-values by reference, corrected for the number of policies by Holm's method."""
    hot: Cost
    """Mean over episodes of the peak of the hot entries."""
    cold: Cost
    """Mean over episodes of the cold tier with its index at the end, as a share of the baseline's
    hot and cold bytes."""
    whole: Cost
    """Mean over episodes of hot and cold bytes together."""
    worst_hot: Cost
    """Maximum over episodes of the peak of the hot entries."""
    worst: Cost
    """Maximum over episodes of hot and cold bytes together."""
    mean: Cost
    """Mean over episodes of the mean hot bytes over steps."""
    looks: float | None
    """Looks back per token of the replies; None if no row records them."""
    look_bytes: float | None
    """Bytes that looks read per token of the replies; None if no row records them."""


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
    lines = [_policy_line(summary, summaries, against) for summary in summaries]
    for place in {(each.suite, each.model) for each in summaries}:
        own = [i for i, s in enumerate(summaries) if (s.suite, s.model) == place]
        for name in against:
            found = corrected_p_values([lines[i].against[name] for i in own])
            for i, p_value in zip(own, found, strict=True):
                lines[i] = replace(lines[i], p_values={**lines[i].p_values, name: p_value})
    return lines


def distance_bands(lines: Sequence[PolicyLine]) -> list[str]:
    """Return the bands of distances that contain tasks, or nothing if there is only one band."""
    return _present(_DISTANCES, [line.by_distance for line in lines])


def length_bands(lines: Sequence[PolicyLine]) -> list[str]:
    """Return the bands of lengths that contain tasks, or nothing if there is only one band."""
    return _present(_LENGTHS, [line.by_length for line in lines])


def _present(bands: Bands, rates: Sequence[Mapping[str, Rate]]) -> list[str]:
    found = [name for _, name in reversed(bands) if any(name in each for each in rates)]
    return found if len(found) > 1 else []


def has_cold_tier(lines: Sequence[PolicyLine]) -> bool:
    """Return whether a policy keeps evicted entries."""
    return any(line.cold.bytes for line in lines)


def seem_to_disagree(lines: Sequence[PolicyLine]) -> bool:
    """Return whether the interval of a comparison excludes 0 although its p-value is above 0.05."""
    found = [
        (pairs.interval, line.p_values.get(name))
        for line in lines
        for name, pairs in line.against.items()
        if pairs is not None and pairs.clusters
    ]
    return any(p is not None and p > LEVEL and not low <= 0 <= high for (low, high), p in found)


def looks_of(line: PolicyLine) -> str:
    """Format the looks back per token of the replies, and the bytes that they read per token; a
    dash stands for none."""
    if not line.looks:
        return "-"
    read = f", {human_bytes(line.look_bytes)}" if line.look_bytes else ""
    return f"{100 * line.looks:.1f} %{read}"


def references(lines: Sequence[PolicyLine]) -> list[str]:
    """Return the names of the reference policies."""
    return list(lines[0].against)


def tokens_of(summary: Summary) -> str:
    """Format the mean number of tokens that an episode reads; a dash stands for none."""
    read = summary.mean_tokens_read
    return "-" if read is None else f"{read:,.0f}"


def points(pairs: Paired) -> str:
    """Format the difference of two success rates in points, with its interval."""
    low, high = pairs.interval
    return f"{100 * pairs.difference:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


LEGEND = (
    "Points: difference of the success rates, with its 95 % interval from a bootstrap over tasks. "
    f"As good: the interval lies above -{100 * MARGIN:.0f} points, of {FEWEST} tasks or more. p: "
    "exact sign-flip test over tasks, corrected for the number of policies by Holm's method."
)
"""What the comparisons of a table say."""


BYTES = (
    "hot: peak of the entries that every token attends to. cold: evicted entries that may come "
    "back, at the end. all: both. Means over episodes. A budget bounds the hot bytes. On a CPU "
    "cold entries lie in the same memory, so that a process needs all bytes; with a GPU the cold "
    "ones are on the host."
)
"""What the bytes of a table are."""

WHEN_INT4 = (
    "A cold tier bounds the bytes that a token attends to, and the memory of a GPU; it does not "
    "save memory in all, because it keeps what was evicted. Where all bytes count, as on a CPU, "
    "int4 is the better choice: it evicts nothing and needs fewer bytes than a cold tier in 8 "
    "bits. Its cache and the time of a token grow with every page, however, while hot bytes stay "
    "within the budget."
)
"""Why the fewest hot bytes may not be the best choice."""

EXCLUDES_ZERO = (
    "An interval may exclude 0 where p is above 0.05. The two answer different questions: the "
    "interval says how far the difference would move with other tasks, by drawing tasks again, "
    "and is of this policy alone; p says how often signs drawn at random would give a difference "
    "as large, and is corrected for the number of policies. Then take the difference as not "
    "shown."
)
"""Why an interval and a p-value can seem to disagree."""


def p_value(value: float) -> str:
    """Format a p-value as `0.021` or `< 0.001`."""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def markdown(lines: Sequence[PolicyLine]) -> str:
    """Return the lines as a Markdown table, success by length as a second one, and a legend."""
    categories = sorted({name for line in lines for name in line.summary.by_category})
    bands, others = distance_bands(lines), references(lines)
    baseline = stored_baseline([line.summary for line in lines])
    cold = has_cold_tier(lines)
    head = [
        "policy",
        "solved",
        *categories,
        *(f"{name} pages back" for name in bands),
        *(f"against {name}" for name in others),
        *(f"{name} (of {baseline})" for name in ("hot", "cold", "all", "largest all", "mean hot")),
        *(("looks and bytes they read, per reply token",) if cold else ()),
        "tokens read",
    ]
    rows = []
    for line in lines:
        summary = line.summary
        rows.append([
            summary.label,
            f"{_counts(summary.success)}, {percent(summary.success.value)}",
            *(_counts(summary.by_category.get(name)) for name in categories),
            *(_counts(line.by_distance.get(name)) for name in bands),
            *(_pairs(line, name) for name in others),
            *(_cost(cost) for cost in (line.hot, line.cold, line.whole, line.worst, line.mean)),
            *((looks_of(line),) if cold else ()),
            tokens_of(summary),
        ])  # fmt: skip
    warning = unreset_warning([row for line in lines for row in line.summary.rows])
    warned = f"\n\n{warning}" if warning else ""
    table = _markdown(head, rows) + warned
    if lengths := length_bands(lines):
        by_length = [
            [line.summary.label, *(_counts(line.by_length.get(name)) for name in lengths)]
            for line in lines
        ]
        columns = ["policy", *(f"{name} tokens" for name in lengths)]
        table += f"\n\n{_markdown(columns, by_length)}{warned}"
    notes = [LEGEND] if any(pairs for line in lines for pairs in line.against.values()) else []
    if seem_to_disagree(lines):
        notes.append(EXCLUDES_ZERO)
    if any(line.hot.bytes is not None for line in lines):
        notes += [BYTES, WHEN_INT4] if cold else [BYTES]
    return "\n\n".join([table, *notes])


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose columns after the first are aligned to the right."""
    lines = [head, ["---", *("--:" for _ in head[1:])], *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def _named(name: str, summaries: Sequence[Summary]) -> Summary | None:
    exact = [summary for summary in summaries if summary.label == name]
    return next(iter(exact + [summary for summary in summaries if summary.policy == name]), None)


def _policy_line(
    summary: Summary, summaries: Sequence[Summary], against: Sequence[str]
) -> PolicyLine:
    peers = [
        other for other in summaries if (other.suite, other.model) == (summary.suite, summary.model)
    ]
    pairs: dict[str, Paired | None] = {}
    for name in against:
        other = _named(name, peers)
        pairs[name] = None
        if other is not None and other is not summary:
            pairs[name] = compare(other.rows, summary.rows)
    baseline = next(other for other in peers if other.against is None)
    lengths = _measured(baseline, lambda row: row.kv_seen_tokens)
    return PolicyLine(
        summary=summary,
        by_distance=_rates(_DISTANCES, summary, lambda row: row.memory_distance_pages),
        by_length=_rates(_LENGTHS, summary, lambda row: lengths.get(row.unit)),
        against=pairs,
        p_values={},
        hot=_costs(summary, baseline, lambda row: row.kv_peak_bytes, figures.fmean),
        cold=_cold(summary, baseline),
        whole=_costs(summary, baseline, lambda row: row.kv_all_bytes, figures.fmean),
        worst_hot=_costs(summary, baseline, lambda row: row.kv_peak_bytes, max),
        worst=_costs(summary, baseline, lambda row: row.kv_all_bytes, max),
        mean=_costs(summary, baseline, lambda row: row.kv_mean_bytes, figures.fmean),
        looks=_per_reply_token(summary, lambda row: row.looks),
        look_bytes=_per_reply_token(summary, lambda row: row.look_bytes),
    )


def _cold(summary: Summary, baseline: Summary) -> Cost:
    held = _measured(summary, lambda row: row.kv_stored_cold_bytes)
    theirs = _measured(baseline, lambda row: row.kv_all_bytes)
    shared = [unit for unit in held if theirs.get(unit)]
    if not summary.cold_bytes or not shared:
        return Cost(summary.cold_bytes, None)
    share = sum(held[unit] for unit in shared) / sum(theirs[unit] for unit in shared)
    return Cost(summary.cold_bytes, share)


def _per_reply_token(summary: Summary, measure: Callable[[Row], int | None]) -> float | None:
    rows = [row for row in summary.rows if measure(row) is not None and row.tokens_out]
    if not rows:
        return None
    return sum(measure(row) or 0 for row in rows) / sum(row.tokens_out or 0 for row in rows)


def _rates(bands: Bands, summary: Summary, measure: Callable[[Row], int | None]) -> dict[str, Rate]:
    """Return the success of the measured rows by band, from the lowest band to the highest."""
    successes: dict[str, list[bool]] = {name: [] for _, name in reversed(bands)}
    for row in summary.rows:
        if (value := measure(row)) is not None:
            band = next(name for least, name in bands if value >= least)
            successes[band].append(row.success)
    return {name: rate(found) for name, found in successes.items() if found}


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


def _measured(summary: Summary, measure: Callable[[Row], int | None]) -> dict[Unit, int]:
    return {row.unit: held for row in summary.rows if (held := measure(row)) is not None}


def _counts(rate: Rate | None) -> str:
    return "-" if rate is None else f"{rate.num_successes}/{rate.num_episodes}"


def _pairs(line: PolicyLine, reference: str) -> str:
    counts, p = line.against.get(reference), line.p_values.get(reference)
    if counts is None or p is None:
        return "-"
    as_good = ", as good" if counts.is_as_good else ""
    return (
        f"{counts.only_second} won, {counts.only_first} lost, {points(counts)} points, "
        f"p {p_value(p)}{as_good}"
    )


def _cost(cost: Cost) -> str:
    share = "" if cost.share is None else f" ({percent(cost.share)})"
    return human_bytes(cost.bytes or None) + share
