"""Scripts for checkboxes, radio buttons and lists."""

from agentkv_env.page import Page
from agentkv_tasks.miniwob.eyes import (
    click,
    element,
    enter,
    has,
    hover,
    matched,
    ordinal,
    press,
    quoted,
)
from agentkv_tasks.miniwob.script import Steps


def check_boxes(goal: str, page: Page) -> Steps:
    """`Select kX, C4f and click Submit.`, or `Select nothing and click Submit.`"""
    names = matched(r"Select (.*) and click Submit", goal)[0].split(", ")
    if names != ["nothing"] or has(page, "checkbox", "nothing"):
        for name in names:
            page = yield click(element(page, "checkbox", name))
    yield click(element(page, "button", "Submit"))


def choose_radio(goal: str, page: Page) -> Steps:
    """`Select KuHh7 and click Submit.`"""
    name = matched(r"Select (.*) and click Submit", goal)[0]
    page = yield click(element(page, "radio", name))
    yield click(element(page, "button", "Submit"))


def choose_option(goal: str, page: Page) -> Steps:
    """`Select Japan from the list and click Submit.`"""
    name = matched(r"Select (.*) from the list", goal)[0]
    page = yield enter(element(page, "combobox"), name)
    yield click(element(page, "button", "Submit"))


def choose_options(goal: str, page: Page) -> Steps:
    """`Select Iceland, Nauru from the scroll list and click Submit.`, one option or two.

    Typing chooses one option. The keys move from there to the second one and add it.
    """
    names = matched(r"Select (.*) from the scroll list", goal)[0].split(", ")
    listbox = element(page, "listbox")
    first, *others = sorted(names, key=listbox.options.index)
    page = yield enter(listbox, first)
    for other in others:
        for step in range(listbox.options.index(other) - listbox.options.index(first)):
            if (
                step % 4 == 3
            ):  # the page shows no effect, and a fifth equal press would end the episode
                yield hover(listbox)
            yield press("Control+ArrowDown")
        page = yield press("Control+Space")
    yield click(element(page, "button", "Submit"))


def choose_radio_and_fill_field(goal: str, page: Page) -> Steps:
    """`Check the 3rd radio button and enter the number "25" into the 3rd textbox.`"""
    radio, field = goal.split(" and enter ")
    page = yield click(element(page, "radio", nth=ordinal(radio)))
    page = yield enter(element(page, "textbox", nth=ordinal(field)), quoted(goal)[0])
    yield click(element(page, "button", "Submit"))
