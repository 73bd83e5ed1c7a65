"""The README's picture: tasks solved over the tokens that `full` saw, from committed rows."""

from collections.abc import Sequence

from agentkv_lab.picture import RUNS
from agentkv_lab.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, document, text
from agentkv_tasks.report.pool import read_runs
from agentkv_tasks.report.statistics import Rate, rate
from agentkv_tasks.results import Row

BANDS = (
    (0, "under 1,000"),
    (1000, "1,000 to 2,000"),
    (2000, "2,000 to 3,000"),
    (3000, "3,000 to 4,000"),
    (4000, "4,000 to 6,000"),
    (6000, "6,000 or more"),
)
"""Least tokens and name of each band (our choice: each holds a tenth of the tasks or more)."""
_BASE = "full"
"""Policy whose tokens sort the tasks."""
_DRAWN = (
    ("full", "full: all entries", "#111827", ""),
    ("int4", "int4: all entries, in 4 bits", "#1d4ed8", "2 4"),
    ("lookback-int8", "lookback-int8: evicted ones come back", "#c2410c", ""),
    ("window", "window: evicted ones are gone", "#0891b2", ""),
    ("full last_pages=1", "last page only", "#6d28d9", "8 4"),
)
"""Label, name, color and dashes of each line."""
_ROW = 20
"""Pixels between two lines of the legend."""


def bands(rows: Sequence[Row]) -> dict[str, list[Rate]]:
    """Return the bands of each policy, of the tasks that the full cache has played too.

    Raises:
        ValueError: a policy has no task in a band.
    """
    lengths = {row.unit: row.kv_seen_tokens for row in rows if row.policy == _BASE}
    found: dict[str, list[list[bool]]] = {}
    for row in rows:
        if (seen := lengths.get(row.unit)) is not None:
            in_bands = found.setdefault(row.policy, [[] for _ in BANDS])
            in_bands[sum(least <= seen for least, _ in BANDS) - 1].append(row.success)
    for policy, in_bands in found.items():
        if not all(in_bands):
            raise ValueError(f"{policy} has no task in one of the bands; expected some in each")
    return {policy: [rate(solved) for solved in in_bands] for policy, in_bands in found.items()}


def chart(found: dict[str, list[Rate]]) -> str:
    """Return an SVG with a line for each policy."""
    parts = _axes([band.num_episodes for band in found[_BASE]])
    for number, (policy, name, color, dashes) in enumerate(_DRAWN):
        style = f'stroke="{color}" stroke-width="2.5" stroke-dasharray="{dashes}"'
        points = [(_x(place), _y(band.value)) for place, band in enumerate(found[policy])]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" {style}/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color}"/>' for x, y in points]
        left, y = _x(3) - 10, TOP + 12 + number * _ROW
        parts.append(f'<line x1="{left:.1f}" y1="{y}" x2="{left + 34:.1f}" y2="{y}" {style}/>')
        parts.append(text(left + 42, y + 5, name, "start", fill=color))
    return document(parts)


def _x(place: float) -> float:
    return LEFT + (place + 0.5) / len(BANDS) * (WIDTH - LEFT - RIGHT)


def _y(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _axes(num_tasks: Sequence[int]) -> list[str]:
    title = f"tasks solved, of {sum(num_tasks)}, by the tokens that the full cache saw in them"
    parts = [text(LEFT, 22, title, "start", fill="#374151")]
    for percent in range(0, 101, 20):
        y = _y(percent / 100)
        parts.append(
            f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#e5e7eb"/>'
        )
        parts.append(text(LEFT - 10, y + 5, f"{percent} %", "end"))
    for place, ((_, name), count) in enumerate(zip(BANDS, num_tasks, strict=True)):
        parts.append(text(_x(place), HEIGHT - BOTTOM + 20, name, "middle"))
        parts.append(text(_x(place), HEIGHT - BOTTOM + 38, f"{count} tasks", "middle"))
    return parts


def picture() -> str:
    """Return the README's picture."""
    return chart(bands([row for run in read_runs(RUNS).values() for row in run]))
