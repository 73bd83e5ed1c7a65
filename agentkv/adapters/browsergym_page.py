"""Observations of BrowserGym as our pages: its accessibility tree, read as a page is."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentkv_env.page import Box, Cell, Node, Page
from agentkv_env.sanitize import clean

VIEWPORT = (1280, 720)
"""Width and height that BrowserGym gives its pages, for observations without a screenshot."""

# Roles of the accessibility tree that are elements to act on, as we name them.
_ELEMENTS = {
    **{role: role for role in "link button checkbox radio switch tab option treeitem".split()},
    **{role: role for role in "textbox combobox listbox slider menuitem".split()},
    **{"searchbox": "textbox", "spinbutton": "textbox", "menuitemcheckbox": "menuitem"},
    **{"menuitemradio": "menuitem", "DisclosureTriangle": "button", "ToggleButton": "button"},
    **{"PopUpButton": "combobox", "Date": "textbox", "DateTime": "textbox"},
    **{"InputTime": "textbox", "ColorWell": "textbox"},
}
_NO_ELEMENT = frozenset({"RootWebArea", "WebArea", "StaticText", "LabelText", "Iframe"})
_INLINE = frozenset(
    "none strong emphasis mark code subscript superscript time insertion deletion".split()
)
_INLINE_TAGS = frozenset(
    "abbr b bdi bdo big cite data dfn font i kbd q s samp small span u".split()
)
_UNREAD = frozenset({"InlineTextBox", "LineBreak", "ListMarker"})
_MAX_BUTTON_TEXT = 200
"""A clickable box with more text is no button, as in our own pages."""
_CELLS = frozenset({"cell", "gridcell", "columnheader", "rowheader"})
_STATES = ("checked", "pressed", "selected", "disabled", "readonly", "required", "invalid")


class Bids:
    """Numbers for BrowserGym's element ids ("bids", such as a51) of one experiment."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, bid: str) -> int:
        """Return the number of `bid`, the next free one if it is new."""
        return self._numbers.setdefault(bid, len(self._numbers))

    def bid(self, number: int) -> str:
        """Return the id that has `number`."""
        return list(self._numbers)[number]


def viewport_of(obs: Mapping[str, Any]) -> tuple[int, int]:
    """Return the width and height of the viewport of an observation."""
    screenshot = obs.get("screenshot")
    if screenshot is None:
        return VIEWPORT
    height, width = screenshot.shape[:2]
    return int(width), int(height)


def page_of(obs: Mapping[str, Any], bids: Bids) -> Page:
    """Return what an observation of BrowserGym shows in the viewport, as a page.

    Args:
        obs: has `axtree_object` and `extra_element_properties`; `dom_object` tells passwords and
            native lists, and `screenshot` the size of the viewport.
        bids: gets a number for every element.
    """
    titles = [clean(str(title)) for title in obs.get("open_pages_titles") or ()]
    urls = [clean(str(url)) for url in obs.get("open_pages_urls") or ()]
    tab = int(obs["active_page_index"][0]) if len(obs.get("active_page_index", ())) else 0
    documents = (obs.get("dom_object") or {}).get("documents") or [{}]
    above = math.floor(documents[0].get("scrollOffsetY") or 0)
    height = math.floor(documents[0].get("contentHeight") or 0)
    return Page(
        url=clean(str(obs.get("url") or "")),
        title=titles[tab] if tab < len(titles) else "",
        nodes=tuple(_Tree(obs).nodes(bids)),
        tabs=tuple(title or url for title, url in zip(titles, urls, strict=False)),
        tab=tab,
        pixels_above=above,
        pixels_below=max(0, height - above - viewport_of(obs)[1]),
    )


@dataclass(slots=True)
class _Visit:
    """A node of the accessibility tree in reading order, and what its relatives tell about it."""

    node: Mapping[str, Any]
    parent: int
    """Position of the parent; -1 for the root."""
    text: str = ""
    """Text below the node, at most a little more than `_MAX_BUTTON_TEXT` characters."""
    options: list[str] = field(default_factory=list)
    """Options of a native list."""
    has_element: bool = False
    """True if an element to act on is below the node."""
    is_shown: bool = True
    is_option: bool = False
    """True below a native list."""
    said: str = ""
    """Names and values of the ancestors that the page shows; text in them is not repeated."""
    container: int = -1
    """Position of the nearest ancestor that breaks lines."""
    cell: Cell | None = None
    """Its place in a row of a table or grid."""


class _Tree:
    """The accessibility tree of one observation."""

    def __init__(self, obs: Mapping[str, Any]) -> None:
        self._extra: Mapping[str, Any] = obs.get("extra_element_properties") or {}
        self._tags = _Tags.of(obs.get("dom_object") or {})
        self._visits = _in_order(obs["axtree_object"]["nodes"])
        for visit in reversed(self._visits):  # children before their parents
            if visit.parent < 0:
                continue
            parent = self._visits[visit.parent]
            own = _text(visit.node, "name") if _role(visit.node) == "StaticText" else visit.text
            if len(parent.text) <= _MAX_BUTTON_TEXT:
                parent.text = clean(f"{own} {parent.text}")
            parent.has_element |= visit.has_element or bool(self._element_role(visit))
            is_option = _role(visit.node) == "option"
            parent.options[:0] = [clean(_text(visit.node, "name"))] if is_option else visit.options
        for position, visit in enumerate(self._visits):
            if position:
                self._inherit(visit, self._visits[visit.parent])
        self._places()
        self._labels = {
            clean(_text(visit.node, "name")) for visit in self._visits if self._element_role(visit)
        }

    def _inherit(self, visit: _Visit, parent: _Visit) -> None:
        visibility = self._properties(visit).get("visibility")
        visit.is_shown = parent.is_shown if visibility is None else visibility > 0
        visit.is_option = parent.is_option or _bid_of(parent) in self._tags.lists
        is_inline = _role(parent.node) in _INLINE or _bid_of(parent) in self._tags.inline
        visit.container = parent.container if is_inline else visit.parent
        visit.said = parent.said
        if self._element_role(parent) or _role(parent.node) == "heading":
            name = clean(_text(parent.node, "name")) or parent.text
            visit.said += f"\n{name}\n{clean(_text(parent.node, 'value'))}"

    def _places(self) -> None:
        """Find the places of nodes in rows; what Chromium takes for a table for layout has none."""
        num_cells: Counter[int] = Counter()
        cells = [visit for visit in self._visits if _role(visit.node) in _CELLS]
        others = {visit.parent for visit in cells if _role(visit.node) != "columnheader"}
        for visit in self._visits[1:]:
            if _role(visit.node) in _CELLS:
                row = visit.parent
                visit.cell = Cell(row, num_cells[row], is_header=row not in others)
                num_cells[row] += 1
            elif _role(visit.node) != "row":
                visit.cell = self._visits[visit.parent].cell

    def nodes(self, bids: Bids) -> Iterator[Node]:
        """Yield the visible nodes in reading order; texts that share a line are one node."""
        line: list[_Visit] = []
        for visit in self._visits:
            if not visit.is_shown or visit.is_option:
                continue
            if _role(visit.node) == "StaticText":
                if not self._is_said(visit):
                    if line and line[0].container != visit.container:
                        yield self._joined(line)
                        line = []
                    line.append(visit)
            elif (node := self._node(visit, bids)) is not None:
                if line:
                    yield self._joined(line)
                    line = []
                yield node
        if line:
            yield self._joined(line)

    def _is_said(self, visit: _Visit) -> bool:
        text = clean(_text(visit.node, "name"))
        labels = self._labels if _role(self._visits[visit.parent].node) == "LabelText" else ()
        return text in visit.said or text in labels

    def _joined(self, line: list[_Visit]) -> Node:
        text = ""
        for visit in line:
            part = _text(visit.node, "name")
            # Boxes beside each other have no space between them, unlike words of a sentence.
            text += f" {part}" if text[-1:].isalnum() and part[:1].isalnum() else part
        return Node("text", "text", clean(text), self._box(line[0]), cell=line[0].cell)

    def _node(self, visit: _Visit, bids: Bids) -> Node | None:
        name = clean(_text(visit.node, "name"))
        role = self._element_role(visit)
        if role:
            options = visit.options if _bid_of(visit) in self._tags.lists else []
            return Node(
                kind="element",
                role=role,
                name=name or ("" if role in ("textbox", "combobox", "listbox") else visit.text),
                box=self._box(visit),
                id=bids.number(_bid_of(visit)),
                value=self._value(visit),
                options=tuple(options),
                states=tuple(self._states(visit, is_list=bool(options))),
                cell=visit.cell,
            )
        role = {"heading": "heading", "image": "image", "img": "image"}.get(_role(visit.node), "")
        if not role or not name or name in visit.said:
            return None
        return Node("text", role, name, self._box(visit), cell=visit.cell)

    def _element_role(self, visit: _Visit) -> str:
        """Return our role of an element to act on, or ''."""
        role = _role(visit.node)
        if not _bid_of(visit):
            return ""
        if role in _ELEMENTS:
            return _ELEMENTS[role]
        is_button = (
            role not in _NO_ELEMENT
            and self._properties(visit).get("clickable")
            and not visit.has_element
            and 0 < len(visit.text or _text(visit.node, "name")) <= _MAX_BUTTON_TEXT
        )
        return "button" if is_button else ""

    def _value(self, visit: _Visit) -> str:
        value = clean(_text(visit.node, "value"))
        return "********" if value and _bid_of(visit) in self._tags.passwords else value

    def _states(self, visit: _Visit, *, is_list: bool) -> Iterator[str]:
        found = {
            each["name"]: each["value"].get("value") for each in visit.node.get("properties", ())
        }
        yield from (state for state in _STATES if found.get(state) in (True, "true"))
        if "mixed" in (found.get("checked"), found.get("pressed")):
            yield "mixed"
        if _bid_of(visit) in self._tags.passwords:
            yield "password"
        if found.get("expanded") is not None and not is_list:
            yield "expanded" if found["expanded"] else "collapsed"

    def _properties(self, visit: _Visit) -> Mapping[str, Any]:
        return self._extra.get(_bid_of(visit)) or {}

    def _box(self, visit: _Visit) -> Box:
        while not (box := self._properties(visit).get("bbox")) and visit.parent >= 0:
            visit = self._visits[visit.parent]
        return Box(*(round(each) for each in box or (0, 0, 0, 0)))


def _in_order(nodes: Sequence[Mapping[str, Any]]) -> list[_Visit]:
    """Return the nodes in reading order, without recursion: pages may nest deeply."""
    by_id = {node["nodeId"]: node for node in nodes}
    visits: list[_Visit] = []
    left = [(nodes[0], -1)] if nodes else []
    while left:
        node, parent = left.pop()
        if by_id.pop(node["nodeId"], None) is None or _role(node) in _UNREAD:
            continue
        visits.append(_Visit(node, parent))
        children = [by_id[id] for id in node.get("childIds", ()) if id in by_id]
        left += [(child, len(visits) - 1) for child in reversed(children)]
    return visits


@dataclass(frozen=True, slots=True)
class _Tags:
    """Properties of elements that only the DOM has, by element id."""

    passwords: frozenset[str]
    lists: frozenset[str]
    inline: frozenset[str]

    @classmethod
    def of(cls, snapshot: Mapping[str, Any]) -> "_Tags":
        """Find the password fields, native lists and inline elements of a DOM snapshot."""
        passwords, lists, inline = set(), set(), set()
        strings = snapshot.get("strings") or []
        for document in snapshot.get("documents") or ():
            nodes = document["nodes"]
            for name, pairs in zip(nodes["nodeName"], nodes["attributes"], strict=True):
                words = [strings[index] if index >= 0 else "" for index in pairs]
                attributes = dict(zip(words[::2], words[1::2], strict=True))
                bid, tag = attributes.get("bid"), strings[name].lower() if name >= 0 else ""
                if not bid:
                    continue
                if tag == "select":
                    lists.add(bid)
                elif tag == "input" and attributes.get("type", "").lower() == "password":
                    passwords.add(bid)
                elif tag in _INLINE_TAGS:
                    inline.add(bid)
        return cls(frozenset(passwords), frozenset(lists), frozenset(inline))


def _bid_of(visit: _Visit) -> str:
    return str(visit.node.get("browsergym_id") or "")


def _role(node: Mapping[str, Any]) -> str:
    return _text(node, "role")


def _text(node: Mapping[str, Any], field: str) -> str:
    value = (node.get(field) or {}).get("value")
    return "" if value is None else str(value)
