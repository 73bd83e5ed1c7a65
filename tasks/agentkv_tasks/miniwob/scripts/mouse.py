"""Scripts for pages where things are dragged, or pressed at a place."""

import re
from collections.abc import Generator

from agentkv.models.scripted import SolutionStuck
from agentkv_env.actions import Action, Point
from agentkv_env.page import Node, Page
from agentkv_tasks.miniwob.eyes import click, drag, element, elements, matched
from agentkv_tasks.miniwob.script import Steps

_RESIZED_BY = 20  # pixels


def resize_field(goal: str, page: Page) -> Steps:
    """`Resize the textarea so that the width is smaller than its initial size then press Submit.`

    The field is dragged by its lower right corner.
    """
    side, change = matched(r"the (width|height) is (smaller|larger)", goal)
    field = element(page, "textbox")
    by = _RESIZED_BY if change == "larger" else -_RESIZED_BY
    x, y = field.box.width - 4, field.box.height - 4
    end = Point(x + by, y) if side == "width" else Point(x, y + by)
    page = yield drag(field, field, Point(x, y), end)
    yield click(element(page, "button", "Submit"))


def drag_item(goal: str, page: Page) -> Steps:
    """`Drag Riki to the 5th position.`, to the bottom, or up by one position."""
    name, where = matched(r"Drag (\S+) (.*)\.", goal)
    items = [node for node in elements(page) if node.role != "button"]
    start = [node.name for node in items].index(name)
    if where.startswith(("up", "down")):
        end = start + (1 if "down" in where else -1)
    elif "top" in where or "bottom" in where:
        end = 0 if "top" in where else len(items) - 1
    else:
        end = int(matched(r"(\d+)", where)[0]) - 1
    yield _drag_to(items, start, end)


def sort_items(goal: str, page: Page) -> Steps:
    """Sort numbers: each is dragged to its place, from the least on."""
    for place in range(len(_numbers(page))):
        items = _numbers(page)
        values = [int(node.name) for node in items]
        start = values.index(min(values[place:]), place)
        if start != place:
            page = yield _drag_to(items, start, place)
    yield click(element(page, "button", "Submit"))


def _numbers(page: Page) -> list[Node]:
    return [node for node in elements(page) if re.fullmatch(r"-?\d+", node.name)]


def _drag_to(items: list[Node], start: int, end: int) -> Action:
    """Drag an item of a list to the place of another, beyond its middle."""
    return drag(items[start], items[end], None, Point(50, 80 if end > start else 20, "%"))


def put_into_box(goal: str, page: Page) -> Steps:
    """`Drag the smaller box so that it is completely inside the larger box.`"""
    page = yield drag(element(page, "", "s"), element(page, "", "L"))
    yield click(element(page, "button", "Submit"))


def press_coordinate(goal: str, page: Page) -> Steps:
    """`Click on the grid coordinate (-2,1).`: five columns of five points."""
    x, y = map(int, matched(r"\((-?\d+),(-?\d+)\)", goal))
    points = elements(page)
    if len(points) != 25:
        raise SolutionStuck(f"expected 25 points, found {len(points)}")
    points.sort(key=lambda node: node.box.x)
    column = sorted(points[5 * (x + 2) :][:5], key=lambda node: -node.box.y)
    yield click(column[y + 2])


def press_in_order(goal: str, page: Page) -> Steps:
    """`Click on the numbers in ascending order.`: after the first click the page hides them."""
    for number in sorted(_numbers(page), key=lambda node: int(node.name)):
        page = yield click(min(elements(page), key=lambda node: _distance(node, number)))


def _distance(one: Node, other: Node) -> float:
    """Return the square of the distance between two middles, in pixels."""
    (x, y), (u, v) = (
        (2 * box.x + box.width, 2 * box.y + box.height) for box in (one.box, other.box)
    )
    return ((x - u) ** 2 + (y - v) ** 2) / 4


def press_posts(goal: str, page: Page) -> Steps:
    """`For the user @alan, click on the "Block" button.`

    Below a post stand four buttons without names: reply, retweet, like, and a menu.
    """
    user, action = matched(r'the user (\S+), click on the "(.*?)" button', goal)
    posts = _Posts()
    while not (found := posts.of(user, page)):
        page = yield Action("scroll", direction="down")
    buttons = found[0]
    if action in _POST_ACTIONS[:3]:
        yield click(buttons[_POST_ACTIONS.index(action)])
        return
    page = yield click(buttons[3])

    def chosen() -> list[Node]:
        names = (action, f"{action} {user}")
        return [node for node in elements(page) if node.name in names]

    while not chosen():
        page = yield Action("scroll", direction="down")
    yield click(chosen()[0])


def press_all_posts(goal: str, page: Page) -> Steps:
    """`Click the "Like" button on all posts by @a and then click Submit.`, or on 3 posts."""
    action, number, user = matched(r'the "(.*?)" button on (all|\d+) posts? by (\S+)', goal)
    left = None if number == "all" else int(number)
    pressed: set[int | None] = set()
    posts = _Posts()
    while True:
        for buttons in posts.of(user, page):
            button = buttons[_POST_ACTIONS.index(action)]
            if button.id not in pressed and left != len(pressed):
                pressed.add(button.id)
                page = yield click(button)
        if not page.pixels_below:
            break
        page = yield Action("scroll", direction="down")
    yield click(element(page, "button", "Submit"))


_POST_ACTIONS = ("Reply", "Retweet", "Like", "Share")


class _Posts:
    """Posts on one screen after the other, some of which begin on one and end on the next."""

    def __init__(self) -> None:
        self._user = ""
        """Whose post the screen before ends with."""

    def of(self, user: str, page: Page) -> list[list[Node]]:
        """Return the buttons of each post by `user`."""
        found: dict[int, list[Node]] = {}
        number = 0
        for node in page.nodes[1:]:  # the first is the instruction
            names = [word for word in node.name.split() if word.startswith("@")]
            if node.id is None and names:
                self._user = names[0]
                number += 1
            elif node.role == "button" and not node.name and self._user == user:
                found.setdefault(number, []).append(node)
        return [buttons for buttons in found.values() if len(buttons) == len(_POST_ACTIONS)]


def order_food(goal: str, page: Page) -> Steps:
    """`Order one of each item: Garlic bread, Cheese wheel`, or `Order 3 items that are vegan`."""
    if "one of each" in goal:
        for name in matched(r"each item: (.*)", goal)[0].split(", "):
            while page.pixels_above:
                page = yield Action("scroll", direction="up")
            page, button = yield from _find_dish(page, name.strip())
            page = yield click(button)
    else:
        number, kind = matched(r"Order (\d+) items that are (.*)", goal)
        for _ in range(int(number)):
            page, button = yield from _find_dish(page, kind)
            page = yield click(button)
    while page.pixels_below:
        page = yield Action("scroll", direction="down")
    yield click(element(page, "button", "Order!"))


def _find_dish(page: Page, text: str) -> Generator[Action, Page, tuple[Page, Node]]:
    """Return the button `+` of the first dish with this name or kind.

    It is not below the name or the picture of the kind: the next one below is of another dish.
    """
    while True:
        bottom = 0
        for node in page.nodes[1:]:
            if node.id is None and node.name == text:
                bottom = node.box.y + node.box.height
            elif node.id is not None and node.name == "+" and node.box.y < bottom:
                return page, node
        page = yield Action("scroll", direction="down")
