"""Summaries of rows by policy, for the terminal and the report."""

import json
import statistics as figures
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from agentkv_tasks.report.statistics import (
    Paired,
    Rate,
    bootstrap_interval,
    holm,
    macro_average,
    paired,
    rate,
)
from agentkv_tasks.results import FAILURES, Row, Unit

BASELINE = "full"


class _Group(NamedTuple):
    """Key of a summary: all of its rows have these values."""

    suite: str
    model: str
    policy: str
    parameters: str
    """Parameters of the policy that are not None, as JSON."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Success and cost of one policy on one model and one suite."""

    label: str
    """Name of the policy, with what distinguishes it from the others: parameters, model, suite."""
    suite: str
    policy: str
    model: str
    rows: tuple[Row, ...]
    success: Rate
    interval: tuple[float, float]
    """95 % interval of the success rate, by bootstrap over tasks."""
    by_category: Mapping[str, Rate]
    macro: float
    """Mean of the success rates of the categories."""
    against: Paired | None
    """Paired counts, where the baseline comes first; None for the baseline itself."""
    p_value: float | None
    """Of that comparison, corrected for the number of policies by Holm's method."""
    hot_bytes: float | None
    """Mean over episodes of the peak of the hot entries; None for models without a cache."""
    cold_bytes: float | None
    """Mean over episodes of the cold tier with its index at the end."""
    all_bytes: float | None
    """Mean over episodes of both."""
    hot_ratio: float | None
    """Mean `hot_bytes` of the baseline divided by those of this policy, on the episodes that both
    ran; None for the baseline."""
    all_ratio: float | None
    """The same of `all_bytes`: how many times smaller the cache is where hot and cold entries lie
    in one memory, as on a CPU."""
    allocator_peak_bytes: int | None
    rss_peak_bytes: int | None
    mean_steps: float
    parse_failures: int
    action_failures: int
    failures: Mapping[str, int]
    """Episodes that the harness ended, by status; `success` counts them as failures."""
    mean_seconds: float
    step_seconds: float | None
    """Seconds of all episodes divided by their steps; None without a step."""
    reading_seconds: float | None
    """The part of `step_seconds` in which the model reads."""
    decoding_seconds: float | None
    """The part of `step_seconds` in which the model writes."""
    mean_tokens_read: float | None
    """Mean over episodes of the tokens of all prompts; None for models without tokens."""


def summarize(rows: Sequence[Row]) -> list[Summary]:
    """Return a summary for each suite, model, policy and parameters.

    Figures never mix suites: tasks of different suites have nothing in common. Policies are
    compared with `full` on the same suite and model, or with the first policy if there is none. The
    suites keep their order, and the baseline `full` comes first in each.
    """
    groups: dict[_Group, list[Row]] = {}
    for row in rows:
        parameters = json.dumps(row.set_parameters, sort_keys=True)
        groups.setdefault(_Group(row.suite, row.model, row.policy, parameters), []).append(row)
    labels = _labels(list(groups))
    baselines: dict[tuple[str, str], list[Row]] = {}
    for key, group in groups.items():
        place = key.suite, key.model
        if place not in baselines or key.policy == BASELINE:
            baselines[place] = group
    suites = list(dict.fromkeys(key.suite for key in groups))
    ordered = sorted(groups, key=lambda key: (suites.index(key.suite), key.policy != BASELINE))
    found = [_summary(labels[key], groups[key], baselines[key.suite, key.model]) for key in ordered]
    for place in baselines:
        own = [i for i, each in enumerate(found) if (each.suite, each.model) == place]
        corrected = corrected_p_values([found[i].against for i in own])
        for i, p_value in zip(own, corrected, strict=True):
            found[i] = replace(found[i], p_value=p_value)
    return found


def compare(first: Sequence[Row], second: Sequence[Row]) -> Paired:
    """Compare two policies of one suite on the episodes that both ran; a task is a cluster."""
    return paired(
        outcomes(first), outcomes(second), cluster=lambda unit: (unit.suite, unit.task_id)
    )


def corrected_p_values(comparisons: Sequence[Paired | None]) -> list[float | None]:
    """Return the p-values of several policies against one reference, corrected by Holm's method.

    The reference itself has None.
    """
    corrected = iter(holm([each.p_value for each in comparisons if each is not None]))
    return [None if each is None else next(corrected) for each in comparisons]


def baseline_name(summaries: Sequence[Summary]) -> str:
    """Return the label of the baseline, or the names of its policies if there are several."""
    baselines = [summary for summary in summaries if summary.against is None]
    if len(baselines) == 1:
        return baselines[0].label
    return " or ".join(dict.fromkeys(summary.policy for summary in baselines))


def _summary(label: str, rows: list[Row], baseline: list[Row]) -> Summary:
    by_task: dict[int, list[bool]] = {}  # worlds share their templates, as seeds do
    by_category: dict[str, list[bool]] = {}
    for row in rows:
        by_task.setdefault(row.task_id, []).append(row.success)
        by_category.setdefault(row.category or "other", []).append(row.success)
    category_rates = {name: rate(successes) for name, successes in sorted(by_category.items())}
    is_baseline = rows is baseline
    cached = [row for row in rows if row.kv_peak_bytes is not None]
    failures = [row.status for row in rows if row.status in FAILURES]
    return Summary(
        label=label,
        suite=rows[0].suite,
        policy=rows[0].policy,
        model=rows[0].model,
        rows=tuple(rows),
        success=rate([row.success for row in rows]),
        interval=bootstrap_interval([sum(each) / len(each) for each in by_task.values()]),
        by_category=category_rates,
        macro=macro_average(category_rates),
        against=None if is_baseline else compare(baseline, rows),
        p_value=None,
        hot_bytes=_mean_or_none([row.kv_peak_bytes for row in cached]),
        cold_bytes=_mean_or_none([row.kv_stored_cold_bytes for row in cached]),
        all_bytes=_mean_or_none([row.kv_all_bytes for row in cached]),
        hot_ratio=None if is_baseline else _ratio(baseline, rows, lambda row: row.kv_peak_bytes),
        all_ratio=None if is_baseline else _ratio(baseline, rows, lambda row: row.kv_all_bytes),
        allocator_peak_bytes=_max_or_none([row.allocator_peak_bytes for row in rows]),
        rss_peak_bytes=_max_or_none([row.rss_peak_bytes for row in rows]),
        mean_steps=figures.fmean(row.steps for row in rows),
        parse_failures=sum(row.parse_failures for row in rows),
        action_failures=sum(row.action_failures for row in rows),
        failures={status: failures.count(status) for status in sorted(set(failures))},
        mean_seconds=figures.fmean(row.seconds for row in rows),
        step_seconds=_per_step(rows, lambda row: row.seconds),
        reading_seconds=_per_step(rows, lambda row: row.prefill_s),
        decoding_seconds=_per_step(rows, lambda row: row.decode_s),
        mean_tokens_read=_mean_or_none([row.tokens_in for row in rows]),
    )


def stored_baseline(summaries: Sequence[Summary]) -> str:
    """Return the name of the baseline and the dtype of its entries, as `full in bfloat16`.

    The dtype is left out if rows do not record it or if it differs between them.
    """
    baselines = [summary for summary in summaries if summary.against is None]
    dtypes = {row.settings.get("cache_dtype", "") for each in baselines for row in each.rows}
    dtype = dtypes.pop() if len(dtypes) == 1 else ""
    name = baseline_name(summaries)
    return name if dtype in ("", "model") else f"{name} in {dtype}"


def outcomes(rows: Sequence[Row]) -> dict[Unit, bool]:
    """Return the success of each unit that pairs episodes of different policies."""
    return {row.unit: row.success for row in rows}


def _ratio(
    baseline: Sequence[Row], rows: Sequence[Row], measure: Callable[[Row], int | None]
) -> float | None:
    theirs = {row.unit: held for row in baseline if (held := measure(row))}
    ours = {row.unit: held for row in rows if row.unit in theirs and (held := measure(row))}
    return sum(theirs[unit] for unit in ours) / sum(ours.values()) if ours else None


def _per_step(rows: Sequence[Row], measure: Callable[[Row], float]) -> float | None:
    steps = sum(row.steps for row in rows)
    return sum(map(measure, rows)) / steps if steps else None


def _mean_or_none(values: Sequence[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return figures.fmean(known) if known else None


def _max_or_none(values: Sequence[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _labels(groups: Sequence[_Group]) -> dict[_Group, str]:
    """Return a name for each group: the policy and what distinguishes it from its namesakes."""
    several_models = len({group.model for group in groups}) > 1
    several_suites = len({group.suite for group in groups}) > 1
    labels: dict[_Group, str] = {}
    for group in groups:
        same = [json.loads(other.parameters) for other in groups if other[:3] == group[:3]]
        own = json.loads(group.parameters)
        extra = [
            f"{name}={own.get(name)}"
            for name in dict.fromkeys(name for each in same for name in each)
            if any(other.get(name) != own.get(name) for other in same)
        ]
        extra += [group.model] * several_models + [group.suite] * several_suites
        labels[group] = group.policy + (f" ({', '.join(extra)})" if extra else "")
    return labels


def percent(share: float) -> str:
    """Format a share as `67.1 %`."""
    return f"{100 * share:.1f} %"
