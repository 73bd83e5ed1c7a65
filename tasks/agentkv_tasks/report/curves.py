"""What the caches hold as episodes go on, as a plot: lines and ticks in the units of an SVG."""

import math
import statistics as figures
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentkv.trace import Trace
from agentkv_tasks.report.summary import Summary, human_bytes

WIDTH, HEIGHT = 640, 340
LEFT, RIGHT, TOP, BOTTOM = 70, 14, 34, 48
"""Margins, wide enough for labels that a narrow screen shows larger."""
_LEAST_SHARE = 0.1
"""A line ends where a smaller share of its episodes goes on: the mean of few jumps (our choice)."""
_FLAT = 3.0
"""So many times the next highest curve, the highest leaves too little room (our choice)."""
_UNITS = (("MiB", 2.0**20), ("KiB", 2.0**10))
NUM_STYLES = 12
"""Colours and dashes that the style sheet has."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Mean live cache bytes of one policy after step 1, 2, ... of the episodes that got there."""

    label: str
    means: tuple[float, ...]
    num_episodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """A curve as it is drawn."""

    label: str
    style: int
    points: str
    """`x,y` pairs, as an SVG polyline has them."""
    end: tuple[float, float]
    last: str
    """What the curve ends at, in words."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A label at an axis, and how far along it stands."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Plot:
    """All that a template needs to draw curves on common axes, both from zero."""

    title: str
    lines: tuple[Line, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


def curves(summaries: Sequence[Summary], traces: Mapping[str, Trace]) -> list[Curve]:
    """The curve of each policy of which any episode has a trace with a cache in it.

    Args:
        summaries: the policies.
        traces: by the key of their row.
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
            there = [held[index] for held in episodes if index < len(held)]
            if len(there) < _LEAST_SHARE * len(episodes):
                break
            means.append(figures.fmean(there))
            counts.append(len(there))
        if means:
            found.append(Curve(summary.label, tuple(means), tuple(counts)))
    return found


def plots(drawn: Sequence[Curve]) -> list[Plot]:
    """All curves in one plot, and where the highest presses the others flat, those in another."""
    if not drawn:
        return []
    styled = [(number % NUM_STYLES, curve) for number, curve in enumerate(drawn)]
    highest = max(drawn, key=lambda curve: max(curve.means))
    others = [(style, curve) for style, curve in styled if curve is not highest]
    found = [_plot("live cache, mean", styled)]
    if len(others) > 1 and max(highest.means) > _FLAT * max(max(each.means) for _, each in others):
        found.append(_plot(f"the same without {highest.label}", others))
    return found


def _plot(title: str, styled: Sequence[tuple[int, Curve]]) -> Plot:
    drawn = [curve for _, curve in styled]
    most = max(max(curve.means) for curve in drawn)
    num_steps = max(len(curve.means) for curve in drawn)
    unit, size = next((each for each in _UNITS if most >= 2 * each[1]), _UNITS[-1])
    pace = _pace(most / size, 5)
    top = max(pace, math.ceil(most / size / pace) * pace)

    def x(step: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (step - 1) / max(1, num_steps - 1)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top

    lines = []
    for style, curve in styled:
        at = [(x(step), y(held / size)) for step, held in enumerate(curve.means, start=1)]
        last = f"{human_bytes(curve.means[-1])} after {len(at)} steps"
        points = " ".join(f"{left:.1f},{down:.1f}" for left, down in at)
        end = round(at[-1][0], 1), round(at[-1][1], 1)
        lines.append(Line(curve.label, style, points, end, last))
    stride = max(1, round(_pace(num_steps, 8)))
    steps = [1, *(step for step in range(stride, num_steps + 1, stride) if step > 1)]
    levels = [pace * number for number in range(round(top / pace) + 1)]
    return Plot(
        f"{title}, {unit}",
        lines=tuple(lines),
        x_ticks=tuple(Tick(round(x(step), 1), str(step)) for step in steps),
        y_ticks=tuple(Tick(round(y(at), 1), f"{at:,.{_digits(pace)}f}") for at in levels),
    )


def _pace(most: float, num_ticks: int) -> float:
    """1, 2 or 5 times a power of ten, so that about `num_ticks` of them reach `most`."""
    rough = max(most, 1e-3) / num_ticks
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough)


def _digits(pace: float) -> int:
    """Decimals that tell multiples of `pace` apart."""
    return max(0, -math.floor(math.log10(pace)))
