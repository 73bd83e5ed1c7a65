"""SVG for charts: size, margins, frame and texts."""

from collections.abc import Sequence

WIDTH, HEIGHT = 760, 380
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 40, 52
"""Margins."""


def document(parts: Sequence[str]) -> str:
    """Return an SVG of these elements on white."""
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="14">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def text(x: float, y: float, content: str, anchor: str, *, fill: str = "#6b7280") -> str:
    """Return a text whose start, middle or end (`anchor`) is at x."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}">{content}</text>'
