"""Scripts for pages that are read: tables, paragraphs and long texts."""

from agentkv_env.page import Page
from agentkv_tasks.miniwob.eyes import (
    below,
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


def _table(page: Page) -> dict[str, str]:
    rows = (text.split(" | ") for text in texts(page) if " | " in text)
    return {row[0]: row[1] for row in rows}


def read_row(goal: str, page: Page) -> Steps:
    """`Enter the value of Religion into the text field and press Submit.`"""
    key = matched(r"the value of (.*) into", goal)[0]
    page = yield enter(element(page, "textbox"), _table(page)[key])
    yield click(element(page, "button", "Submit"))


def read_rows(goal: str, page: Page) -> Steps:
    """Enter the value of each label of the form."""
    table = _table(page)
    for label in [text for text in texts(page) if text.removesuffix(":") in table]:
        page = yield enter(below(page, label, "textbox"), table[label.removesuffix(":")])
    yield click(element(page, "button", "Submit"))


def find_word(goal: str, page: Page) -> Steps:
    """`Find the 8th word in the paragraph, type that into the textbox and press "Submit".`"""
    word = " ".join(texts(page)).split()[ordinal(goal) - 1]
    page = yield enter(element(page, "textbox"), word.strip(".,"))
    yield click(element(page, "button", "Submit"))


def copy_only_text(goal: str, page: Page) -> Steps:
    """Copy the field with a text to the field without one."""
    fields = elements(page, "textbox")
    filled = next(nth for nth, node in enumerate(fields, start=1) if node.value)
    yield from _copy(page, filled, 3 - filled)


def copy_text(goal: str, page: Page) -> Steps:
    """`Copy the text from the 3rd text area below and paste it into the text input, ...`"""
    yield from _copy(page, ordinal(goal), 4)


def _copy(page: Page, source: int, target: int) -> Steps:
    # The text ends with a space, which no page shows, so it cannot be typed.
    page = yield click(element(page, "textbox", nth=source))
    yield press("Control+a")
    page = yield press("Control+c")
    page = yield click(element(page, "textbox", nth=target))
    page = yield press("Control+v")
    yield click(element(page, "button", "Submit"))


def find_last_word(goal: str, page: Page) -> Steps:
    """Copy the last line of a text that is too long to be seen, and keep its last word."""
    page = yield click(element(page, "textbox"))
    yield press("Control+End")
    yield press("Shift+Home")
    page = yield press("Control+c")
    page = yield click(element(page, "textbox", nth=2))
    page = yield press("Control+v")
    field = element(page, "textbox", nth=2)
    page = yield enter(field, field.value.split()[-1].strip("., "))
    yield click(element(page, "button", "Submit"))


def scroll_text(goal: str, page: Page) -> Steps:
    """`Scroll the textarea to the top of the text hit submit.`"""
    page = yield click(element(page, "textbox"))
    page = yield press("Control+Home" if "to the top" in goal else "Control+End")
    yield click(element(page, "button", "Submit"))
