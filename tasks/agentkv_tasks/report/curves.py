"""Plots of cache bytes over steps and of success over tokens."""

import statistics as figures
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentkv.terminal import human_bytes
from agentkv.trace import Trace
from agentkv_tasks.report.plot import (
    NUM_STYLES,
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


@dataclass(frozen=True, slots=True)
class Curve:
    """Mean cache bytes of a policy after each step, over the episodes that reached the step."""

    label: str
    means: tuple[float, ...]
    num_episodes: tuple[int, ...]


def curves(summaries: Sequence[Summary], traces: Mapping[str, Trace]) -> list[Curve]:
    """Return the curve of each policy that has traces of episodes with a cache.

    Args:
        summaries: the policies.
        traces: trace by the key of its row.
    """
    found = []
    for summary in summaries:
        episodes = [
            [step.cache_bytes for step in traces[row.key].steps if step.seen_tokens]
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
            found.append(Curve(summary.label, tuple(means), tuple(counts)))
    return found


def plots(drawn: Sequence[Curve]) -> list[Plot]:
    """Plot all curves; if the highest one flattens the others, plot those again without it."""
    if not drawn:
        return []
    styled = [(number % NUM_STYLES, curve) for number, curve in enumerate(drawn)]
    highest = max(drawn, key=lambda curve: max(curve.means))
    others = [(style, curve) for style, curve in styled if curve is not highest]
    found = [_plot("mean cache size", styled)]
    if len(others) > 1 and max(highest.means) > _MAX_RATIO * max(
        max(each.means) for _, each in others
    ):
        found.append(_plot(f"mean cache size without {highest.label}", others))
    return found


def _plot(title: str, styled: Sequence[tuple[int, Curve]]) -> Plot:
    drawn = [curve for _, curve in styled]
    most = max(max(curve.means) for curve in drawn)
    unit, size = next((each for each in _UNITS if most >= 2 * each[1]), _UNITS[-1])
    series = [
        Series(
            curve.label,
            tuple((step, held / size) for step, held in enumerate(curve.means, start=1)),
            style,
            f"{human_bytes(curve.means[-1])} after step {len(curve.means)}",
        )
        for style, curve in styled
    ]
    steps = counting(max(len(curve.means) for curve in drawn))
    return line_plot(f"{title}, {unit}", series, x=steps, y=from_zero(most / size), x_title="step")


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
