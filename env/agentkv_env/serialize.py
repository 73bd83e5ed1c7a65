"""Serialize a page for a model, within a token budget.

Layout "after" has a line for each node, with the id after the name: `link Blue Kayak [12]`. Layout
"before" puts the id first, as VisualWebArena does, `[12] link 'Blue Kayak'`, and has one line for
each row of a table, a grid or a list: `row Blue Kayak | $39.00 | [8] Buy`. It ends a line with the
box ` @x,y,w,h` (viewport pixels) only where the place tells something: for text read in pictures
and the pictures with it, for what takes presses at a point, and for an element outside rows that
has no name, or the role and name of another one. Needs no browser and no tokenizer.

A page cannot forge a line of the harness. Three rules separate the page's text from ours, and they
hold for readers that apply a Unicode normal form or ignore case:

* Only we write a single number in square brackets; the page's become white ones, `⟦12⟧`.
* Only our lines begin with `url`, `notice:`, `more above` and the other markers; a text of the page
  that begins with a marker gets the word `text` in front.
* Within a line, a string of the page is bare only where it is unambiguous. A name with ` = ` or a
  state in parentheses, a title with `|`, or a cell with `|`, stands in double quotes.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal, NamedTuple

from agentkv_env import sanitize
from agentkv_env.page import STATES, WHOLE_ROW, Box, Node, Page

Layout = Literal["after", "before"]

MAX_NAME = 200
"""Maximum characters of a name, option, address or title (VisualWebArena's limit)."""
MAX_VALUE = 1000
"""Maximum characters of a value, such as a text to be edited (our choice)."""
MAX_OPTIONS = 40
"""Maximum options shown of one select; a list of all countries would hide the page."""
MAX_GAP = 20
"""Maximum empty cells in a row before one that is not."""

# Patterns for the normal forms of a text (`sanitize.normal_forms`).
_OUR_LINE = re.compile(
    r"[\W_]*(?:(?:url|title|goal|objective)(?!\w)|more\W+(?:above|below)(?!\w)"
    r"|(?:tabs|notice|error|ocr|cut|same|gone)\W*:)"
)
_STATE = rf"(?:{'|'.join(STATES)})"
_HALF_QUOTED = r'^"(?![^"]*"$)'
# Patterns of ambiguous strings by position, in the layout "after" ...
_GROUP = rf"\(\s*(?:(?:options|hover\s+shows)\b|{_STATE}(?:\s*,\s*{_STATE})*\s*(?:\)|$))"
_IN_NAME = re.compile(rf"(?:^|\s)=(?:\s|$)|{_GROUP}|{_HALF_QUOTED}")
_REST_OF_VALUE = r"\(\s*\d+ more characters\s*\)$"
_IN_VALUE = re.compile(rf"{_GROUP}|{_REST_OF_VALUE}|{_HALF_QUOTED}")
_IN_OPTION = re.compile(rf"\||^\d+ more$|{_GROUP}|{_HALF_QUOTED}")
# ... and in the layout "before".
_PART = rf"(?:(?:value|options|hover\s+shows)\s*:|@\s*\d|{_STATE}\b)"
_IN_NAME_BEFORE = re.compile(rf"'\s+{_PART}")
_IN_VALUE_BEFORE = re.compile(
    rf"(?:^|\s)(?:(?:options|hover\s+shows)\s*:|@\s*\d|{_STATE}$)|{_REST_OF_VALUE}|{_HALF_QUOTED}"
)
_IN_OPTION_BEFORE = re.compile(rf"\||^\d+ more$|{_IN_VALUE_BEFORE.pattern}")
# ... and in its rows, where bars separate cells and semicolons what is in one.
_ENDS_PIECE = r"""[|;'"]|@\s*-?\d+\s*,|\boptions\s+as\s+above\b"""
_IN_CELL = re.compile(
    rf"""\||(?:^|;)\s*\w+\s+['"]|^\(\s*(?:hover\s+shows\b|{_STATE}\s*[;)])|@\s*-?\d+\s*,|{_HALF_QUOTED}"""
)
_IN_TAB = re.compile(rf"\||\(\s*current\s*\)|^untitled$|{_HALF_QUOTED}")


@dataclass(frozen=True, slots=True)
class _Patterns:
    """Patterns of ambiguous strings in the layout "before"."""

    name: re.Pattern[str]
    value: re.Pattern[str]
    option: re.Pattern[str]
    is_in_row: bool = False

    def list_of(self, names: Sequence[str]) -> str:
        shown = _names(names, self.option)
        return f"({shown})" if self.is_in_row else shown


_ALONE = _Patterns(_IN_NAME_BEFORE, _IN_VALUE_BEFORE, _IN_OPTION_BEFORE)
_IN_ROW = _Patterns(
    re.compile(_ENDS_PIECE),
    re.compile(f"{_IN_VALUE_BEFORE.pattern}|{_ENDS_PIECE}"),
    re.compile(rf"{_IN_OPTION_BEFORE.pattern}|{_ENDS_PIECE}|[()]"),
    is_in_row=True,
)


@dataclass(frozen=True, slots=True)
class Observation:
    """The text of one page for the model."""

    text: str
    num_shown: int
    """Number of lines of nodes in `text`."""
    num_cut: int
    """Number of lines of nodes that the budget cut."""


class PageLine(NamedTuple):
    """A line of a node or of a row."""

    text: str
    is_prose: bool = False
    """True if its first words may be shown without the others."""


def neutralize(text: str) -> str:
    """Return `text` on one line, unable to forge an id or a fence; see `sanitize.neutralize`."""
    return sanitize.neutralize(text)


def serialize(
    page: Page,
    *,
    layout: Layout = "after",
    budget: int | None = None,
    count: Callable[[str], int] = len,
) -> Observation:
    """Serialize `page`.

    Args:
        page: the observed page.
        layout: position of the element ids, and whether rows are lines.
        budget: maximum of `count(text)`, without the marker line `cut: n more lines`. Lines are
            cut from the end, and the first cut text is shown in part if some words fit. None cuts
            nothing.
        count: returns the length of a text in the budget's unit, usually tokens.
    """
    return fitted(head_lines(page), body_lines(page, layout), tail_lines(page), budget, count)


def fitted(
    head: list[str],
    body: Sequence[PageLine],
    tail: list[str],
    budget: int | None,
    count: Callable[[str], int],
) -> Observation:
    """Join the lines to one text within `budget`, see `serialize`."""
    lines = head + [line.text for line in body]
    text = "\n".join(lines + tail)
    if budget is None or count(text) <= budget:
        return Observation(text, num_shown=len(body), num_cut=0)

    def fits(candidate: Sequence[str]) -> bool:
        return count("\n".join(candidate)) <= budget

    num_kept = _largest_fitting(len(lines), lambda num: fits(lines[:num] + tail))
    kept = lines[:num_kept]
    if not fits(kept + tail):
        tail = []
    shown = max(0, num_kept - len(head))
    if len(head) <= num_kept < len(lines) and body[shown].is_prose:
        kept = kept + _part(lines[num_kept], lambda line: fits([*kept, line, *tail]))
    marker = f"cut: {len(lines) - num_kept} more lines"
    return Observation(
        "\n".join([*kept, *tail, marker]), num_shown=shown, num_cut=len(body) - shown
    )


def _part(line: str, fits: Callable[[str], bool]) -> list[str]:
    """Return the words of `line` that fit, with an ellipsis, if at least four fit."""
    words = line.split(" ")
    num_kept = _largest_fitting(len(words) - 1, lambda num: fits(" ".join(words[:num]) + " ..."))
    return [" ".join(words[:num_kept]) + " ..."] if num_kept >= 4 else []


def _largest_fitting(high: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number from 1 to `high` that fits, by bisection, or 0."""
    low = 0
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def element_in(text: str, id: int) -> str:
    """Return how a serialized page names an element, without its number and its box, or "".

    The name of an element in a row is followed by the row: `Ship (row 1043 | Ada Byron)`.
    """
    number = rf"\[{id}\]"
    alone = rf"^(?:(.+) {number}|{number} (?!row |columns )(.+?)(?: @[-\d,]+)?)$"
    if shown := re.search(alone, text, re.MULTILINE):
        return shown[1] or shown[2]
    for found in re.finditer(r"^(?:\[(\d+)\] )?((?:row|columns) .*)$", text, re.MULTILINE):
        row = found[2]
        if found[1] == str(id):
            return _cut(row)
        if part := re.search(rf" {number} ({_PIECE}+)", row):
            texts = re.sub(rf"(?:; )?\[\d+\] {_PIECE}+", "", row)
            return f"{part[1]} ({_cut(re.sub(r' [ |]*[|] *', ' | ', texts).strip(' |'))})"
    return ""


_PIECE = r"""(?:"[^"]*"|'[^']*'|\([^()]*\)|(?! \||; )[^"'])"""
"""A character or a quoted string of an element in a row."""
MAX_ROW_NAME = 60
"""Maximum number of characters of a row that says where an element is."""


def _cut(row: str) -> str:
    return row if len(row) <= MAX_ROW_NAME else row[: MAX_ROW_NAME - 3] + "..."


def head_lines(page: Page) -> list[str]:
    """Return the lines before the nodes: address, title, tabs, notices, `more above`."""
    lines = [f"url {_truncate(page.url)}", f"title {_truncate(page.title)}".rstrip()]
    if len(page.tabs) > 1:
        titles = [
            (_quote_if_ambiguous(title, _IN_TAB) or "untitled")
            + (" (current)" if index == page.tab else "")
            for index, title in enumerate(page.tabs)
        ]
        lines.append("tabs: " + " | ".join(titles))
    lines += [f"notice: {neutralize(notice)}" for notice in page.notices]
    if page.pixels_above > 0:
        lines.append("more above")
    return lines


def tail_lines(page: Page) -> list[str]:
    """Return the lines after the nodes."""
    return ["more below"] if page.pixels_below > 0 else []


def body_lines(page: Page, layout: Layout) -> list[PageLine]:
    """Return the lines of the nodes with content: one for each node or, in the layout "before",
    for each row."""
    shown = _shown_nodes(page, layout)
    if layout == "after":
        return [PageLine(text, node.role == "text") for text, node in shown]
    groups = [
        [each for _, each in group]
        for _, group in groupby(enumerate(shown), lambda item: _row_of(item[1][1]) or -item[0])
    ]
    alone = [group[0][1] for group in groups if not _is_row(group)]
    num_alike = Counter((node.role, node.name) for node in alone if node.id is not None)
    lines, said = [], set[tuple[str, ...]]()
    for index, group in enumerate(groups):
        if _is_row(group):
            nodes = [node for _, node in group]
            is_prose = all(node.role == "text" and node.kind == "text" for node in nodes)
            lines.append(PageLine(_render_row(nodes, said), is_prose))
            continue
        ((text, node),) = group
        follower = groups[index + 1][0][1] if index + 1 < len(groups) else None
        is_picture = "ocr" in (node.kind, node.role == "image" and follower and follower.kind)
        is_unclear = node.id is not None and (
            not node.name.strip() or num_alike[node.role, node.name] > 1
        )
        if is_picture or is_unclear or "point" in node.uses:
            box = node.box
            text += f" @{box.x},{box.y},{box.width},{box.height}"
        lines.append(PageLine(text, node.role == "text"))
    return lines


def _row_of(node: Node) -> int:
    """Return the number of a node's row, or 0."""
    return node.cell.row if node.cell else 0


def _is_row(group: Sequence[tuple[str, Node]]) -> bool:
    return len(group) > 1 or bool(group[0][1].cells)


def _shown_nodes(page: Page, layout: Layout) -> list[tuple[str, Node]]:
    """Return the nodes with content, and how each is written alone.

    A node that repeats the one before it at the same place is left out, as where an image lies
    over its own title. Equal texts at different places, such as a price and a total, are all shown.
    """
    nodes = page.nodes
    shown: list[tuple[str, Node]] = []
    previous, before = "", None
    for index, node in enumerate(nodes):
        if node.role == "image" and node.id is None and not node.name.strip():
            follower = nodes[index + 1] if index + 1 < len(nodes) else None
            if follower is None or follower.kind != "ocr":
                continue
        line = _render_after(node) if layout == "after" else _render_before(node)
        is_code = node.role == "code"  # where blank and equal lines count
        if not line and not is_code:
            continue
        if line == previous and not is_code and before is not None and _overlap(before, node.box):
            continue
        previous, before = line, node.box
        shown.append((line, node))
    return shown


def _overlap(one: Box, other: Box) -> bool:
    """Return True if two boxes share at least half of the smaller one."""
    width = min(one.x + one.width, other.x + other.width) - max(one.x, other.x)
    height = min(one.y + one.height, other.y + other.height) - max(one.y, other.y)
    smaller = min(one.width * one.height, other.width * other.height)
    return 2 * max(0, width) * max(0, height) >= smaller


def _render_after(node: Node) -> str:
    if node.kind == "ocr":
        words = ["ocr:", _quote_if_ambiguous(node.name, _IN_VALUE, limit=None)]
    elif node.role in ("text", "code"):
        name = sanitize.neutralize(node.name, is_code=node.role == "code")
        words = ["text", name] if any(map(_OUR_LINE.match, sanitize.normal_forms(name))) else [name]
    else:
        has_details = node.id is not None or node.value or node.options or node.states
        words = [
            neutralize(node.role),
            _quote_if_ambiguous(node.name, _IN_NAME) if has_details else _truncate(node.name),
        ]
    if value := _value(node, _IN_VALUE):
        words += ["=", value]
    if node.options:
        words.append(f"(options: {_names(node.options, _IN_OPTION)})")
    if node.reveals:
        words.append(f"(hover shows: {_names(node.reveals, _IN_OPTION)})")
    if states := _states(node):
        words.append(f"({', '.join(states)})")
    if node.id is not None:
        words.append(f"[{node.id}]")
    return " ".join(word for word in words if word)


def _render_before(node: Node, patterns: _Patterns = _ALONE) -> str:
    if node.role == "text" and not node.name.strip():
        return ""
    if node.role == "code":
        name = f"'{sanitize.neutralize(node.name, is_code=True)}'"
        if any(map(patterns.name.search, sanitize.normal_forms(name))):
            name = sanitize.quote(node.name, is_code=True)
    else:
        is_text = node.role == "text" or node.kind == "ocr"
        name = _quote_if_ambiguous(
            node.name, patterns.name, limit=None if is_text else MAX_NAME, mark="'"
        )
    words = [] if node.id is None else [f"[{node.id}]"]
    words += ["ocr" if node.kind == "ocr" else neutralize(node.role), name]
    if value := _value(node, patterns.value):
        words.append(f"value: {value}")
    if node.options:
        words.append(f"options: {patterns.list_of(node.options)}")
    if node.reveals:
        words.append(f"hover shows: {patterns.list_of(node.reveals)}")
    return " ".join([*words, *_states(node)])


def _render_row(nodes: Sequence[Node], said: set[tuple[str, ...]]) -> str:
    """Return the line of a row: its own number and states, if any, and its cells between bars.

    Nodes of one cell stand between semicolons. A button or link with nothing but a name is its
    number and that name, without quotes.

    Args:
        nodes: all nodes of the row, in order.
        said: lists of options that earlier rows have shown; those of this row are added.
    """
    whole = nodes[0] if nodes[0].cell and nodes[0].cell.column == WHOLE_ROW else None
    words = [] if whole is None or whole.id is None else [f"[{whole.id}]"]
    words.append("columns" if nodes[0].cell and nodes[0].cell.is_header else "row")
    details = [] if whole is None else _states(whole)
    if whole is not None and whole.role not in ("text", "button", "link", "item"):
        details.insert(0, neutralize(whole.role))
    if whole is not None and whole.reveals:
        details.append(f"hover shows: {_names(whole.reveals, _IN_ROW.option)}")
    if details:
        words.append(f"({'; '.join(details)})")
    if whole is not None and len(nodes) == 1:
        cells = [_quote_if_ambiguous(text, _IN_CELL, limit=None) for text in whole.cells]
    else:
        cells = []
        inner = nodes if whole is None else nodes[1:]
        for column, group in groupby(inner, lambda node: node.cell.column if node.cell else 0):
            cells += [""] * min(column - len(cells), MAX_GAP)
            cells.append("; ".join(_render_in_row(node, said) for node in group))
    return " ".join([*words, " | ".join(cells)])


def _render_in_row(node: Node, said: set[tuple[str, ...]]) -> str:
    if node.kind == "text" and node.role in ("text", "heading") and not node.value:
        return _quote_if_ambiguous(node.name, _IN_CELL, limit=None)
    states = tuple(each for each in node.states if each != "heading")
    node = replace(node, states=states)
    if node.role in ("button", "link") and node.name.strip():
        full = replace(node, value="", options=(), reveals=(), states=())
        name = _quote_if_ambiguous(node.name, _IN_ROW.name)
        if node == full and not name.startswith('"'):
            return f"[{node.id}] {name}"
    if node.options in said:
        return _render_before(replace(node, options=()), _IN_ROW) + " options as above"
    said.update({node.options} - {()})
    return _render_before(node, _IN_ROW)


def _value(node: Node, ambiguous: re.Pattern[str]) -> str:
    text = neutralize(node.value)
    shown = _quote_if_ambiguous(text[:MAX_VALUE], ambiguous, limit=None)
    rest = len(text) - MAX_VALUE
    return f"{shown} ... ({rest} more characters)" if rest > 0 else shown


def _states(node: Node) -> list[str]:
    return [neutralize(each) for each in node.states if each != "hover" or not node.reveals]


def _names(names: Sequence[str], ambiguous: re.Pattern[str]) -> str:
    shown = [_quote_if_ambiguous(name, ambiguous) for name in names[:MAX_OPTIONS]]
    rest = len(names) - len(shown)
    return " | ".join(shown + ([f"{rest} more"] if rest else []))


def _quote_if_ambiguous(
    text: str, ambiguous: re.Pattern[str], *, limit: int | None = MAX_NAME, mark: str = ""
) -> str:
    """Return `text` between `mark`s, or in double quotes if it is ambiguous."""
    text = _truncate(text) if limit else neutralize(text)
    if any(map(ambiguous.search, sanitize.normal_forms(text))):
        return sanitize.quote(text)
    return mark + text + mark


def _truncate(text: str) -> str:
    text = neutralize(text)
    return text if len(text) <= MAX_NAME else neutralize(text[: MAX_NAME - 3] + "...")
