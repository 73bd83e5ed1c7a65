"""Page -> text for a model: one line per node, a token budget, no way for a page to forge a line.

Layout "after" puts the number behind the name, `link Blue Kayak [12]`; "before" is shaped like
VisualWebArena's, `[12] link 'Blue Kayak'`. Pure: no browser, no tokenizer of its own.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from agentkv_env.page import Node, Page

Layout = Literal["after", "before"]

MAX_NAME = 200
"""Characters of an element's name, value, address or title that are shown, as upstream does."""
MAX_OPTIONS = 40
"""Options of one select that are shown; a list of all countries would bury the page."""

_REPLACED = str.maketrans({"[": "(", "]": ")", "`": "'", "［": "(", "］": ")", "｀": "'"})
# A text that begins like one of our own lines is marked as text, or the page could speak for us.
_RESERVED = re.compile(
    r"(?i)(url|title|tabs:|notice:|error:|ocr:|cut:|same:|gone:|more (above|below)"
    r"|goal|objective)(?!\w)"
)


@dataclass(frozen=True, slots=True)
class Observation:
    """What the model reads of one page."""

    text: str
    num_shown: int
    """Nodes that have a line in `text`."""
    num_cut: int
    """Nodes that had one and lost it to the budget."""


def neutral(text: str) -> str:
    """`text` on one line, white space collapsed, unable to forge an id or a fence.

    Square brackets become round ones, backticks become apostrophes; control, format and unpaired
    surrogate characters go.
    """
    if not text.isascii() or not text.isprintable():
        text = "".join(map(_plain, text))
    return " ".join(text.split()).translate(_REPLACED)


def _plain(character: str) -> str:
    category = unicodedata.category(character)
    if category in ("Cc", "Zl", "Zp"):
        return " "
    return "" if category in ("Cf", "Cs") else character


def serialize(
    page: Page,
    *,
    layout: Layout = "after",
    boxes: bool = False,
    budget: int | None = None,
    count: Callable[[str], int] = len,
) -> Observation:
    """Write `page` as lines.

    Args:
        page: what was observed.
        layout: where an element's number stands.
        boxes: end each node's line in ` @x,y,w,h` (viewport pixels).
        budget: `count(text)` stays at or under this, but for the marker line `cut: n more lines`.
            Lines are cut from the end; a text that half fits is shown in part. None cuts nothing.
        count: length of a text in the budget's unit, usually tokens.
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
    """The lines as one text within `budget`, which is `serialize`'s."""
    lines = head + [line for line, _ in body]
    text = "\n".join(lines + tail)
    if budget is None or count(text) <= budget:
        return Observation(text, num_shown=len(body), num_cut=0)

    def fits(candidate: Sequence[str]) -> bool:
        return count("\n".join(candidate)) <= budget

    num_kept = _most(len(lines), lambda num: fits(lines[:num] + tail))
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
    """As many words of `line` as fit, with an ellipsis; nothing if that is hardly any."""
    words = line.split(" ")
    num_kept = _most(len(words) - 1, lambda num: fits(" ".join(words[:num]) + " ..."))
    return [" ".join(words[:num_kept]) + " ..."] if num_kept >= 4 else []


def _most(high: int, fits: Callable[[int], bool]) -> int:
    """The largest number from 1 to `high` that fits, by halving; 0 if none does."""
    low = 0
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def head_lines(page: Page) -> list[str]:
    """What is said of a page before its nodes."""
    lines = [f"url {_short(page.url)}", f"title {_short(page.title)}".rstrip()]
    if len(page.tabs) > 1:
        titles = [
            f"{_short(title) or 'untitled'}{' (current)' if index == page.tab else ''}"
            for index, title in enumerate(page.tabs)
        ]
        lines.append("tabs: " + " | ".join(titles))
    lines += [f"notice: {neutral(notice)}" for notice in page.notices]
    if page.pixels_above > 0:
        lines.append("more above")
    return lines


def tail_lines(page: Page) -> list[str]:
    """What is said of a page after its nodes."""
    return ["more below"] if page.pixels_below > 0 else []


def body_lines(page: Page, layout: Layout, boxes: bool) -> list[tuple[str, Node]]:
    """A line for each node that has something to say, but for repetitions of the line before."""
    nodes = page.nodes
    lines: list[tuple[str, Node]] = []
    previous = ""
    for index, node in enumerate(nodes):
        if node.role == "image" and node.id is None and not node.name.strip():
            follower = nodes[index + 1] if index + 1 < len(nodes) else None
            if follower is None or follower.kind != "ocr":
                continue
        line = _after(node) if layout == "after" else _before(node)
        if not line or line == previous:
            continue
        previous = line
        if boxes:
            box = node.box
            line += f" @{box.x},{box.y},{box.width},{box.height}"
        lines.append((line, node))
    return lines


def _after(node: Node) -> str:
    if node.kind == "ocr":
        words = ["ocr:", neutral(node.name)]
    elif node.role == "text":
        name = neutral(node.name)
        words = ["text", name] if _RESERVED.match(name) else [name]
    else:
        words = [neutral(node.role), _short(node.name)]
    if node.value:
        words += ["=", _short(node.value)]
    if node.options:
        words.append(f"(options: {_options(node)})")
    if node.states:
        words.append(f"({', '.join(map(neutral, node.states))})")
    if node.id is not None:
        words.append(f"[{node.id}]")
    return " ".join(word for word in words if word)


def _before(node: Node) -> str:
    if node.role == "text" and not node.name.strip():
        return ""
    name = neutral(node.name) if node.role == "text" or node.kind == "ocr" else _short(node.name)
    words = [] if node.id is None else [f"[{node.id}]"]
    words += ["ocr" if node.kind == "ocr" else neutral(node.role), f"'{name}'"]
    if node.value:
        words.append(f"value: {_short(node.value)}")
    if node.options:
        words.append(f"options: {_options(node)}")
    return " ".join([*words, *map(neutral, node.states)])


def _options(node: Node) -> str:
    shown = [_short(option) for option in node.options[:MAX_OPTIONS]]
    rest = len(node.options) - len(shown)
    return " | ".join(shown + ([f"{rest} more"] if rest else []))


def _short(text: str) -> str:
    text = neutral(text)
    return text if len(text) <= MAX_NAME else text[: MAX_NAME - 3] + "..."
