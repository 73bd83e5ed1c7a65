"""Errors of the browser environment.

Messages may quote pages and browsers, so they are cleaned: one line, no control characters.

ValueError
    ActionFailed     the action failed; the message is for the model, the page stays usable
        StillLoading the next page has not answered yet; a later observation may show it
RuntimeError
    BrowserMissing   no Chromium was found
    BrowserGone      the page, its renderer or the browser is dead; launch a new browser
        PageHung     the page did not answer in time
        TabClosed    the page closed its own window; the other tabs stay open
"""

from agentkv_env.sanitize import clean


class ActionFailed(ValueError):
    """The action failed; the message tells the model why."""

    def __init__(self, message: str) -> None:
        super().__init__(clean(message))


class StillLoading(ActionFailed):
    """The page is being left for one that has not answered yet, and cannot be read until then."""


class BrowserMissing(RuntimeError):
    """No Chromium was found; the message says how to install one."""


class BrowserGone(RuntimeError):
    """The page, its renderer or the browser is dead; launch a new browser."""

    def __init__(self, message: str) -> None:
        super().__init__(clean(message))


class PageHung(BrowserGone):
    """The page did not answer in time, for example because a script loops forever."""


class TabClosed(BrowserGone):
    """The page closed its own window; the browser and the other tabs stay open."""
