"""Plots of cache bytes over steps and of success over tokens: lines and ticks in an SVG's units."""

import math
import statistics as figures
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentkv.trace import Trace
from agentkv_tasks.report.summary import Summary, human_bytes
from agentkv_tasks.report.tables import PolicyLine, length_bands

WIDTH, HEIGHT = 640, 340
LEFT, RIGHT, TOP, BOTTOM = 70, 14, 34, 48
"""Margins, wide enough for the larger labels of narrow screens."""
_MIN_SHARE = 0.1
"""A curve ends once a smaller share of its episodes continues; few episodes make a noisy mean (our
choice)."""
_MAX_RATIO = 3.0
"""If the highest curve exceeds the next one by this factor, a second plot omits it (our choice)."""
_UNITS = (("MiB", 2.0**20), ("KiB", 2.0**10))
NUM_STYLES = 12
"""Number of line styles in the style sheet."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Mean cache bytes of a policy after each step, over the episodes that reached the step."""

    label: str
    means: tuple[float, ...]
    num_episodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """A curve in the units of the plot."""

    label: str
    style: int
    points: str
    """Points of an SVG polyline: `x,y` pairs."""
    end: tuple[float, float]
    last: str
    """Text for the last point of the curve."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A label and its place on an axis."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Plot:
    """Curves on common axes that start at zero, ready for the template."""

    title: str
    lines: tuple[Line, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    x_title: str = "step"
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


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
    num_steps = max(len(curve.means) for curve in drawn)
    unit, size = next((each for each in _UNITS if most >= 2 * each[1]), _UNITS[-1])
    step_size = _tick_step(most / size, 5)
    top = max(step_size, math.ceil(most / size / step_size) * step_size)

    def x(step: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (step - 1) / max(1, num_steps - 1)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top

    lines = []
    for style, curve in styled:
        at = [(x(step), y(held / size)) for step, held in enumerate(curve.means, start=1)]
        last = f"{human_bytes(curve.means[-1])} after step {len(at)}"
        points = " ".join(f"{left:.1f},{down:.1f}" for left, down in at)
        end = round(at[-1][0], 1), round(at[-1][1], 1)
        lines.append(Line(curve.label, style, points, end, last))
    stride = max(1, round(_tick_step(num_steps, 8)))
    steps = [1, *(step for step in range(stride, num_steps + 1, stride) if step > 1)]
    levels = [step_size * number for number in range(round(top / step_size) + 1)]
    return Plot(
        f"{title}, {unit}",
        lines=tuple(lines),
        x_ticks=tuple(Tick(round(x(step), 1), str(step)) for step in steps),
        y_ticks=tuple(Tick(round(y(at), 1), f"{at:,.{_digits(step_size)}f}") for at in levels),
    )


def success_plot(lines: Sequence[PolicyLine]) -> Plot | None:
    """Plot the success rates over the bands of lengths; None if there are not two bands."""
    bands = length_bands(lines)
    if not bands:
        return None

    def x(band: str) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (bands.index(band) + 0.5) / len(bands)

    def y(share: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    drawn = []
    for number, line in enumerate(lines):
        rates = [(band, line.by_length[band]) for band in bands if band in line.by_length]
        if not rates:
            continue
        points = [(x(band), y(rate.value)) for band, rate in rates]
        last = rates[-1][1]
        drawn.append(
            Line(
                line.summary.label,
                number % NUM_STYLES,
                " ".join(f"{left:.1f},{down:.1f}" for left, down in points),
                (round(points[-1][0], 1), round(points[-1][1], 1)),
                f"{last.num_successes} of {last.num_episodes} of the longest tasks",
            )
        )
    return Plot(
        "solved, %",
        lines=tuple(drawn),
        x_ticks=tuple(Tick(round(x(band), 1), band) for band in bands),
        y_ticks=tuple(Tick(round(y(at / 100), 1), str(at)) for at in range(0, 101, 20)),
        x_title="tokens",
    )


def _tick_step(most: float, num_ticks: int) -> float:
    """Return 1, 2 or 5 times a power of ten, so that about `num_ticks` steps reach `most`."""
    rough = max(most, 1e-3) / num_ticks
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough)


def _digits(step_size: float) -> int:
    """Return the decimals that distinguish multiples of `step_size`."""
    return max(0, -math.floor(math.log10(step_size)))
