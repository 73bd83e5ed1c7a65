"""The agent's view of a web page, as frozen values without a browser."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from reprlib import repr as short_repr
from typing import Literal

Kind = Literal["element", "text", "ocr"]

STATES = (
    *("checked", "mixed", "pressed", "selected", "current", "disabled", "readonly", "required"),
    *("password", "invalid", "expanded", "collapsed", "covered", "faint"),
    *("heading", "draggable", "hover", "more above", "more below"),
)
"""All states that a node may have.

`mixed` marks a box that is half checked, `faint` an OCR line of low contrast, `heading` an element
that is the text of a heading, and `hover` one that shows more under the mouse."""

Use = Literal["lines", "format", "several", "area", "drag", "file", "point"]
"""What an element supports beyond its role: a text of several lines, a text with formats, a
choice of several options, an area that scrolls, a drag, a file, a press at one of its
points."""


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle in viewport pixels; (`x`, `y`) is its top left corner."""

    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Cell:
    """The place of a node in a row: of a table, a grid, a list of terms or a list of cards."""

    row: int
    """Number of the row on the page."""
    column: int
    """Number of columns before it; `WHOLE_ROW` for a node that is the row itself."""
    is_header: bool = False
    """True in a row that names the columns."""


WHOLE_ROW = -1


@dataclass(frozen=True, slots=True, repr=False)
class Node:
    """One node of a page: an element to act on, a text, or a line read by OCR.

    An `element` node has an `id`, a small integer that is stable while the document lives. `text`
    nodes, which include headings and images, and `ocr` nodes have no id. An `ocr` node is a line
    that Tesseract read inside an image. It is untrusted like all page text, and a kind of its own
    because Tesseract may misread.
    """

    kind: Kind
    role: str
    """link, button, textbox, checkbox, radio, combobox, heading, image, text, code ...

    `code` is a line of preformatted text. `progressbar` and `meter` are texts with a value."""
    name: str
    """Accessible name, or the text itself; one line with collapsed white space, except in code."""
    box: Box
    id: int | None = None
    value: str = ""
    """Current value of an input; passwords are masked."""
    options: tuple[str, ...] = ()
    """Labels of a select's options, in order."""
    states: tuple[str, ...] = ()
    """Some of `STATES`."""
    uses: tuple[Use, ...] = ()
    """Actions beyond VisualWebArena's that it supports; not part of the page's text."""
    reveals: tuple[str, ...] = ()
    """Names of what a `hover` shows, on the first of elements that show the same."""
    cell: Cell | None = None
    """Its place in a row, the nodes of which follow each other."""
    cells: tuple[str, ...] = ()
    """Texts of the cells, of a node that is a whole row of texts; `name` joins them with bars."""

    def with_texts(self, change: Callable[[str], str]) -> "Node":
        """Return the node with `change` applied to each of its texts."""
        name, value = change(self.name), change(self.value)
        before = (self.options, self.reveals, self.cells)
        options, reveals, cells = (tuple(map(change, texts)) for texts in before)
        if (name, value, options, reveals, cells) == (self.name, self.value, *before):
            return self  # most nodes, and `replace` takes longer than all else
        return replace(self, name=name, value=value, options=options, reveals=reveals, cells=cells)

    def __repr__(self) -> str:
        number = "" if self.id is None else f" [{self.id}]"
        return f"<Node {self.role}{number} {short_repr(self.name)}>"


@dataclass(frozen=True, slots=True, repr=False)
class Page:
    """One observation: the nodes of the current tab inside the viewport, and their surroundings."""

    url: str
    title: str
    nodes: tuple[Node, ...]
    tabs: tuple[str, ...] = ()
    """Titles of all tabs, in order."""
    tab: int = 0
    """Index of the current tab."""
    pixels_above: int = 0
    """Distance that the page can be scrolled up."""
    pixels_below: int = 0
    """Distance that the page can be scrolled down."""
    notices: tuple[str, ...] = ()
    """Events that no node shows, such as an answered dialog or a refused navigation."""
    may_change: bool = False
    """True if the page may still show something by itself, so that a wait is of use."""
    uploads: tuple[str, ...] = ()
    """Names of files that may be uploaded; empty where the page takes none."""

    def __repr__(self) -> str:
        title, url = short_repr(self.title), self.url[:80]
        return f"<Page {url} {title}, {len(self.nodes)} nodes>"

    def with_texts(self, change: Callable[[str], str]) -> "Page":
        """Return the page with `change` applied to each of its texts, those of its nodes included,
        at the same address."""
        return replace(
            self,
            title=change(self.title),
            nodes=tuple(node.with_texts(change) for node in self.nodes),
            tabs=tuple(map(change, self.tabs)),
            notices=tuple(map(change, self.notices)),
        )

    def element(self, id: int) -> Node | None:
        """Return the node with this `id`, or None."""
        return next((node for node in self.nodes if node.id == id), None)

    def without_uses(self) -> "Page":
        """Return the page as it is for an agent that has only VisualWebArena's actions."""
        nodes = tuple(replace(node, uses=()) for node in self.nodes)
        return replace(self, nodes=nodes, uploads=(), may_change=False)
