"""Scripts for pages where one click, or a few, are all there is to do."""

from agentkv_env.page import Page
from agentkv_tasks.miniwob.eyes import click, element, matched, ordinal, quoted
from agentkv_tasks.miniwob.script import Steps


def click_only_button(goal: str, page: Page) -> Steps:
    """Click the button."""
    yield click(element(page, "button"))


def click_numbered_button(goal: str, page: Page) -> Steps:
    """`Click button ONE.`"""
    yield click(element(page, "button", matched(r"button (\w+)", goal)[0]))


def click_two_buttons(goal: str, page: Page) -> Steps:
    """`Click button ONE, then click button TWO.`"""
    first, second = matched(r"button (\w+), then click button (\w+)", goal)
    page = yield click(element(page, "button", first))
    yield click(element(page, "button", second))


def click_quoted(goal: str, page: Page) -> Steps:
    """`Click on the "no" button.` and `Click on the link "cursus.".`"""
    yield click(element(page, "button", quoted(goal)[0]))


def close_dialog(goal: str, page: Page) -> Steps:
    """Click the dialog's button `x`, whose name is Close."""
    yield click(element(page, "button", "Close"))


def answer_dialog(goal: str, page: Page) -> Steps:
    """`Click the button in the dialog box labeled "OK".`"""
    name = quoted(goal)[0]
    yield click(element(page, "button", "Close" if name == "x" else name))


def focus_only_field(goal: str, page: Page) -> Steps:
    """Click the text field."""
    yield click(element(page, "textbox"))


def focus_field(goal: str, page: Page) -> Steps:
    """`Focus into the 3rd input textbox.`"""
    yield click(element(page, "textbox", nth=ordinal(goal)))
