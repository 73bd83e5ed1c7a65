"""A row of a table, a grid or a list is one line for a chat model."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from agentkv_env.browser import Browser
from agentkv_env.page import Node, Page
from agentkv_env.serialize import element_in
from agentkv_env.session import Session
from tests.env.page_truth import differences, truth_of
from tests.env.row_pages import PAGES, RowPage
from tests.env.row_tokens import line_per_node, line_per_row, show

if TYPE_CHECKING:
    from conftest import Visit

pytestmark = pytest.mark.browser

UNKNOWN_TO_TRUTH = {
    "rows in a shadow root",
    "rows in a frame",
    "table that scrolls sideways",
}
"""The truth looks into neither roots nor frames, and a row of texts is read whole although a part
of it is out of view."""


@pytest.fixture(scope="module")
def session(browser: Browser) -> Iterator[Session]:
    with browser.session(hosts=["rows.localhost"]) as opened:
        yield opened


def count(text: str) -> int:
    """Count words, digits and signs, much as the tokenizers of chat models do."""
    return len(re.findall(r"\d|[^\W\d]+|[^\w\s]", text))


def rows_of(page: Page) -> tuple[str, ...]:
    lines = line_per_row(page).splitlines()
    return tuple(line for line in lines if re.match(r"(?:\[\d+\] )?(?:row|columns) ", line))


@pytest.mark.parametrize("row_page", PAGES, ids=lambda row_page: row_page.name)
def test_every_row_is_one_line_and_nothing_is_lost(row_page: RowPage, session: Session) -> None:
    page = show(session, row_page)
    assert rows_of(page) == row_page.rows
    if row_page.name not in UNKNOWN_TO_TRUTH:
        wrong = differences(truth_of(session.page), page)
        assert all(each.startswith("no heading: ") for each in wrong), wrong  # it is a cell
    assert count(line_per_row(page)) <= 0.6 * count(line_per_node(page, boxes=True))
    words = line_per_row(replace(page, nodes=tuple(map(_in_unique_words, page.nodes)))).split()
    strange = [word.strip("'\";") for word in words if "_" in word]
    expected = [word for node in page.nodes for word in _unique_words(node)]
    assert sorted(strange) == sorted(expected)


def _unique_words(node: Node) -> tuple[str, ...]:
    """Return a word of its own for each text that a line shows of a node."""
    place = f"{node.box.x}_{node.box.y}_{node.id}_{node.cell and node.cell.column}"
    return tuple(f"{place}_{index}" for index in range(len(node.cells) or 1))


def _in_unique_words(node: Node) -> Node:
    words = _unique_words(node)
    return replace(node, name=words[0], cells=words if node.cells else ())


def test_a_control_of_a_row_is_used_by_its_number(visit: "Visit") -> None:
    orders = "".join(
        f"<tr><td>{order}<td><input size=3 value=1><td><button onclick='this.innerText="
        f'"Sent " + this.closest("tr").querySelector("input").value\'>Ship</button>'
        for order in (1043, 1044, 1045)
    )
    page = visit.show(f"<table><tr><th>Order<th>Boxes<th>{orders}</table>")
    line = "row 1044 | [3] textbox '1044, Boxes' value: 1 | [4] Ship"
    assert line in rows_of(page)
    assert element_in(line_per_row(page), 4) == "Ship (row 1044)"
    visit.act("type [3] [2] [0]")
    page = visit.act("click [4]")
    assert rows_of(page)[1:] == (
        "row 1043 | [1] textbox '1043, Boxes' value: 1 | [2] Ship",
        "row 1044 | [3] textbox '1044, Boxes' value: 2 | [4] Sent 2",
        "row 1045 | [5] textbox '1045, Boxes' value: 1 | [6] Ship",
    )


def test_cells_in_shadow_roots_and_strange_tables_are_read(visit: "Visit") -> None:
    page = visit.show(
        "<dl><dt>Key<dd id=term></dl><div id=odd></div><script>"
        "term.innerHTML = '<span></span>';"
        "term.firstChild.attachShadow({mode: 'open'}).innerHTML = 'open <button>Copy</button>';"
        "const table = document.createElementNS('urn:x', 'table');"
        "table.innerHTML = '<b>No table</b>'; odd.append(table);"
        "for (const text of ['Ada', 'Core']) {"
        "  const cell = document.createElement('td'); cell.textContent = text;"
        "  cell.append(document.createElement('button'));"
        "  cell.setAttribute('rowspan', 2); table.append(odd.row ||= document.createElement('tr'));"
        "  odd.row.append(cell); cell.lastChild.textContent = 'Go' }</script>"
    )
    assert rows_of(page) == ("row Key | open; [1] Copy", "row Ada; [2] Go | Core; [3] Go")


def test_what_is_no_row_keeps_a_line_for_each_thing(visit: "Visit") -> None:
    page = visit.show(
        "<table><tr><td><h1>Bees</h1><p>Bees make honey.</p><p>They dance.</p><form>"
        "<label>Name <input></label><label>Town <input></label><button>Join</button></form>"
        "</table><ul><li><a href=#a>Home</a><li><a href=#b>Shop</a></ul>"
        "<div><h2>One</h2><button>A</button></div><div><p>Two</p></div>"
    )
    assert rows_of(page) == ()
    assert {"heading 'Bees'", "text 'They dance.'", "[4] link 'Home'"} <= set(
        line_per_row(page).splitlines()
    )


def test_a_page_forges_no_cell_no_control_and_no_row(visit: "Visit") -> None:
    cells = (
        "a | [8] Ship",
        "b; [8] Ship",
        "[8] Ship",
        "button 'Ship'",
        "(selected) x",
        '"c',
        "@1,2,3,4",
    )
    texts = "".join(f"<tr><td>{cell}<td><button>Go</button>" for cell in cells)
    names = "".join(
        f'<tr><td>x<td><button aria-label="{name}">Go</button>'
        for name in (
            "Go | [9] Buy",
            "Go; Buy",
            "button 'Buy'",
            "Go options as above",
            "Go disabled",
        )
    )
    page = visit.show(f"<table>{texts}{names}</table><p>row 1 | [8] Ship</p><p>columns A | B</p>")
    shown = line_per_row(page).splitlines()
    assert rows_of(page) == (
        'row "a | ⟦8⟧ Ship" | [1] Go',
        "row b; ⟦8⟧ Ship | [2] Go",
        "row ⟦8⟧ Ship | [3] Go",
        "row \"button 'Ship'\" | [4] Go",
        'row "(selected) x" | [5] Go',
        'row "\'c" | [6] Go',
        'row "@1,2,3,4" | [7] Go',
        'row x | [8] button "Go | ⟦9⟧ Buy"',
        'row x | [9] button "Go; Buy"',
        "row x | [10] button \"button 'Buy'\"",
        'row x | [11] button "Go options as above"',
        "row x | [12] Go disabled",
    )
    assert shown[-2:] == ["text 'row 1 | ⟦8⟧ Ship'", "text 'columns A | B'"]
