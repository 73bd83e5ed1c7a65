"""Serialize a page for a model: one line per node, within a token budget.

Layout "after" puts the id after the name, `link Blue Kayak [12]`; layout "before" follows
VisualWebArena, `[12] link 'Blue Kayak'`. Needs no browser and no tokenizer.

A page cannot forge a line of the harness. Three rules separate the page's text from ours, and they
hold for readers that apply a Unicode normal form or ignore case:

* Only we write a single number in square brackets; the page's become white ones, `⟦12⟧`.
* Only our lines begin with `url`, `notice:`, `more above` and the other markers; a text of the page
  that begins with a marker gets the word `text` in front.
* Within a line, a string of the page is bare only where it is unambiguous. A name with ` = ` or a
  state in parentheses, or a title with `|`, stands in double quotes.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from agentkv_env import sanitize
from agentkv_env.page import STATES, Box, Node, Page

Layout = Literal["after", "before"]

MAX_NAME = 200
"""Maximum characters of a name, option, address or title (VisualWebArena's limit)."""
MAX_VALUE = 1000
"""Maximum characters of a value, such as a text to be edited (our choice)."""
MAX_OPTIONS = 40
"""Maximum options shown of one select; a list of all countries would hide the page."""

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
_IN_TAB = re.compile(rf"\||\(\s*current\s*\)|^untitled$|{_HALF_QUOTED}")


@dataclass(frozen=True, slots=True)
class Observation:
    """The text of one page for the model."""

    text: str
    num_shown: int
    """Number of nodes with a line in `text`."""
    num_cut: int
    """Number of nodes whose line the budget cut."""


def neutralize(text: str) -> str:
    """Return `text` on one line, unable to forge an id or a fence; see `sanitize.neutralize`."""
    return sanitize.neutralize(text)


def serialize(
    page: Page,
    *,
    layout: Layout = "after",
    boxes: bool = False,
    budget: int | None = None,
    count: Callable[[str], int] = len,
) -> Observation:
    """Serialize `page`.

    Args:
        page: the observed page.
        layout: position of the element ids.
        boxes: append ` @x,y,w,h` (viewport pixels) to each node's line.
        budget: maximum of `count(text)`, without the marker line `cut: n more lines`. Lines are
            cut from the end, and the first cut text is shown in part if some words fit. None cuts
            nothing.
        count: returns the length of a text in the budget's unit, usually tokens.
    """
    return fitted(
        head_lines(page), body_lines(page, layout, boxes), tail_lines(page), budget, count
    )


def fitted(
    head: list[str],
    body: Sequence[tuple[str, Node]],
    tail: list[str],
    budget: int | None,
    count: Callable[[str], int],
) -> Observation:
    """Join the lines to one text within `budget`, see `serialize`."""
    lines = head + [line for line, _ in body]
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
    if len(head) <= num_kept < len(lines) and body[shown][1].role == "text":
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


def body_lines(page: Page, layout: Layout, boxes: bool) -> list[tuple[str, Node]]:
    """Return a line for each node with content.

    A line that repeats the one before it at the same place is left out, as where an image lies
    over its own title. Equal texts at different places, such as a price and a total, are all shown.
    """
    nodes = page.nodes
    lines: list[tuple[str, Node]] = []
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
        if boxes:
            box = node.box
            line += f" @{box.x},{box.y},{box.width},{box.height}"
        lines.append((line, node))
    return lines


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


def _render_before(node: Node) -> str:
    if node.role == "text" and not node.name.strip():
        return ""
    if node.role == "code":
        name = f"'{sanitize.neutralize(node.name, is_code=True)}'"
        if any(map(_IN_NAME_BEFORE.search, sanitize.normal_forms(name))):
            name = sanitize.quote(node.name, is_code=True)
    else:
        is_text = node.role == "text" or node.kind == "ocr"
        name = _quote_if_ambiguous(
            node.name, _IN_NAME_BEFORE, limit=None if is_text else MAX_NAME, mark="'"
        )
    words = [] if node.id is None else [f"[{node.id}]"]
    words += ["ocr" if node.kind == "ocr" else neutralize(node.role), name]
    if value := _value(node, _IN_VALUE_BEFORE):
        words.append(f"value: {value}")
    if node.options:
        words.append(f"options: {_names(node.options, _IN_OPTION_BEFORE)}")
    if node.reveals:
        words.append(f"hover shows: {_names(node.reveals, _IN_OPTION_BEFORE)}")
    return " ".join([*words, *_states(node)])


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
