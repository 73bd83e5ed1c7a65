"""Heat maps: shares by row and column, as an SVG for the pages of reports."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

CELL_WIDTH, CELL_HEIGHT = 64, 34
LEFT, TOP, BOTTOM = 76, 34, 48
"""Margins for the labels of rows, at least, the title, and the labels of columns."""
MOST_OPACITY = 0.5
"""Opacity of the colour of a share of 1. With more, the text in the cell would be hard to read on a
light or a dark page."""
_NONE = "–"
_CHARACTER_WIDTH = 9
"""Width of a character of a label, at most."""


@dataclass(frozen=True, slots=True)
class Maps:
    """Heat maps side by side, and what they show."""

    caption: str
    svgs: tuple[str, ...]
    """Results of `heat_map`."""


def heat_map(
    title: str,
    values: Sequence[Sequence[float]],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    row_title: str,
    column_title: str,
) -> str:
    """Return an SVG element with one cell per value, which shows the value in percent.

    The element takes its colours from the style sheet of the reports, for light and dark pages, and
    names every value in its label for readers who do not see it. All texts are escaped.

    Args:
        values: shares from 0 to 1, one sequence for each row; NaN where nothing was measured.
        rows: labels of the rows, from the top.
        columns: labels of the columns, from the left.
        row_title: what the rows differ in, such as `depth`.
        column_title: what the columns differ in, such as `tokens`.
    """
    assert len(values) == len(rows) and all(len(each) == len(columns) for each in values)
    assert all(math.isnan(value) or 0 <= value <= 1 for each in values for value in each)
    left = max(LEFT, _CHARACTER_WIDTH * max(map(len, rows), default=0) + 8)
    width = max(left + CELL_WIDTH * len(columns), _CHARACTER_WIDTH * len(title))
    height = TOP + CELL_HEIGHT * len(rows) + BOTTOM
    parts = [
        f'<svg class="plot heat" width="{width}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(_label(title, values, rows, columns, row_title, column_title))}">',
        f'<text class="axis" x="4" y="16">{escape(title)}</text>',
    ]
    for row, (name, shares) in enumerate(zip(rows, values, strict=True)):
        y = TOP + CELL_HEIGHT * row
        middle = y + CELL_HEIGHT / 2
        parts.append(_text("y", left - 8, middle, name))
        for column, (other, share) in enumerate(zip(columns, shares, strict=True)):
            x = left + CELL_WIDTH * column
            said = f"{row_title} {name}, {other} {column_title}: {percent(share)}"
            parts.append(
                f'<g><title>{escape(said)}</title><rect class="cell" x="{x}" y="{y}" '
                f'width="{CELL_WIDTH}" height="{CELL_HEIGHT}" fill-opacity="{_opacity(share)}"/>'
                f"{_text('value', x + CELL_WIDTH / 2, middle, percent(share))}</g>"
            )
    below = TOP + CELL_HEIGHT * len(rows) + 14
    for column, name in enumerate(columns):
        parts.append(_text("x", left + CELL_WIDTH * (column + 0.5), below, name))
    right = left + CELL_WIDTH * len(columns)
    parts.append(
        f'<text class="axis" x="4" y="{height - 6}">{escape(row_title)}</text>'
        f'<text class="axis end" x="{right}" y="{height - 6}">{escape(column_title)}</text></svg>'
    )
    return "\n".join(parts)


def percent(share: float) -> str:
    """Return a share as a whole percentage without its sign; a dash for NaN."""
    return _NONE if math.isnan(share) else f"{100 * share:.0f}"


def _opacity(share: float) -> str:
    return "0" if math.isnan(share) else f"{MOST_OPACITY * share:.3f}".rstrip("0").rstrip(".")


def _text(kind: str, x: float, y: float, text: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" dy=".35em">{escape(text)}</text>'


def _label(
    title: str,
    values: Sequence[Sequence[float]],
    rows: Sequence[str],
    columns: Sequence[str],
    row_title: str,
    column_title: str,
) -> str:
    """Return all values as a text."""
    lines = [
        f"{row_title} {name}: {', '.join(map(percent, shares))}"
        for name, shares in zip(rows, values, strict=True)
    ]
    return f"{title}, in % at {', '.join(columns)} {column_title}; {'; '.join(lines)}"
