"""Scripts for tabs, sections that open, and menus."""

from agentkv_env.page import Page
from agentkv_tasks.miniwob.eyes import click, element, elements, has, hover, matched, quoted
from agentkv_tasks.miniwob.script import Steps


def open_tab(goal: str, page: Page) -> Steps:
    """`Click on Tab #2.`"""
    yield click(element(page, "link", matched(r"(Tab #\d+)", goal)[0]))


def find_in_tabs(goal: str, page: Page) -> Steps:
    """`Switch between the tabs to find and click on the link "et".`

    One page ends when its second tab is opened, so the link may never show.
    """
    name = quoted(goal)[0]
    tabs = [node.name for node in elements(page, "link")]
    for tab in tabs[1:]:
        if has(page, "button", name):
            break
        page = yield click(element(page, "link", tab))
    if has(page, "button", name):
        yield click(element(page, "button", name))


def open_section(goal: str, page: Page) -> Steps:
    """`Expand the section below and click submit.`"""
    page = yield click(element(page, "tab"))
    yield click(element(page, "button", "Submit"))


def find_in_sections(goal: str, page: Page) -> Steps:
    """`Expand the sections below, to find and click on the link "et".`"""
    name = quoted(goal)[0]
    sections = [node.name for node in elements(page, "tab")]
    for section in sections:
        if has(page, "button", name):
            break
        page = yield click(element(page, "tab", section))
    yield click(element(page, "button", name))


def choose_in_menu(goal: str, page: Page) -> Steps:
    """`Select Trudey>Enrika>Daphene`: the mouse opens each menu, and a click chooses."""
    *menus, item = goal.removeprefix("Select ").split(">")
    for menu in menus:
        page = yield hover(element(page, "menuitem", menu))
    yield click(element(page, "menuitem", item))
