"""The actions beyond VisualWebArena's that a page has a use for: in words, and as patterns.

A chat model is told of them only on such a page, so that every other prompt stays short. The
browser says what an element supports (`agentkv_env.page.Node.uses`).
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from agentkv.dialog.quotes import TEXT
from agentkv_env.page import Node, Page, Use
from agentkv_env.serialize import MAX_OPTIONS, neutralize

MAX_NAMED = 8
"""Elements that a description names; a page may have hundreds alike."""
MAX_PATTERN_IDS = 1000
"""Elements, in reading order, that a pattern names."""
MAX_LINES = 12
"""Lines of a text to type. They can be closed with `grammar.CLOSING_TOKENS`."""
MAX_LINE = 120
"""Maximum number of characters of such a line, as `reply_grammar.MAX_TEXT`."""
MAX_WORDS = 60
"""Maximum number of characters of words that are looked for in a text."""

WAIT = "wait"
"""The action that lets a page go on."""

_POINT = r"\[[0-9]{1,3}%,[0-9]{1,3}%\]"
_MORE = rf"(?:\n{TEXT}{{0,{MAX_LINE}}})"
_LINES = rf"(?:{TEXT}{{1,{MAX_LINE}}}{_MORE}{{0,{MAX_LINES - 1}}}|{_MORE}{{1,{MAX_LINES - 1}}})"
_WORDS = rf"{TEXT}{{1,{MAX_WORDS}}}"


def describe(page: Page) -> str:
    """Return a line for each kind of action that `page` has a use for; empty for none."""
    return "".join(f"{line}\n" for line in _descriptions(page))


def _descriptions(page: Page) -> Iterator[str]:
    if lines := _having(page.nodes, "lines"):
        yield f"The text of {_named(lines)} may have several lines."
    if filled := [node for node in lines if node.value]:
        yield (
            f"append [number] [text] adds text at the end of {_named(filled)}; insert [number] "
            "[words] [text] puts it before words that are there; type replaces everything."
        )
    if editors := _having(page.nodes, "format"):
        yield (
            f"select_text [number] [first words] [last words] selects text of {_named(editors)}, "
            "such as to format it."
        )
    if lists := _having(page.nodes, "several"):
        yield f"choose [number] [option] [option] chooses several options of {_named(lists)}."
    if areas := _having(page.nodes, "area"):
        yield f"scroll [down] [number] scrolls just the area with {_named(areas)}; or scroll [up]."
    if movable := _having(page.nodes, "drag"):
        yield f"drag [number] [number] drags {_named(movable)} onto another element."
    if (fields := _having(page.nodes, "file")) and page.uploads:
        files = " | ".join(map(neutralize, page.uploads))
        yield f"upload [number] [file] gives a file to {_named(fields)}: {files}"
    if pictures := _having(page.nodes, "point"):
        yield (
            f"click [number] [x%,y%] presses a point of {_named(pictures)}, in percent of its "
            "width and height; so do double_click, right_click and hover. drag [number] [x%,y%] "
            "[number] [x%,y%] moves from point to point."
        )
    if hovered := [node for node in page.nodes if "hover" in node.states]:
        yield f"hover [number] shows what only the mouse over {_named(hovered)} makes visible."
    if may_wait(page):
        yield f"{WAIT} lets the page go on until it has changed."


def patterns(page: Page, nodes: Sequence[Node]) -> list[str]:
    """Return regular expressions of the actions that `describe` describes, `WAIT` apart.

    Args:
        nodes: those of the page that an action may begin with.
    """
    found = []
    if lines := _having(nodes, "lines"):
        found.append(rf"type {_ids(lines)} \[{_LINES}\] \[[01]\]")
    if filled := [node for node in lines if node.value]:
        found.append(rf"append {_ids(filled)} \[{_LINES}\]")
        found.append(rf"insert {_ids(filled)} \[(?:{_WORDS})?\] \[{_LINES}\]")
    if editors := _having(nodes, "format"):
        found.append(rf"select_text {_ids(editors)}(?: \[{_WORDS}\]){{0,2}}")
    for node in _having(nodes, "several"):
        options = "|".join(re.escape(neutralize(each)) for each in node.options[:MAX_OPTIONS])
        if options:
            found.append(rf"choose \[{node.id}\](?: \[(?:{options})\]){{1,{MAX_OPTIONS}}}")
    if areas := _having(nodes, "area"):
        found.append(rf"scroll \[(?:up|down)\] {_ids(areas)}")
    if movable := _having(nodes, "drag"):
        others = [node for node in page.nodes if node.id is not None]
        found.append(rf"drag {_ids(movable)} {_ids(others)}")
    if (fields := _having(nodes, "file")) and page.uploads:
        files = "|".join(re.escape(neutralize(each)) for each in page.uploads)
        found.append(rf"upload {_ids(fields)} \[(?:{files})\]")
    if pictures := _having(nodes, "point"):
        ids = _ids(pictures)
        found.append(rf"(?:click|double_click|right_click|hover) {ids} {_POINT}")
        found.append(rf"drag {ids} {_POINT} {_ids(_having(page.nodes, 'point'))} {_POINT}")
    return found


def may_wait(page: Page) -> bool:
    """Return whether `WAIT` is of use on `page`."""
    return page.may_change or not page.nodes


def _having(nodes: Sequence[Node], use: Use) -> list[Node]:
    """Return the elements with a use, unless they are disabled, read-only or covered."""
    return [
        node
        for node in nodes
        if use in node.uses
        and (use == "area" or not {"disabled", "readonly", "covered"} & {*node.states})
    ]


def _named(nodes: list[Node]) -> str:
    more = " and others" if len(nodes) > MAX_NAMED else ""
    return ", ".join(f"[{node.id}]" for node in nodes[:MAX_NAMED]) + more


def _ids(nodes: Iterable[Node]) -> str:
    ids = [str(node.id) for node in nodes][:MAX_PATTERN_IDS]
    return rf"\[(?:{'|'.join(ids)})\]"
