"""Plots of bytes and seconds over steps, and of success over bytes and over tokens."""

import statistics as figures
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agentkv.terminal import human_bytes
from agentkv.trace import Step, Trace
from agentkv_tasks.report.plot import (
    Plot,
    Series,
    counting,
    from_zero,
    line_plot,
    naming,
    percentages,
)
from agentkv_tasks.report.summary import Summary
from agentkv_tasks.report.tables import PolicyLine, length_bands

_MIN_SHARE = 0.1
"""A curve ends once a smaller share of its episodes continues; few episodes make a noisy mean (our
choice)."""
_MAX_RATIO = 3.0
"""If the highest curve exceeds the next one by this factor, a second plot omits it (our choice)."""
_UNITS = (("MiB", 2.0**20), ("KiB", 2.0**10))


def hot_bytes(step: Step) -> float:
    """Return the bytes of the hot entries after a step."""
    return step.cache_bytes


def all_bytes(step: Step) -> float:
    """Return the bytes of the hot entries and of the cold tier after a step."""
    return step.cache_bytes + step.cold_bytes


def seconds(step: Step) -> float:
    """Return the seconds of a step."""
    return step.seconds


@dataclass(frozen=True, slots=True)
class Curve:
    """Mean of a measure of a policy's steps, over the episodes that reached the step."""

    label: str
    means: tuple[float, ...]
    num_episodes: tuple[int, ...]
    style: int = 0
    """Number of the policy, which decides how it looks in all plots."""


def curves(
    summaries: Sequence[Summary],
    traces: Mapping[str, Trace],
    measure: Callable[[Step], float] = hot_bytes,
) -> list[Curve]:
    """Return the curve of each policy that has traces of episodes with a cache.

    Args:
        summaries: the policies.
        traces: trace by the key of its row.
        measure: what is averaged.
    """
    found = []
    for style, summary in enumerate(summaries):
        episodes = [
            [measure(step) for step in traces[row.key].steps if step.seen_tokens]
            for row in summary.rows
            if row.key in traces
        ]
        episodes = [held for held in episodes if held]
        means, counts = [], []
        for index in range(max(map(len, episodes), default=0)):
            sizes = [held[index] for held in episodes if index < len(held)]
            if len(sizes) < _MIN_SHARE * len(episodes):
                break
            means.append(figures.fmean(sizes))
            counts.append(len(sizes))
        if means:
            found.append(Curve(summary.label, tuple(means), tuple(counts), style))
    return found


def byte_plots(title: str, drawn: Sequence[Curve]) -> list[Plot]:
    """Plot all curves; if the highest one flattens the others, plot those again without it."""
    if not drawn:
        return []
    highest = max(drawn, key=lambda curve: max(curve.means))
    others = [curve for curve in drawn if curve is not highest]
    found = [_byte_plot(title, drawn)]
    if len(others) > 1 and max(highest.means) > _MAX_RATIO * max(
        max(each.means) for each in others
    ):
        found.append(_byte_plot(f"{title}, without {highest.label}", others))
    return found


def seconds_plot(drawn: Sequence[Curve]) -> Plot | None:
    """Plot the seconds of each step; None without curves."""
    if not drawn:
        return None
    return _plot("seconds per step", drawn, 1.0, lambda found: f"{found:.2f} s")


def _byte_plot(title: str, drawn: Sequence[Curve]) -> Plot:
    unit, size = _unit(max(max(curve.means) for curve in drawn))
    return _plot(f"{title}, {unit}", drawn, size, human_bytes)


def _unit(most: float) -> tuple[str, float]:
    return next((each for each in _UNITS if most >= 2 * each[1]), _UNITS[-1])


def _plot(title: str, drawn: Sequence[Curve], size: float, shown: Callable[[float], str]) -> Plot:
    series = [
        Series(
            curve.label,
            tuple((step, held / size) for step, held in enumerate(curve.means, start=1)),
            curve.style,
            f"{shown(curve.means[-1])} after step {len(curve.means)}",
        )
        for curve in drawn
    ]
    most = max(max(curve.means) for curve in drawn)
    steps = counting(max(len(curve.means) for curve in drawn))
    return line_plot(title, series, x=steps, y=from_zero(most / size), x_title="step")


def success_over_bytes(summaries: Sequence[Summary]) -> list[Plot]:
    """Plot the success rate of each policy over its bytes in all and over its hot bytes; nothing if
    fewer than two policies have a cache."""
    cached = [
        (number, each, each.all_bytes, each.hot_bytes)
        for number, each in enumerate(summaries)
        if each.all_bytes and each.hot_bytes
    ]
    if len(cached) < 2:
        return []
    unit, size = _unit(max(both for _, _, both, _ in cached))
    x = from_zero(max(both for _, _, both, _ in cached) / size)

    def plot(name: str, held: Sequence[float]) -> Plot:
        series = [
            Series(
                each.label,
                ((count / size, each.success.value),),
                style,
                f"{each.success.num_successes} of {each.success.num_episodes} with "
                f"{human_bytes(both)}, {human_bytes(hot)} of them hot",
            )
            for (style, each, both, hot), count in zip(cached, held, strict=True)
        ]
        title = f"{name}, {unit}"
        return line_plot("solved, %", series, x=x, y=percentages(), x_title=title)

    return [
        plot("hot and cold bytes", [both for _, _, both, _ in cached]),
        plot("hot bytes", [hot for _, _, _, hot in cached]),
    ]


def success_plot(lines: Sequence[PolicyLine]) -> Plot | None:
    """Plot the success rates over the bands of lengths; None if there are not two bands."""
    bands = length_bands(lines)
    if not bands:
        return None
    series = []
    for number, line in enumerate(lines):
        rates = [(band, line.by_length[band]) for band in bands if band in line.by_length]
        if rates:
            last = rates[-1][1]
            series.append(
                Series(
                    line.summary.label,
                    tuple((bands.index(band), rate.value) for band, rate in rates),
                    number,
                    f"{last.num_successes} of {last.num_episodes} of the longest tasks",
                )
            )
    return line_plot("solved, %", series, x=naming(bands), y=percentages(), x_title="tokens")
