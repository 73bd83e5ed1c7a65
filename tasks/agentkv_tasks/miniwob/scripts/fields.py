"""Scripts for text fields."""

import re

from agentkv_env.page import Node, Page
from agentkv_tasks.miniwob.eyes import (
    click,
    element,
    elements,
    enter,
    has,
    matched,
    quoted,
    texts,
)
from agentkv_tasks.miniwob.script import Steps


def fill_field(goal: str, page: Page) -> Steps:
    """`Enter "Deneen" into the text field and press Submit.`"""
    page = yield enter(element(page, "textbox"), quoted(goal)[0])
    yield click(element(page, "button", "Submit"))


def fill_field_in_case(goal: str, page: Page) -> Steps:
    """`Type "deneen" in all upper case letters in the text input and press Submit.`"""
    text = quoted(goal)[0]
    text = text.upper() if "upper case" in goal else text.lower()
    page = yield enter(element(page, "textbox"), text)
    yield click(element(page, "button", "Submit"))


def fill_password(goal: str, page: Page) -> Steps:
    """`Enter the password "AKuH" into both text fields and press submit.`"""
    for nth in (1, 2):
        page = yield enter(element(page, "textbox", nth=nth), quoted(goal)[0])
    yield click(element(page, "button", "Submit"))


def sign_in(goal: str, page: Page) -> Steps:
    """`Enter the username "donovan" and the password "KuHh" into the text fields and press login.`

    A question may appear when a field is entered. It locks the field until it is answered.
    """
    for nth, text in enumerate(quoted(goal), start=1):
        page = yield click(element(page, "textbox", nth=nth))
        if has(page, "button", "Cancel"):
            page = yield click(element(page, "button", "Cancel"))
        page = yield enter(element(page, "textbox", nth=nth), text)
    yield click(elements(page, "button")[-1])


def fill_date(goal: str, page: Page) -> Steps:
    """`Enter 04/14/2017 as the date and hit submit.`"""
    month, day, year = matched(r"(\d+)/(\d+)/(\d+)", goal)
    page = yield enter(element(page, "textbox"), f"{year}-{month}-{day}")
    yield click(element(page, "button", "Submit"))


def fill_time(goal: str, page: Page) -> Steps:
    """`Enter 12:01 AM as the time and press submit.`"""
    hour, minute, half = matched(r"(\d+):(\d+)\s*([AP]M)", goal)
    hours = int(hour) % 12 + (12 if half == "PM" else 0)
    page = yield enter(element(page, "textbox"), f"{hours:02}:{minute}")
    yield click(element(page, "button", "Submit"))


def search_films(goal: str, page: Page) -> Steps:
    """`Search for satire movies directed by Mccullough from year 2003.`

    Labels stand above, beside or below their fields, but in the same order.
    """
    genre, director, year = matched(r"for (.*) movies directed by (.*) from year (\d+)", goal)
    wanted = {"Genre": genre, "Director": director, "Year": year, "Released": year}
    labels = [
        text
        for line in texts(page)
        for word, text in wanted.items()
        if re.search(rf"\b{word}\b", line)
    ]
    for nth, text in enumerate(labels, start=1):
        page = yield enter(element(page, "textbox", nth=nth), text)
    yield click(elements(page, "button")[-1])


def complete_field(goal: str, page: Page) -> Steps:
    """`Enter an item that starts with "Pol" and ends with "land".`, from the suggestions."""
    start, end = (*quoted(goal), "")[:2]
    page = yield enter(element(page, "textbox"), start)

    def fits(node: Node) -> bool:
        return node.name.startswith(start) and node.name.endswith(end)

    # The list of all suggestions is an element as well; its name begins and ends like theirs.
    found = min(filter(fits, elements(page, "button")), key=lambda node: len(node.name))
    page = yield click(found)
    yield click(element(page, "button", "Submit"))


def fill_captcha(goal: str, page: Page) -> Steps:
    """Type the letters that the page shows one by one."""
    page = yield enter(element(page, "textbox"), "".join(texts(page)))
    yield click(element(page, "button", "Submit"))
