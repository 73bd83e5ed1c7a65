"""The histories of tabs: what has changed in them, and what the browser's own window has done."""

from typing import Any

from playwright.sync_api import Error

from agentkv_env.errors import BrowserGone
from agentkv_env.tab import Tab

_TYPED = frozenset(("typed", "address_bar", "generated", "keyword", "keyword_generated"))
"""Transitions of entries that no page can make."""


class Histories:
    """Follows the histories of tabs."""

    def __init__(self) -> None:
        self._seen: dict[Tab, tuple[int, list[int]]] = {}  # index and ids of the entries
        self._moved: set[Tab] = set()

    def follow(self, tab: Tab) -> None:
        """Follow the history of a tab from now on."""
        tab.page.on("framenavigated", lambda frame: self._moved.add(tab))

    def has_moved(self, tab: Tab) -> bool:
        """Return whether the tab may show another address than when it was last noted."""
        return tab in self._moved

    def index(self, tab: Tab) -> int | None:
        """Return the index of the entry at which the tab was last noted."""
        return self._seen[tab][0] if tab in self._seen else None

    def begin(self, tab: Tab) -> None:
        """Count all that a tab has shown so far as new."""
        self._seen[tab] = -1, []
        self._moved.add(tab)

    def note(self, tab: Tab) -> "Moved":
        """Remember where a tab is, and return what has changed since it was last noted."""
        self._moved.discard(tab)
        if tab.page.is_closed():
            return Moved(None, is_step=False)
        try:
            with tab.guard():
                index, entries = tab.history
        except (BrowserGone, Error):
            return Moved(None, is_step=False)
        before, ids = self._seen.get(tab), [entry["id"] for entry in entries]
        self._seen[tab] = index, ids
        if before is None or before == (index, ids):
            return Moved(None, is_step=False)
        return Moved(entries[index], is_step=ids[index] in before[1])


class Moved:
    """What has changed in a history.

    Attributes:
        is_step: True if the tab went back or forward.
    """

    def __init__(self, entry: dict[str, Any] | None, *, is_step: bool) -> None:
        """`entry` is the present one if it is another than before."""
        self._entry = entry
        self.is_step = is_step

    def __bool__(self) -> bool:
        return self._entry is not None

    @property
    def typed_url(self) -> str:
        """The address that was typed into the browser's window; empty if none was."""
        if self._entry is None or self.is_step or self._entry["transitionType"] not in _TYPED:
            return ""
        return str(self._entry["url"])
