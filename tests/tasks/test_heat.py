"""Heat maps: an SVG says every value, in colours that leave the text legible."""

import math
import re
from importlib import resources
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv_tasks.report.heat import MOST_OPACITY, heat_map, percent

SVG_TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=12)
SHARES = st.floats(0, 1) | st.just(math.nan)


def _drawn(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def _map(values: list[list[float]]) -> ElementTree.Element:
    columns = [str(2**number) for number in range(len(values[0]))]
    rows = [f"{number} %" for number in range(len(values))]
    svg = heat_map(
        "full", values, rows=rows, columns=columns, row_title="depth", column_title="tokens"
    )
    return _drawn(svg)


@given(st.integers(1, 4), st.integers(1, 4), st.lists(SHARES, min_size=16, max_size=16))
def test_every_value_has_a_cell_inside_the_drawing_with_its_percentage(
    num_rows: int, num_columns: int, shares: list[float]
) -> None:
    values = [shares[4 * row : 4 * row + num_columns] for row in range(num_rows)]
    svg = _map(values)
    cells = svg.findall("g")
    shown = [cell.findtext("text") for cell in cells]
    assert shown == [percent(share) for shares in values for share in shares]
    width, height = map(float, svg.attrib["viewBox"].split()[2:])
    corners = set()
    for cell in cells:
        box = {
            name: float(cell.find("rect").attrib[name]) for name in ("x", "y", "width", "height")
        }  # type: ignore[union-attr]
        assert box["x"] + box["width"] <= width and box["y"] + box["height"] <= height
        corners.add((box["x"], box["y"]))
    assert len(corners) == len(cells)


def test_a_reader_who_does_not_see_the_map_is_told_every_value() -> None:
    svg = _map([[1.0, 0.5], [math.nan, 0.0]])
    assert svg.attrib["role"] == "img"
    assert svg.attrib["aria-label"] == (
        "full, in % at 1, 2 tokens; depth 0 %: 100, 50; depth 1 %: –, 0"
    )
    assert [cell.findtext("title") for cell in svg.findall("g")] == [
        "depth 0 %, 1 tokens: 100",
        "depth 0 %, 2 tokens: 50",
        "depth 1 %, 1 tokens: –",
        "depth 1 %, 2 tokens: 0",
    ]


def test_a_cell_is_stronger_the_larger_its_value_and_blank_without_one() -> None:
    svg = _map([[0.0, 0.25, 0.5, 1.0, math.nan]])
    opacities = [
        float(cell.find("rect").attrib["fill-opacity"])  # type: ignore[union-attr]
        for cell in svg.findall("g")
    ]
    assert opacities[:4] == sorted(set(opacities[:4])) and opacities[3] == MOST_OPACITY
    assert opacities[0] == opacities[4] == 0


@given(SVG_TEXT, SVG_TEXT)
def test_all_texts_are_escaped(title: str, label: str) -> None:
    svg = _drawn(
        heat_map(
            f"<b>{title}",
            [[0.5]],
            rows=[f"'{label}&"],
            columns=[f'"{label}<'],
            row_title=label,
            column_title=label,
        )
    )
    texts = [each.text or "" for each in svg.iter("text")]
    assert f"<b>{title}" in texts and f"'{label}&" in texts and f'"{label}<' in texts


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_the_text_of_every_cell_is_legible_on_light_and_dark_pages(mode: str) -> None:
    """WCAG 2.2 asks for a contrast of 4.5."""
    templates = resources.files("agentkv_tasks.report") / "templates"
    style = (templates / "style.css").read_text()
    ink, paper, accent = (
        _colour(re.findall(rf"--{name}: #([0-9a-f]+)", style)[mode == "dark"])
        for name in ("ink", "paper", "accent")
    )
    for opacity in (MOST_OPACITY * step / 20 for step in range(21)):
        behind = [
            opacity * over + (1 - opacity) * under
            for over, under in zip(accent, paper, strict=True)
        ]
        assert _contrast(ink, behind) >= 4.5


def _colour(digits: str) -> list[float]:
    if len(digits) == 3:
        digits = "".join(2 * digit for digit in digits)
    return [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]


def _contrast(one: list[float], other: list[float]) -> float:
    low, high = sorted(_luminance(colour) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: list[float]) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_long_labels_of_rows_move_the_cells_to_the_right() -> None:
    name = "multi-key-text, requests"
    svg = _drawn(
        heat_map("full", [[1.0]], rows=[name], columns=["1"], row_title="task", column_title="x")
    )
    label = next(text for text in svg.findall("text") if text.text == name)
    cell = svg.find("g/rect")
    assert cell is not None and 8 * len(name) < float(label.attrib["x"]) < float(cell.attrib["x"])
