"""What can go wrong between the agent and its browser.

ValueError
    ActionFailed     the action could not be done; the message is for the model, the page lives on
RuntimeError
    BrowserMissing   no Chromium on this machine
    BrowserGone      page, renderer or browser crashed; launch again
        PageHung     the page's scripts never gave control back
"""


class ActionFailed(ValueError):
    """The action could not be done; the message says why in words meant for the model."""


class BrowserMissing(RuntimeError):
    """No Chromium was found; the message says how to get one."""


class BrowserGone(RuntimeError):
    """The page, its renderer or the browser is dead; launch a new browser."""


class PageHung(BrowserGone):
    """The page did not answer in time, for instance because a script loops for ever."""
