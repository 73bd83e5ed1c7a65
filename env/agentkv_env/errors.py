"""What can go wrong between the agent and its browser.

Messages may quote pages and browsers, so they are cleaned: one line, no control characters.

ValueError
    ActionFailed     the action could not be done; the message is for the model, the page lives on
        StillLoading the page was left for one that has not answered yet; the next look may find it
RuntimeError
    BrowserMissing   no Chromium on this machine
    BrowserGone      page, renderer or browser crashed; launch again
        PageHung     the page's scripts never gave control back
        TabClosed    the page closed its own window; the browser's other tabs live on
"""

from agentkv_env.sanitize import clean


class ActionFailed(ValueError):
    """The action could not be done; the message says why in words meant for the model."""

    def __init__(self, message: str) -> None:
        super().__init__(clean(message))


class StillLoading(ActionFailed):
    """The page was left for one that has not answered yet, and says nothing until it does."""


class BrowserMissing(RuntimeError):
    """No Chromium was found; the message says how to get one."""


class BrowserGone(RuntimeError):
    """The page, its renderer or the browser is dead; launch a new browser."""

    def __init__(self, message: str) -> None:
        super().__init__(clean(message))


class PageHung(BrowserGone):
    """The page did not answer in time, for instance because a script loops for ever."""


class TabClosed(BrowserGone):
    """The page closed its window; the browser and its other tabs live on."""
