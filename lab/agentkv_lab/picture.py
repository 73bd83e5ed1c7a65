"""The README's picture: tasks solved over the bytes of the cache, from committed rows."""

from collections.abc import Sequence
from pathlib import Path

from agentkv_tasks.report.pool import read_runs
from agentkv_tasks.report.summary import Summary, summarize

RESULTS = Path(__file__).parents[1] / "results" / "pressure_cpu-2-cores_2026-11-25"
RUNS = tuple(RESULTS / f"world-{world}" for world in (11, 12, 13))

_WIDTH, _HEIGHT = 760, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 24, 40, 52
_MOST_MIB, _MOST_SOLVED = 11, 150
_RADIUS = 6
_LABELS = {  # where the name of a policy stands: offsets in pixels, and the anchor
    "full": (0, -14, "middle"),
    "int8": (0, -14, "middle"),
    "int4": (-2, -14, "middle"),
    "lookback-int8": (12, 22, "middle"),
    "conf-kv-l": (-12, -8, "end"),
    "streaming-int8": (-16, 10, "end"),
    "window": (12, 14, "start"),
    "full last_pages=1": (12, -6, "start"),
}
_NAMES = {"full last_pages=1": "last page only"}


def draw(summaries: Sequence[Summary]) -> str:
    """Return an SVG with a mark for each policy.

    A full mark stands at all bytes of the cache, and a hollow one at the hot bytes where the policy
    keeps a cold tier.
    """
    parts = [*_axes()]
    for each in sorted(summaries, key=lambda each: -(each.cold_bytes or 0)):  # long lines first
        assert each.hot_bytes is not None and each.all_bytes is not None
        y, hot, both = _y(each.success.num_successes), _x(each.hot_bytes), _x(each.all_bytes)
        color = "#c2410c" if each.policy.startswith("lookback") else "#1d4ed8"
        if both - hot > _RADIUS:
            parts.append(
                f'<line x1="{hot:.1f}" y1="{y:.1f}" x2="{both:.1f}" y2="{y:.1f}" stroke="{color}" '
                f'stroke-width="2" stroke-dasharray="4 4"/>'
                f'<circle cx="{hot:.1f}" cy="{y:.1f}" r="{_RADIUS}" fill="#ffffff" '
                f'stroke="{color}" stroke-width="2"/>'
            )
        parts.append(f'<circle cx="{both:.1f}" cy="{y:.1f}" r="{_RADIUS}" fill="{color}"/>')
        dx, dy, anchor = _LABELS[each.policy.partition(",")[0]]
        name = _NAMES.get(each.policy, each.policy.partition(",")[0])
        parts.append(_text(both + dx, y + dy, name, anchor, fill=color))
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="14">\n'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _axes() -> list[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = [_text(_LEFT, 22, "tasks solved, of 225", "start", fill="#374151")]
    for solved in range(0, _MOST_SOLVED + 1, 25):
        y = _y(solved)
        parts.append(
            f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#e5e7eb"/>'
        )
        parts.append(_text(_LEFT - 10, y + 5, str(solved), "end"))
    for mib in range(0, _MOST_MIB + 1, 2):
        parts.append(_text(_x(mib * 2**20), bottom + 20, str(mib), "middle"))
    title = (
        "MiB of the cache, mean of the episodes' peaks: ● all, ○ hot (what each token attends to)"
    )
    parts.append(_text((_LEFT + right) / 2, _HEIGHT - 10, title, "middle", fill="#374151"))
    return parts


def _x(num_bytes: float) -> float:
    return _LEFT + num_bytes / 2**20 / _MOST_MIB * (_WIDTH - _LEFT - _RIGHT)


def _y(solved: float) -> float:
    return _HEIGHT - _BOTTOM - solved / _MOST_SOLVED * (_HEIGHT - _TOP - _BOTTOM)


def _text(x: float, y: float, text: str, anchor: str, *, fill: str = "#6b7280") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}">{text}</text>'


def picture() -> str:
    """Return the picture of the committed rows."""
    rows = [row for run in read_runs(RUNS).values() for row in run]
    return draw(summarize(rows))
