"""Scripts for pages that are searched: contacts, results, tickets, mail and calendars."""

import re
from collections.abc import Generator

from agentkv_env.actions import Action
from agentkv_env.page import Node, Page
from agentkv_tasks.miniwob.eyes import (
    below,
    click,
    element,
    elements,
    enter,
    matched,
    ordinal,
    press,
    quoted,
    texts,
)
from agentkv_tasks.miniwob.script import Steps

_MONTHS = (
    "January February March April May June July August September October November December"
).split()


def find_contact(goal: str, page: Page) -> Steps:
    """`Find Winona in the contact book and click on their address.`"""
    name, part = matched(r"Find (.*) in the contact book and click on their (\w+)", goal)
    while texts(page)[0] != name:
        page = yield click(element(page, "link", ">"))
    yield click(below(page, f"{part.capitalize()}:", "link"))


def find_result(goal: str, page: Page) -> Steps:
    """`Use the textbox to enter "Truman" and press "Search", then ... the 5th search result.`"""
    page = yield enter(element(page, "textbox"), quoted(goal)[0])
    page = yield click(element(page, "button", "Search"))
    number, place = divmod(ordinal(goal) - 1, 3)
    if number:
        # A result may have a number for a name, but the page numbers stand below the results.
        page = yield click([n for n in elements(page, "link") if n.name == str(number + 1)][-1])
    yield click(elements(page, "link")[place])


def buy_ticket(goal: str, page: Page) -> Steps:
    """`Buy the ticket with the longest duration.`, the shortest, the cheapest or most expensive."""
    tickets = _tickets(page)
    by = _price if "cost" in goal else _minutes
    best = max if "longest" in goal or "most expensive" in goal else min
    yield click(best(tickets, key=lambda ticket: by(*ticket))[1])


def book_flight(goal: str, page: Page) -> Steps:
    """`Book the cheapest one-way flight from: KPC to: Pierre, SD on 12/01/2016.`

    The results are too long for the page. They are read to their end, and then again from the
    beginning up to the wanted one, because other positions might cut its lines off.
    """
    how, start, end, date = matched(
        r"the (cheapest|shortest) .*from: (.*) to: (.*) on ([\d/]+)\.", goal
    )
    for nth, place in ((1, start), (2, end)):
        page = yield enter(element(page, "textbox", nth=nth), place)
        while not (suggestion := _suggestion(page, place)):
            (area,) = (node for node in page.nodes if node.role == "area")
            page = yield Action("scroll", element_id=area.id, direction="down")
        page = yield click(suggestion)
    page = yield from _choose_date(page, element(page, "textbox", nth=3), date)
    page = yield click(element(page, "button", "Search"))
    by = _price if how == "cheapest" else _minutes
    amounts = [by(*ticket) for ticket in _tickets(page)]
    while page.pixels_below:
        page = yield Action("scroll", direction="down")
        amounts += [by(*ticket) for ticket in _tickets(page)]
    while page.pixels_above:
        page = yield Action("scroll", direction="up")
    while not (found := [each for each in _tickets(page) if by(*each) == min(amounts)]):
        page = yield Action("scroll", direction="down")
    yield click(found[0][1])


def _tickets(page: Page) -> list[tuple[str, Node]]:
    """Return each visible ticket's duration and button."""
    found, duration = [], ""
    for node in page.nodes:
        if re.fullmatch(r"\d+h \d+m", node.name):
            duration = node.name
        elif node.role == "button" and "$" in node.name and duration:
            found.append((duration, node))
            duration = ""
    return found


def _price(duration: str, button: Node) -> int:
    return int(matched(r"\$(\d+)", button.name)[0])


def _minutes(duration: str, button: Node) -> int:
    hours, minutes = matched(r"(\d+)h (\d+)m", duration)
    return 60 * int(hours) + int(minutes)


def _suggestion(page: Page, place: str) -> Node | None:
    """Return the visible suggestion of a place, given by name or by its airport's code."""

    def fits(node: Node) -> bool:
        return node.name.startswith(f"{place} (") or node.name.endswith(f"({place})")

    # The list of all suggestions is an element as well, with their names in one.
    found = filter(fits, elements(page, "button"))
    return min(found, key=lambda node: len(node.name), default=None)


def choose_date(goal: str, page: Page) -> Steps:
    """`Select 12/22/2016 as the date and hit submit.`"""
    date = matched(r"Select ([\d/]+) as the date", goal)[0]
    page = yield from _choose_date(page, element(page, "textbox"), date)
    yield click(element(page, "button", "Submit"))


def _choose_date(page: Page, field: Node, date: str) -> Generator[Action, Page, Page]:
    """Choose a date in the calendar of `field`, which opens in December 2016 and turns by keys."""
    month, day, _ = map(int, date.split("/"))
    page = yield click(field)
    while not any(text.startswith(_MONTHS[month - 1]) for text in texts(page)):
        page = yield press("PageUp")
    return (yield click(element(page, "link", str(day))))


def delete_mail(goal: str, page: Page) -> Steps:
    """`Find the email by Aimee and click the trash icon to delete it.`"""
    yield from _open_mail_and_click(goal, page, 2)


def star_mail(goal: str, page: Page) -> Steps:
    """`Find the email by Aimee and click the star icon to mark it as important.`"""
    yield from _open_mail_and_click(goal, page, 3)


def _open_mail_and_click(goal: str, page: Page, nth: int) -> Steps:
    """Open a mail; its buttons back, trash and star come first, in this order, without names."""
    sender = matched(r"email by (.*?) and", goal)[0]

    def found() -> list[Node]:
        buttons = elements(page, "button")
        return [node for node in buttons if node.name.startswith(f"{sender} ")]

    while not found():
        page = yield Action("scroll", direction="down")
    page = yield click(found()[0])
    yield click(elements(page, "button")[nth - 1])
