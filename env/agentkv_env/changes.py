"""Serialize only the lines of a page that are new or changed since the last observation.

    url http://shop.localhost/cart
    title Cart
    same: 31 lines
    gone: 2 lines
    textbox Coupon = SAVE15 [14]
    Coupon accepted

A page at another address or in another tab is serialized whole, and so is a page that shares no
line with the last observation; the text then has no `same:` line. Without a browser.
"""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import SequenceMatcher

from agentkv_env.page import Page
from agentkv_env.serialize import (
    Layout,
    Observation,
    body_lines,
    fitted,
    head_lines,
    serialize,
    tail_lines,
)


@dataclass(frozen=True, slots=True)
class Known:
    """The lines of the last observed page that the model has read and that still hold."""

    url: str
    tab: int
    lines: tuple[str, ...]
    """Lines in page order, without those that the budget cut; the next observation has these."""


def serialize_changes(
    page: Page,
    known: Known | None,
    *,
    layout: Layout = "after",
    budget: int | None = None,
    count: Callable[[str], int] = len,
) -> tuple[Observation, Known]:
    """Serialize `page` for a model that has read `known`, and return what it has read then.

    The head of the page (address, title, tabs, notices) and `more below` are always included.
    `same:` counts the unchanged lines and `gone:` the removed ones; new, changed and moved lines
    follow in page order. The element id is part of a line, so an unchanged line still names the
    same element.

    Args:
        page: the observed page.
        known: the second value that the last call returned; None before the first call.
        layout, budget, count: see `serialize`.
    """
    body = body_lines(page, layout)
    lines = [line.text for line in body]
    unchanged = _unchanged_lines(known, page, lines)
    if known is None or not unchanged:
        whole = serialize(page, layout=layout, budget=budget, count=count)
        return whole, Known(page.url, page.tab, tuple(lines[: whole.num_shown]))
    changed = [index for index in range(len(lines)) if index not in unchanged]
    head = [*head_lines(page), f"same: {len(unchanged)} lines"]
    if len(known.lines) > len(unchanged):
        head.append(f"gone: {len(known.lines) - len(unchanged)} lines")
    observation = fitted(head, [body[index] for index in changed], tail_lines(page), budget, count)
    read = unchanged.union(changed[: observation.num_shown])
    return observation, Known(page.url, page.tab, tuple(lines[index] for index in sorted(read)))


def _unchanged_lines(known: Known | None, page: Page, lines: list[str]) -> set[int]:
    """Return the indices of `lines` that the model has read, matched in order."""
    if known is None or (known.url, known.tab) != (page.url, page.tab):
        return set()
    matcher = SequenceMatcher(None, known.lines, lines, autojunk=False)
    return {b + offset for _, b, size in matcher.get_matching_blocks() for offset in range(size)}
