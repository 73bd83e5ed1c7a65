"""Summaries of rows by policy, for the terminal and the report."""

import json
import statistics as figures
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentkv_tasks.report.statistics import (
    Paired,
    Rate,
    bootstrap_interval,
    macro_average,
    paired,
    rate,
)
from agentkv_tasks.results import FAILURES, Row

BASELINE = "full"


@dataclass(frozen=True, slots=True)
class Summary:
    """Success and cost of one policy on one model."""

    label: str
    """Name of the policy, with its model and parameters if they distinguish policies of one run."""
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
    kv_peak_bytes: float | None
    """Mean over episodes of the peak bytes; None for models without a cache."""
    kv_peak_max_bytes: int | None
    kv_mean_bytes: float | None
    peak_ratio: float | None
    """Mean peak of the baseline divided by the mean peak of this policy, on the episodes that both
    ran."""
    allocator_peak_bytes: int | None
    rss_peak_bytes: int | None
    mean_steps: float
    parse_failures: int
    action_failures: int
    failures: Mapping[str, int]
    """Episodes that the harness ended, by status; `success` counts them as failures."""
    mean_seconds: float


def summarize(rows: Sequence[Row]) -> list[Summary]:
    """Return a summary for each policy, parameters and model; the baseline `full` comes first.

    Policies are compared with `full` on the same model, or with the first policy if there is none.
    """
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        parameters = json.dumps(row.policy_parameters, sort_keys=True)
        groups.setdefault((row.model, row.policy, parameters), []).append(row)
    labels = _labels(list(groups))
    baselines: dict[str, list[Row]] = {}
    for (model, policy, _), group in groups.items():
        if model not in baselines or policy == BASELINE:
            baselines[model] = group
    return [
        _summary(labels[key], group, baselines[key[0]])
        for key, group in sorted(groups.items(), key=lambda item: item[0][1] != BASELINE)
    ]


def _summary(label: str, rows: list[Row], baseline: list[Row]) -> Summary:
    by_task: dict[tuple[str, int], list[bool]] = {}  # worlds share their templates, as seeds do
    by_category: dict[str, list[bool]] = {}
    for row in rows:
        by_task.setdefault((row.suite, row.task_id), []).append(row.success)
        by_category.setdefault(row.category or "other", []).append(row.success)
    category_rates = {name: rate(successes) for name, successes in sorted(by_category.items())}
    is_baseline = rows is baseline
    peaks = [row.kv_peak_bytes for row in rows if row.kv_peak_bytes is not None]
    means = [row.kv_mean_bytes for row in rows if row.kv_mean_bytes is not None]
    failures = [row.status for row in rows if row.status in FAILURES]
    return Summary(
        label=label,
        policy=rows[0].policy,
        model=rows[0].model,
        rows=tuple(rows),
        success=rate([row.success for row in rows]),
        interval=bootstrap_interval([sum(each) / len(each) for each in by_task.values()]),
        by_category=category_rates,
        macro=macro_average(category_rates),
        against=None if is_baseline else paired(outcomes(baseline), outcomes(rows)),
        kv_peak_bytes=figures.fmean(peaks) if peaks else None,
        kv_peak_max_bytes=max(peaks, default=None),
        kv_mean_bytes=figures.fmean(means) if means else None,
        peak_ratio=None if is_baseline else _peak_ratio(baseline, rows),
        allocator_peak_bytes=_max_or_none([row.allocator_peak_bytes for row in rows]),
        rss_peak_bytes=_max_or_none([row.rss_peak_bytes for row in rows]),
        mean_steps=figures.fmean(row.steps for row in rows),
        parse_failures=sum(row.parse_failures for row in rows),
        action_failures=sum(row.action_failures for row in rows),
        failures={status: failures.count(status) for status in sorted(set(failures))},
        mean_seconds=figures.fmean(row.seconds for row in rows),
    )


def baseline_name(summaries: Sequence[Summary]) -> str:
    """Return the label of the baseline and the dtype of its entries, as `full in bfloat16`.

    The dtype is left out if rows do not record it or if it differs between them.
    """
    baseline = next(summary for summary in summaries if summary.against is None)
    dtypes = {row.settings.get("cache_dtype", "") for row in baseline.rows}
    dtype = dtypes.pop() if len(dtypes) == 1 else ""
    return f"{baseline.label} in {dtype}" if dtype not in ("", "model") else baseline.label


def outcomes(rows: Sequence[Row]) -> dict[tuple[str, int, int, int], bool]:
    """Return the success of each unit that pairs episodes of different policies."""
    return {row.unit: row.success for row in rows}


def _peak_ratio(baseline: Sequence[Row], rows: Sequence[Row]) -> float | None:
    theirs = {row.unit: row.kv_peak_bytes for row in baseline if row.kv_peak_bytes}
    shared = [row for row in rows if row.kv_peak_bytes and row.unit in theirs]
    if not shared:
        return None
    ours = figures.fmean(row.kv_peak_bytes or 0 for row in shared)
    return figures.fmean(theirs[row.unit] or 0 for row in shared) / ours


def _max_or_none(values: Sequence[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _labels(keys: Sequence[tuple[str, str, str]]) -> dict[tuple[str, str, str], str]:
    """Return a name for each group: the policy and what distinguishes it from its namesakes."""
    several_models = len({model for model, _, _ in keys}) > 1
    labels: dict[tuple[str, str, str], str] = {}
    for key in keys:
        model, policy, parameters = key
        same = [json.loads(other) for m, p, other in keys if (m, p) == (model, policy)]
        own = json.loads(parameters)
        differing = [
            f"{name}={own.get(name)}"
            for name in own
            if any(other.get(name) != own.get(name) for other in same)
        ]
        extra = [*differing, *([model] if several_models else [])]
        labels[key] = policy + (f" ({', '.join(extra)})" if extra else "")
    return labels


def human_bytes(count: float | None) -> str:
    """Format bytes as `812 KiB` or `4.2 MiB`; a dash stands for None."""
    if count is None:
        return "-"
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1000 or unit == "GiB":
            return f"{size:.0f} {unit}" if size >= 100 or unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("the last unit takes all")


def percent(share: float) -> str:
    """Format a share as `67.1 %`."""
    return f"{100 * share:.1f} %"
