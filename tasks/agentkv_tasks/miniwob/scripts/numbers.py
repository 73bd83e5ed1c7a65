"""Scripts for sums, comparisons, sliders and spinners."""

import re
from collections.abc import Generator

from agentkv_env.actions import Action
from agentkv_env.page import Page
from agentkv_tasks.miniwob.eyes import (
    click,
    element,
    elements,
    enter,
    matched,
    ordinal,
    press,
    texts,
)
from agentkv_tasks.miniwob.script import Steps


def solve_sum(goal: str, page: Page) -> Steps:
    """`7 x 5 =`"""
    left, sign, right = matched(r"(\d+) ([-+x]) (\d+) =", " ".join(texts(page)))
    one, two = int(left), int(right)
    answer = {"+": one + two, "-": one - two, "x": one * two}[sign]
    page = yield enter(element(page, "textbox"), str(answer))
    yield click(element(page, "button", "Submit"))


def solve_equation(goal: str, page: Page) -> Steps:
    """`x + 7 = 58` or `7 - x = 58`"""
    left, sign, right, total = matched(r"(x|\d+) ([-+]) (x|\d+) = (-?\d+)", texts(page)[0])
    if left == "x":
        answer = int(total) - int(right) if sign == "+" else int(total) + int(right)
    else:
        answer = int(total) - int(left) if sign == "+" else int(left) - int(total)
    page = yield enter(element(page, "textbox"), str(answer))
    yield click(element(page, "button", "Submit"))


def generate_number(goal: str, page: Page) -> Steps:
    """`Generate a number less than 5, then press submit.`, or one that is odd, even or greater."""

    def fits(text: str) -> bool:
        if not text.isdigit():
            return False
        number = int(text)
        if "less than" in goal or "greater than" in goal:
            bound = int(matched(r"than (\d+)", goal)[0])
            return number < bound if "less" in goal else number > bound
        return number % 2 == int("odd" in goal)

    while not fits(texts(page)[0]):
        page = yield click(element(page, "button", "Generate"))
    yield click(element(page, "button", "Submit"))


def guess_number(goal: str, page: Page) -> Steps:
    """Halve the range of 0 to 9 until the page is over."""
    least, most = 0, 9
    while True:
        guess = (least + most) // 2
        page = yield enter(element(page, "textbox"), str(guess))
        page = yield click(element(page, "button", "Submit"))
        feedback = " ".join(texts(page))
        if "lower than" in feedback:
            most = guess - 1
        elif "higher than" in feedback:
            least = guess + 1
        else:
            return


def mark_odd_and_even(goal: str, page: Page) -> Steps:
    """Mark each number as odd or even; its two buttons stand around it."""
    for nth, number in enumerate(texts(page), start=1):
        name = "Odd" if int(number) % 2 else "Even"
        page = yield click(element(page, "button", name, nth))
    yield click(element(page, "button", "Submit"))


def pick_greatest(goal: str, page: Page) -> Steps:
    """Pick the card with the greatest number."""
    cards = [node for node in elements(page, "button") if node.name.isdigit()]
    page = yield click(max(cards, key=lambda node: int(node.name)))
    yield click(element(page, "button", "Submit"))


def set_slider(goal: str, page: Page) -> Steps:
    """`Select 22 with the slider and hit Submit.`"""
    page = yield from _move(page, 1, int(matched(r"Select (-?\d+)", goal)[0]))
    yield click(element(page, "button", "Submit"))


def set_sliders(goal: str, page: Page) -> Steps:
    """`Set the sliders to the combination [2,14,5] and submit.`"""
    for nth, number in enumerate(matched(r"\[(.*)\]", goal)[0].split(","), start=1):
        page = yield from _move(page, nth, int(number))
    yield click(element(page, "button", "Submit"))


def set_slider_and_check_box(goal: str, page: Page) -> Steps:
    """`Select -8 with the slider, click the 3rd checkbox, then hit Submit.`"""
    page = yield from _move(page, 1, int(matched(r"Select (-?\d+)", goal)[0]))
    page = yield click(element(page, "checkbox", nth=ordinal(goal)))
    yield click(element(page, "button", "Submit"))


def _move(page: Page, nth: int, wanted: int) -> Generator[Action, Page, Page]:
    """Move the `nth` slider to `wanted` by keys: PageUp makes a stride, an arrow one step."""
    if _values(page)[nth - 1] == wanted:
        return page
    page = yield click(elements(page, "button")[nth - 1])
    stride = 3  # a guess that the first stride corrects
    while (left := wanted - _values(page)[nth - 1]) != 0:
        before = _values(page)[nth - 1]
        if abs(left) > stride // 2 + 1:
            page = yield press("PageUp" if left > 0 else "PageDown")
            stride = max(1, abs(_values(page)[nth - 1] - before))
        else:
            page = yield press("ArrowRight" if left > 0 else "ArrowLeft")
    return page


def _values(page: Page) -> list[int]:
    """Return the values of the sliders, which stand below them."""
    return [int(text) for text in texts(page) if re.fullmatch(r"-?\d+", text)]


def set_spinner(goal: str, page: Page) -> Steps:
    """`Select 4 with the spinner and hit Submit.`: its two buttons are without a name."""
    wanted = int(matched(r"Select (-?\d+)", goal)[0])
    while (value := int(element(page, "textbox").value)) != wanted:
        page = yield click(elements(page, "button")[0 if value < wanted else 1])
    yield click(element(page, "button", "Submit"))
