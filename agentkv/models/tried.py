"""The actions on elements that an episode has taken, page by page."""

import hashlib
from collections import Counter
from dataclasses import replace
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from agentkv_env.actions import ActionError, extract, parse, render
from agentkv_env.page import Page


class SavedTried(BaseModel):
    """State of a `TriedActions`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    visits: dict[str, dict[str, Annotated[int, Field(ge=1)]]] = {}
    """For each page, the visits in which an action was taken before the present one."""
    page: str = ""
    """The page of the latest reply."""
    now: list[str] = []
    """The actions of the present visit."""


class TriedActions:
    """Counts the visits to a page in which an action on an element was taken.

    Pages are one if they are equal but for what `Page` says of the last action. A visit lasts until
    another page is shown; what happens within one is `max_repeats`' concern.

    Args:
        most: visits after which an action is barred on its page; None: it never is.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._visits: dict[str, Counter[str]] = {}
        self._page, self._now = "", set[str]()

    def barred(self, page: Page) -> list[str]:
        """Return the actions that `page` no longer admits, as `actions.render` writes them.

        After a click, hovering over the element is barred with it: the mouse was there.
        """
        if self._most is None:
            return []
        self._enter(_digest(page))
        found = [
            action
            for action, count in self._visits.get(self._page, Counter()).items()
            if count >= self._most
        ]
        presses = [each for each in found if each.startswith("click ")]
        hovers = ["hover " + each.removeprefix("click ") for each in presses]
        return [*found, *(each for each in hovers if each not in found)]

    def note(self, page: Page, reply: str) -> None:
        """Count the action of a reply to `page`; one that cannot be read is none."""
        if self._most is None:
            return
        self._enter(_digest(page))
        try:
            action = parse(extract(reply, strict=False), strict=False)
        except ActionError:
            return
        if action.element_id is not None:
            self._now.add(render(action))

    def save(self) -> SavedTried:
        """Return the state, from which `restore` makes it again."""
        return SavedTried(
            visits={page: dict(each) for page, each in self._visits.items()},
            page=self._page,
            now=sorted(self._now),
        )

    def restore(self, saved: SavedTried) -> None:
        """Take on a saved state."""
        self._visits = {page: Counter(each) for page, each in saved.visits.items()}
        self._page, self._now = saved.page, set(saved.now)

    def _enter(self, page: str) -> None:
        """Begin another visit if `page` is another than the latest."""
        if page == self._page:
            return
        if self._now:
            self._visits.setdefault(self._page, Counter()).update(self._now)
        self._page, self._now = page, set()


def _digest(page: Page) -> str:
    """Return 16 hex digits that tell pages apart."""
    seen = repr(replace(page, notices=(), may_change=False))
    return hashlib.sha256(seen.encode("utf-8", "replace")).hexdigest()[:16]
