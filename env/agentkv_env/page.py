"""What the agent may know of a web page: plain frozen values, no browser in sight."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["element", "text", "ocr"]

STATES = (
    *("checked", "pressed", "selected", "current", "disabled", "readonly", "required"),
    *("password", "invalid", "expanded", "collapsed", "covered", "faint"),
)
"""All that a node's `states` may say. `faint` is of an OCR line of low contrast."""


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle in viewport pixels; `x`, `y` is the top left corner."""

    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Node:
    """One thing on a page, in reading order: an element to act on, a text, or a line read by OCR.

    `element` nodes carry an `id`, a small integer that stays the same while the document lives.
    `text` nodes (headings and images are such, with their role) and `ocr` nodes have none. An `ocr`
    node is what Tesseract read inside an image: untrusted like all page text, and marked as a kind
    of its own because it may also simply be misread.
    """

    kind: Kind
    role: str
    """link, button, textbox, checkbox, radio, combobox, heading, image, cell, text ..."""
    name: str
    """Accessible name, or the text itself; one line, white space collapsed."""
    box: Box
    id: int | None = None
    value: str = ""
    """What an input holds now; a password is masked before it gets here."""
    options: tuple[str, ...] = ()
    """Labels of a native select, in order."""
    states: tuple[str, ...] = ()
    """Some of `STATES`."""


@dataclass(frozen=True, slots=True)
class Page:
    """One observation: nodes of the current tab that overlap the viewport, and what is around."""

    url: str
    title: str
    nodes: tuple[Node, ...]
    tabs: tuple[str, ...] = ()
    """Titles of all tabs, in order."""
    tab: int = 0
    """Index of the current one."""
    pixels_above: int = 0
    """How far the page can still be scrolled up."""
    pixels_below: int = 0
    """How far the page can still be scrolled down."""
    notices: tuple[str, ...] = ()
    """What happened that no node shows: a dialog answered, a navigation refused, OCR missing."""

    def element(self, id: int) -> Node | None:
        """The node that carries `id`, or None."""
        return next((node for node in self.nodes if node.id == id), None)
