"""Line plots: series on two axes, as lines and ticks in an SVG's units."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

WIDTH, HEIGHT = 640, 340
LEFT, RIGHT, TOP, BOTTOM = 70, 14, 34, 48
"""Margins, wide enough for the larger labels of narrow screens."""
NUM_STYLES = 12
"""Number of line styles in the style sheet."""
_MARKERS = (
    "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z",
    "M-4,-4H4V4H-4z",
    "M0,-5L5,4H-5z",
    "M0,-5.5L5.5,0L0,5.5L-5.5,0z",
    "M0,5L5,-4H-5z",
    "M-1.7,-5H1.7V-1.7H5V1.7H1.7V5H-1.7V1.7H-5V-1.7H-1.7z",
)
"""Outlines of the marks of points, so that a plot of single points needs no colours."""
_LABEL_WIDTH, _LABEL_HEIGHT = 11.0, 24.0
"""Width of a character and height of a label, in the larger letters of narrow screens."""


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one line in data units; points that are not finite are left out."""

    label: str
    points: tuple[tuple[float, float], ...]
    style: int
    last: str = ""
    """Text for the last point."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of values with its ticks."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    """Values and labels."""
    is_log: bool = False

    def share(self, value: float) -> float:
        """Return the place of a value, 0 at `low` and 1 at `high`."""
        low, high = self._scaled(self.low), self._scaled(self.high)
        return (self._scaled(value) - low) / (high - low) if high > low else 0.0

    def _scaled(self, value: float) -> float:
        return math.log2(value) if self.is_log else value


@dataclass(frozen=True, slots=True)
class PlotLine:
    """A series in the units of the plot."""

    label: str
    style: int
    points: str
    """Points of an SVG polyline: `x,y` pairs."""
    end: tuple[float, float]
    last: str
    """Text for the last point of the line."""
    label_at: tuple[float, float, str] | None = None
    """Place and anchor of the label of a single point; None for a line, and where it would cover
    something."""

    @property
    def is_point(self) -> bool:
        """True for a single point."""
        return " " not in self.points

    @property
    def marker(self) -> str:
        """Outline of the mark at the last point, around 0, 0."""
        return _MARKERS[self.style % len(_MARKERS)]


@dataclass(frozen=True, slots=True)
class Tick:
    """A label and its place on an axis."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Plot:
    """Lines on common axes, ready for the template."""

    title: str
    lines: tuple[PlotLine, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    x_title: str
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


@dataclass(frozen=True, slots=True)
class Figure:
    """Plots side by side that share a legend, and what they show."""

    caption: str
    plots: tuple[Plot, ...]


def line_plot(title: str, series: Sequence[Series], *, x: Axis, y: Axis, x_title: str) -> Plot:
    """Draw the series on two axes; a series without points is left out."""

    def across(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * x.share(value)

    def down(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * y.share(value)

    lines = []
    for each in series:
        at = [(across(a), down(b)) for a, b in each.points if math.isfinite(a) and math.isfinite(b)]
        if at:
            points = " ".join(f"{left:.1f},{below:.1f}" for left, below in at)
            end = round(at[-1][0], 1), round(at[-1][1], 1)
            lines.append(PlotLine(each.label, each.style % NUM_STYLES, points, end, each.last))
    return Plot(
        title,
        _labelled(lines),
        x_ticks=tuple(Tick(round(across(value), 1), label) for value, label in x.ticks),
        y_ticks=tuple(Tick(round(down(value), 1), label) for value, label in y.ticks),
        x_title=x_title,
    )


def _labelled(lines: Sequence[PlotLine]) -> tuple[PlotLine, ...]:
    """Give the single points labels that cover no mark, no other label and no edge of the plot."""
    taken = [(x - 8, y - 8, x + 8, y + 8) for x, y in (line.end for line in lines)]
    found = []
    for line in lines:
        (x, y), width = line.end, _LABEL_WIDTH * len(line.label)
        places = (
            (x + 12, y, "start", x + 12),
            (x - 12, y, "end", x - 12 - width),
            (x, y - 22, "middle", x - width / 2),
            (x, y + 22, "middle", x - width / 2),
        )
        for at, height, anchor, left in places if line.is_point else ():
            box = left, height - _LABEL_HEIGHT / 2, left + width, height + _LABEL_HEIGHT / 2
            is_inside = (
                left >= LEFT and box[2] <= WIDTH and TOP <= box[1] and box[3] <= HEIGHT - BOTTOM
            )
            if is_inside and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                line = replace(line, label_at=(round(at, 1), round(height, 1), anchor))
                break
        found.append(line)
    return tuple(found)


def _overlap(
    one: tuple[float, float, float, float], other: tuple[float, float, float, float]
) -> bool:
    near = 0.1  # places are rounded to a tenth
    return (
        one[0] < other[2] + near
        and other[0] < one[2] + near
        and one[1] < other[3] + near
        and other[1] < one[3] + near
    )


def over_lengths(title: str, unit: str, values: Iterable[tuple[str, int, float | None]]) -> Plot:
    """Draw values over lengths in tokens, which are on a logarithmic axis.

    Args:
        title: what is drawn, without its unit.
        values: label, length and value of each point; None: no point. At least one has a value.
    """
    by_label: dict[str, dict[int, float]] = {}
    for label, length, value in values:
        if value is not None:
            by_label.setdefault(label, {})[length] = value
    series = [
        Series(label, tuple(sorted(found.items())), number, f"{found[max(found)]:.2f} {unit}")
        for number, (label, found) in enumerate(by_label.items())
    ]
    points = [point for each in series for point in each.points]
    return line_plot(
        f"{title}, {unit}",
        series,
        x=doubling([length for length, _ in points]),
        y=from_zero(max(value for _, value in points)),
        x_title="tokens seen",
    )


def from_zero(most: float, num_ticks: int = 5) -> Axis:
    """Return an axis from zero to the first tick that is not below `most`."""
    return spanning(0.0, most, num_ticks)


def spanning(least: float, most: float, num_ticks: int = 5) -> Axis:
    """Return an axis whose ticks enclose both values."""
    size = _tick_step(most - least, num_ticks)
    first = math.floor(least / size)
    last = max(first + 1, math.ceil(most / size))
    ticks = [size * number for number in range(first, last + 1)]
    labels = tuple((value, f"{value:,.{_digits(size)}f}") for value in ticks)
    return Axis(ticks[0], ticks[-1], labels)


def counting(last: int, num_ticks: int = 8) -> Axis:
    """Return an axis from 1 to `last` with whole ticks."""
    stride = max(1, round(_tick_step(last, num_ticks)))
    ticks = [1, *(count for count in range(stride, last + 1, stride) if count > 1)]
    return Axis(1, last, tuple((count, str(count)) for count in ticks))


def doubling(values: Sequence[float]) -> Axis:
    """Return a logarithmic axis with a tick at each value; all are above zero."""
    ticks = sorted(set(values))
    return Axis(ticks[0], ticks[-1], tuple((value, f"{value:,.0f}") for value in ticks), True)


def naming(names: Sequence[str]) -> Axis:
    """Return an axis of names; the value of each is its number, from 0."""
    return Axis(-0.5, len(names) - 0.5, tuple(enumerate(names)))


def percentages(num_ticks: int = 5) -> Axis:
    """Return an axis of shares from 0 to 1, labelled in percent."""
    shares = [number / num_ticks for number in range(num_ticks + 1)]
    return Axis(0.0, 1.0, tuple((share, f"{100 * share:.0f}") for share in shares))


def _tick_step(most: float, num_ticks: int) -> float:
    """Return 1, 2 or 5 times a power of ten, so that about `num_ticks` steps reach `most`."""
    rough = max(most, 1e-3) / num_ticks
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough)


def _digits(step_size: float) -> int:
    """Return the decimals that distinguish multiples of `step_size`."""
    return max(0, -math.floor(math.log10(step_size)))
