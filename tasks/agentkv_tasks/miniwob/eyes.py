"""Helpers of the scripts: find elements and texts on a page, and make actions."""

import re
from collections.abc import Sequence

from agentkv.models.scripted import SolutionStuck
from agentkv_env.actions import Action, Point
from agentkv_env.page import Node, Page


def elements(page: Page, role: str = "") -> list[Node]:
    """Return the elements of `page` with `role`, or all of them, in reading order."""
    return [node for node in page.nodes if node.id is not None and role in ("", node.role)]


def has(page: Page, role: str, name: str) -> bool:
    """Return whether an element has this role, unless empty, and this name."""
    return any(node.name == name for node in elements(page, role))


def element(page: Page, role: str, name: str | None = None, nth: int = 1) -> Node:
    """Return the `nth` element with this role, unless empty, and this name, unless None.

    Raises:
        SolutionStuck: the page has fewer of them.
    """
    of_role = elements(page, role)
    matching = [node for node in of_role if name in (None, node.name)]
    if len(matching) < nth:
        known = ", ".join(repr(node.name) for node in of_role) or "none"
        raise SolutionStuck(f"no {role} {name!r} number {nth} on {page.url}; {role}s: {known}")
    return matching[nth - 1]


def texts(page: Page) -> list[str]:
    """Return the texts below the instruction, which is the first."""
    return [node.name for node in page.nodes if node.id is None][1:]


def below(page: Page, text: str, role: str) -> Node:
    """Return the first element with `role` below the text `text`.

    Raises:
        SolutionStuck: there is none.
    """
    names = [node.name for node in page.nodes if node.id is None]
    if text in names:
        start = next(i for i, node in enumerate(page.nodes) if node.name == text)
        for node in page.nodes[start + 1 :]:
            if node.id is not None and node.role == role:
                return node
    raise SolutionStuck(f"no {role} below the text {text!r} on {page.url}; texts: {names}")


def quoted(goal: str) -> list[str]:
    """Return the texts between double quotes in `goal`."""
    return re.findall(r'"([^"]*)"', goal)


def matched(pattern: str, text: str) -> Sequence[str]:
    """Return the groups of the first match of `pattern` in `text`, without None.

    Raises:
        SolutionStuck: there is no match.
    """
    found = re.search(pattern, text)
    if found is None:
        raise SolutionStuck(f"expected {pattern!r} in {text!r}")
    return [group or "" for group in found.groups()]


def ordinal(text: str) -> int:
    """Return the number of an ordinal such as `2nd`."""
    return int(matched(r"(\d+)(?:st|nd|rd|th)", text)[0])


def click(node: Node) -> Action:
    """Click `node`."""
    return Action("click", element_id=node.id)


def drag(
    node: Node, onto: Node, point: Point | None = None, onto_point: Point | None = None
) -> Action:
    """Drag `node` by `point` to `onto_point` of another, each by default the middle."""
    return Action(
        "drag", element_id=node.id, point=point, target_id=onto.id, target_point=onto_point
    )


def hover(node: Node) -> Action:
    """Move the mouse over `node`."""
    return Action("hover", element_id=node.id)


def enter(node: Node, text: str) -> Action:
    """Type `text` into `node` without pressing Enter, or choose the option `text`."""
    return Action("type", element_id=node.id, text=text, enter=False)


def press(key: str) -> Action:
    """Press a key or a combination of keys."""
    return Action("press", key=key)
