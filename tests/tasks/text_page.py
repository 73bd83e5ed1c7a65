"""HTML parser and selectors for the text browser, without stylesheets and scripts."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Optional

_VOID = frozenset("area base br col embed hr img input link meta source track wbr".split())
_INLINE = frozenset(
    "a abbr b bdi button cite code em i img input kbd label mark q s select small span strong sub"
    " sup textarea time u".split()
)
_CLOSES_P = frozenset(
    "address article aside blockquote dl div fieldset figure footer form h1 h2 h3 h4 header hr main"
    " nav ol p pre section table ul".split()
)
_SILENT = frozenset("script style template noscript head title datalist".split())


@dataclass(eq=False)
class Element:
    """An HTML element; `value`, `checked` and `selected` hold the current state."""

    tag: str
    attributes: dict[str, str]
    parent: Optional["Element"] = None
    children: list["Element | str"] = field(default_factory=list)

    def get(self, name: str, default: str = "") -> str:
        return self.attributes.get(name, default)

    def has(self, name: str) -> bool:
        return name in self.attributes

    def walk(self) -> Iterator["Element"]:
        """Yield this element and its descendants in document order."""
        left = [self]
        while left:
            yield (element := left.pop())
            left += [child for child in reversed(element.children) if isinstance(child, Element)]

    def ancestors(self) -> Iterator["Element"]:
        """Yield the ancestors, the parent first."""
        ancestor = self.parent
        while ancestor is not None:
            yield ancestor
            ancestor = ancestor.parent

    def closest(self, tag: str) -> Optional["Element"]:
        """Return the element itself or its nearest ancestor with this tag."""
        return next((element for element in (self, *self.ancestors()) if element.tag == tag), None)

    @property
    def is_inline(self) -> bool:
        return self.tag in _INLINE

    @property
    def is_hidden(self) -> bool:
        """Whether this element hides its content, regardless of its ancestors."""
        return (
            self.tag in _SILENT
            or self.has("hidden")
            or (self.tag == "dialog" and not self.has("open"))
            or bool(re.search(r"display:\s*none", self.get("style")))
            or self._is_collapsed
        )

    @property
    def _is_collapsed(self) -> bool:
        parent = self.parent
        is_closed = parent is not None and parent.tag == "details" and not parent.has("open")
        return is_closed and self.tag != "summary"

    @property
    def text_content(self) -> str:
        return "".join(
            child if isinstance(child, str) else child.text_content for child in self.children
        )

    @property
    def inner_text(self) -> str:
        """The visible text, with one line per block and a tab between the cells of a row."""
        text = re.sub(r"[ ]*\t[ ]*", "\t", re.sub(r"[^\S\n\t]+", " ", self._visible_text()))
        return re.sub(r"\n+", "\n", re.sub(r"[ \t]*\n[ ]*", "\n", text)).strip()

    def _visible_text(self) -> str:
        parts = []
        for child in self.children:
            if isinstance(child, str):
                parts.append(re.sub(r"\s+", " ", child))
            elif child.tag == "br":
                parts.append("\n")
            elif child.is_hidden or child.tag in ("input", "textarea"):
                continue
            elif child.tag in ("td", "th"):
                parts.append("\t" + child._visible_text())
            else:
                text = child._visible_text()
                parts.append(text if child.is_inline else f"\n{text}\n")
        return "".join(parts)

    def select(self, selector: str) -> list["Element"]:
        """Select elements as `querySelectorAll` does.

        Supported are tags, #id, .class, [attribute], `:checked`, `:first-child`, `:last-child`,
        descendants and children.

        Raises:
            ValueError: the selector contains anything else.
        """
        chains = [_parse_selector(part) for part in selector.split(",")]
        return [
            element for element in self.walk() if any(_matches(element, chain) for chain in chains)
        ]


def parse_html(html: str) -> Element:
    """Parse a document into a tree.

    Raises:
        ValueError: an end tag has no start tag, or a form contains a form.
    """
    reader = _Reader()
    reader.feed(html)
    reader.close()
    return reader.root


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = self._here = Element("#document", {})

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _CLOSES_P and self._here.tag == "p":
            self._up()
        if tag == "form" and self._here.closest("form"):
            raise ValueError("a form contains another form")
        element = Element(tag, {name: value or "" for name, value in attrs}, self._here)
        self._here.children.append(element)
        if tag not in _VOID:
            self._here = element

    def handle_endtag(self, tag: str) -> None:
        if tag in _VOID:
            return
        if tag == self._here.tag:
            self._up()
        elif tag != "p":
            raise ValueError(f"found </{tag}> inside <{self._here.tag}>")

    def handle_data(self, data: str) -> None:
        self._here.children.append(data)

    def _up(self) -> None:
        assert self._here.parent is not None
        self._here = self._here.parent


_PART = re.compile(
    r"(?P<tag>[a-zA-Z][\w-]*)|#(?P<id>[\w-]+)|\.(?P<class>[\w-]+)"
    r"|\[(?P<name>[\w-]+)(?:(?P<operator>[*^$]?=)(?P<quote>[\"']?)(?P<value>[^\]]*?)(?P=quote))?\]"
    r"|:(?P<state>checked|first-child|last-child)"
)


def _parse_selector(selector: str) -> list[tuple[str, str]]:
    """Split a selector into pairs of combinator (" " or ">") and simple selector, last first."""
    chain, combinator = [], " "
    for word in re.findall(r"(?:\[[^\]]*\]|[^\s>])+|>", selector.strip()):
        if word == ">":
            combinator = ">"
            continue
        chain.append((combinator, word))
        combinator = " "
    return chain[::-1]


def _matches(element: Element, chain: list[tuple[str, str]]) -> bool:
    combinator, simple = chain[0]
    if not _matches_simple(element, simple):
        return False
    if len(chain) == 1:
        return True
    ancestors = list(element.ancestors())
    candidates = ancestors[:1] if combinator == ">" else ancestors
    return any(_matches(candidate, chain[1:]) for candidate in candidates)


def _matches_simple(element: Element, simple: str) -> bool:
    end = 0
    while end < len(simple):
        part = _PART.match(simple, end)
        if part is None:
            raise ValueError(f"unsupported selector '{simple}'")
        end = part.end()
        if not _matches_part(element, part):
            return False
    return True


def _matches_part(element: Element, part: re.Match[str]) -> bool:
    if part["tag"]:
        return element.tag == part["tag"].lower()
    if part["id"]:
        return element.get("id") == part["id"]
    if part["class"]:
        return part["class"] in element.get("class").split()
    if part["state"]:
        return _in_state(element, part["state"])
    if not element.has(part["name"]):
        return False
    found, value = element.get(part["name"]), part["value"]
    match part["operator"]:
        case "=":
            return found == value
        case "*=":
            return value in found
        case "^=":
            return found.startswith(value)
        case "$=":
            return found.endswith(value)
    return True


def _in_state(element: Element, state: str) -> bool:
    if state == "checked":
        return element.has("checked") or element.has("selected")
    children = element.parent.children if element.parent else []
    siblings = [child for child in children if isinstance(child, Element)]
    return siblings[0 if state == "first-child" else -1] is element
