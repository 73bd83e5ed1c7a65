"""Page -> text for a model that still has the page before: only the lines that are new or changed.

    url http://shop.localhost/cart
    title Cart
    same: 31 lines
    gone: 2 lines
    textbox Coupon = SAVE15 [14]
    Coupon accepted

A page at another address, or in another tab, is told whole, as `serialize` does, and so is one
that shares no line with what was read before: there is no `same:` then. Pure.
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
    """What a model has read of the page it saw last, as far as it still holds."""

    url: str
    tab: int
    lines: tuple[str, ...]
    """In the page's order. Lines that the budget cut are not among them, so they are told next."""


def serialize_changes(
    page: Page,
    known: Known | None,
    *,
    layout: Layout = "after",
    boxes: bool = False,
    budget: int | None = None,
    count: Callable[[str], int] = len,
) -> tuple[Observation, Known]:
    """Write what a reader of `known` needs to know `page`, and what it then knows.

    The head of a page (address, title, tabs, notices) and `more below` are always told. Then
    `same:` counts the lines that stay and `gone:` those that went; the lines that are new, changed
    or moved follow as they stand in the page. An element's number is part of its line: a line that
    stays still names the same element.

    Args:
        page: what was observed.
        known: what the last call returned; None if there was none.
        layout, boxes, budget, count: as `serialize` has them.
    """
    body = body_lines(page, layout, boxes)
    lines = [line for line, _ in body]
    unchanged = _unchanged_lines(known, page, lines)
    if known is None or not unchanged:
        whole = serialize(page, layout=layout, boxes=boxes, budget=budget, count=count)
        return whole, Known(page.url, page.tab, tuple(lines[: whole.num_shown]))
    changed = [index for index in range(len(lines)) if index not in unchanged]
    head = [*head_lines(page), f"same: {len(unchanged)} lines"]
    if len(known.lines) > len(unchanged):
        head.append(f"gone: {len(known.lines) - len(unchanged)} lines")
    told = fitted(head, [body[index] for index in changed], tail_lines(page), budget, count)
    read = unchanged.union(changed[: told.num_shown])
    return told, Known(page.url, page.tab, tuple(lines[index] for index in sorted(read)))


def _unchanged_lines(known: Known | None, page: Page, lines: list[str]) -> set[int]:
    """Indices of `lines` that the reader has, in the order in which it read them."""
    if known is None or (known.url, known.tab) != (page.url, page.tab):
        return set()
    matcher = SequenceMatcher(None, known.lines, lines, autojunk=False)
    return {b + offset for _, b, size in matcher.get_matching_blocks() for offset in range(size)}
