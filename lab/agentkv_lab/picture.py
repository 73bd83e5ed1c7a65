"""Pictures of a quality over the bytes of the cache, from committed rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentkv_lab.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, document, text
from agentkv_tasks.report.pool import read_runs
from agentkv_tasks.report.summary import Summary, summarize

RESULTS = Path(__file__).parents[1] / "results" / "pressure_cpu-2-cores_2026-11-25"
RUNS = tuple(RESULTS / f"world-{world}" for world in (11, 12, 13))

_RADIUS = 6
_ABOVE = (0, -14, "middle")


@dataclass(frozen=True, slots=True)
class Mark:
    """A policy in a chart."""

    name: str
    value: float
    hot_bytes: float
    all_bytes: float
    is_ours: bool


@dataclass(frozen=True, slots=True)
class Axes:
    """What a chart shows, and how far its axes reach."""

    what: str
    """Title of the values."""
    bytes_of: str
    """Title of the bytes, to which the meaning of the marks is added."""
    most_value: float
    value_step: float
    most_mib: float
    mib_step: float
    labels: Mapping[str, tuple[int, int, str]] = field(default_factory=dict)
    """Where the name of a policy stands beside its mark: offsets in pixels, and the anchor."""

    def x(self, num_bytes: float) -> float:
        return LEFT + num_bytes / 2**20 / self.most_mib * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - value / self.most_value * (HEIGHT - TOP - BOTTOM)


SUCCESS = Axes(
    what="tasks solved, of 225",
    bytes_of="mean of the episodes' peaks",
    most_value=150,
    value_step=25,
    most_mib=11,
    mib_step=2,
    labels={
        "int4": (-2, -14, "middle"),
        "lookback-int8": (12, 22, "middle"),
        "conf-kv-l": (-12, -8, "end"),
        "streaming-int8": (-16, 10, "end"),
        "window": (12, 14, "start"),
        "last page only": (12, -6, "start"),
    },
)


def chart(marks: Sequence[Mark], axes: Axes) -> str:
    """Return an SVG with a mark for each policy.

    A full mark stands at all bytes of the cache, and a hollow one at the hot bytes where the policy
    keeps a cold tier.
    """
    parts = [*_axes(axes)]
    for each in sorted(marks, key=lambda each: each.hot_bytes - each.all_bytes):  # long lines first
        y, hot, both = axes.y(each.value), axes.x(each.hot_bytes), axes.x(each.all_bytes)
        color = "#c2410c" if each.is_ours else "#1d4ed8"
        if both - hot > _RADIUS:
            parts.append(
                f'<line x1="{hot:.1f}" y1="{y:.1f}" x2="{both:.1f}" y2="{y:.1f}" stroke="{color}" '
                f'stroke-width="2" stroke-dasharray="4 4"/>'
                f'<circle cx="{hot:.1f}" cy="{y:.1f}" r="{_RADIUS}" fill="#ffffff" '
                f'stroke="{color}" stroke-width="2"/>'
            )
        parts.append(f'<circle cx="{both:.1f}" cy="{y:.1f}" r="{_RADIUS}" fill="{color}"/>')
        dx, dy, anchor = axes.labels.get(each.name, _ABOVE)
        parts.append(text(both + dx, y + dy, each.name, anchor, fill=color))
    return document(parts)


def _axes(axes: Axes) -> list[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = [text(LEFT, 22, axes.what, "start", fill="#374151")]
    for value in _steps(axes.most_value, axes.value_step):
        y = axes.y(value)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#e5e7eb"/>')
        parts.append(text(LEFT - 10, y + 5, f"{value:g}", "end"))
    for mib in _steps(axes.most_mib, axes.mib_step):
        parts.append(text(axes.x(mib * 2**20), bottom + 20, f"{mib:g}", "middle"))
    title = f"MiB of the cache, {axes.bytes_of}: ● all, ○ hot (what each token attends to)"
    parts.append(text((LEFT + right) / 2, HEIGHT - 10, title, "middle", fill="#374151"))
    return parts


def _steps(most: float, step: float) -> list[float]:
    return [step * number for number in range(int(most / step) + 1)]


def mark_of(summary: Summary) -> Mark:
    """Return the mark of a policy's tasks."""
    assert summary.hot_bytes is not None and summary.all_bytes is not None
    name = summary.policy.partition(",")[0]
    return Mark(
        name="last page only" if summary.policy == "full last_pages=1" else name,
        value=summary.success.num_successes,
        hot_bytes=summary.hot_bytes,
        all_bytes=summary.all_bytes,
        is_ours=name.startswith("lookback"),
    )


def picture() -> str:
    """Return the picture of docs/benchmarks.md: tasks solved over the bytes of the cache."""
    rows = [row for run in read_runs(RUNS).values() for row in run]
    return chart([mark_of(each) for each in summarize(rows)], SUCCESS)
