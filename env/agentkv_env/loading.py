"""Track what a page is loading, and wait until it has loaded."""

import time
from collections.abc import Callable
from typing import Any

from playwright.sync_api import CDPSession, Request
from playwright.sync_api import Page as PlaywrightPage

SUBRESOURCES_S = 1.0  # wait for images and scripts after the document has arrived
FETCH_S = 2.0  # wait for requests of a page that stays; polling pages never finish
NAVIGATION_START_S = 2.0  # a requested navigation must begin within this time
STAYS_OPEN_S = 10.0  # a request that is open for longer waits for news, as polling pages do
POLL_MS = 4
_DATA_TYPES = {"fetch", "xhr"}  # what scripts show; late images leave the text as it is
_NEVER_IDLE_TYPES = {"websocket", "eventsource", "media", "ping"}  # these may stay open forever


class Loading:
    """Tracks the navigations and requests of one page from browser events."""

    def __init__(self, page: PlaywrightPage) -> None:
        self._page = page
        self._frame = ""
        self._requested_at = 0.0  # monotonic seconds; 0 if no navigation is about to begin
        self._frames: set[str] = set()  # frames that are loading
        self._has_document = True
        self._is_asking_to_leave = False  # True while a dialog of the page asks whether to stay
        self.is_leaving = False
        """True if a navigation has begun whose document has not arrived."""
        self._open_requests: set[Request] = set()
        self._given_up: dict[Request, float] = {}  # no longer awaited -> monotonic seconds
        page.on("request", self._on_request)
        page.on("requestfinished", self._on_request_done)
        page.on("requestfailed", self._on_request_done)

    def follow(self, cdp: CDPSession, main_frame: str) -> None:
        """Listen to the page's events on its CDP session."""
        self._frame = main_frame
        cdp.on("Page.frameRequestedNavigation", self._on_navigation_requested)
        cdp.on("Page.frameStartedLoading", self._on_started)
        cdp.on("Page.frameStoppedLoading", self._on_stopped)
        cdp.on("Page.frameNavigated", self._on_navigated)
        cdp.on("Page.navigatedWithinDocument", self._on_same_document)
        cdp.on("Page.domContentEventFired", self._on_dom_ready)
        cdp.on("Page.javascriptDialogOpening", self._on_dialog)
        cdp.on("Page.javascriptDialogClosed", self._on_dialog_closed)

    def detach(self) -> None:
        """Remove the listeners from the page."""
        self._page.remove_listener("request", self._on_request)
        self._page.remove_listener("requestfinished", self._on_request_done)
        self._page.remove_listener("requestfailed", self._on_request_done)

    def expect_navigation(self, asked_at: float) -> None:
        """Expect a navigation that was requested at `asked_at` (monotonic seconds)."""
        self._requested_at = self._requested_at or asked_at

    def forget_navigation(self) -> None:
        """Stop expecting a navigation."""
        self._requested_at = 0.0

    def wait(
        self, started_at: float, *, timeout_s: float, on_wait: Callable[[], None] = lambda: None
    ) -> bool:
        """Wait until the page has loaded; return whether it waited and everything arrived.

        Waits at most `timeout_s` seconds for the document of a navigation, then `SUBRESOURCES_S`
        for its images and scripts. Requests of a page that stays get `FETCH_S`; a request that
        takes longer is ignored from then on. Times count from `started_at` (monotonic seconds).
        `on_wait` is called repeatedly meanwhile.
        """
        document_at = 0.0
        has_waited = False
        while True:
            now = time.monotonic()
            if self._frame in self._frames and not self._has_document:
                limit = started_at + timeout_s
            elif self._requested_at:
                limit = self._requested_at + NAVIGATION_START_S
            elif self._frames or (document_at and self._open_requests):
                document_at = document_at or now
                limit = document_at + SUBRESOURCES_S
            elif self._open_requests:
                limit = started_at + FETCH_S
            else:
                return has_waited
            if now >= limit:
                self.forget_navigation()
                data = [each for each in self._open_requests if each.resource_type in _DATA_TYPES]
                self._given_up |= dict.fromkeys(data, now)
                self._open_requests.clear()
                # The next wait does not wait again for a document that never finishes.
                self._has_document = not self.is_leaving
                return False
            has_waited = True
            self._page.wait_for_timeout(POLL_MS)
            on_wait()

    @property
    def num_unanswered(self) -> int:
        """Number of requests for data that are no longer awaited and do not seem to stay open."""
        since = time.monotonic() - STAYS_OPEN_S
        return sum(given_up_at > since for given_up_at in self._given_up.values())

    def _on_request(self, request: Request) -> None:
        if request.resource_type not in _NEVER_IDLE_TYPES:
            self._open_requests.add(request)

    def _on_request_done(self, request: Request) -> None:
        self._open_requests.discard(request)
        self._given_up.pop(request, None)

    def _on_navigation_requested(self, event: dict[str, Any]) -> None:
        if event["frameId"] == self._frame and event.get("disposition") == "currentTab":
            self._requested_at = time.monotonic()

    def _on_started(self, event: dict[str, Any]) -> None:
        self._frames.add(event["frameId"])
        if event["frameId"] == self._frame:
            self._has_document = False
            self.is_leaving = True

    def _on_stopped(self, event: dict[str, Any]) -> None:
        self._frames.discard(event["frameId"])
        if event["frameId"] == self._frame:
            self.forget_navigation()
            self._has_document = True
            self.is_leaving = False

    def _on_navigated(self, event: dict[str, Any]) -> None:
        if not event["frame"].get("parentId"):
            self.is_leaving = False
            self.forget_navigation()
            self._open_requests.clear()
            self._given_up.clear()

    def _on_same_document(self, event: dict[str, Any]) -> None:
        if event["frameId"] == self._frame:
            self.forget_navigation()

    def _on_dom_ready(self, _: dict[str, Any]) -> None:
        self._has_document = True

    def _on_dialog(self, event: dict[str, Any]) -> None:
        self._is_asking_to_leave = event["type"] == "beforeunload"

    def _on_dialog_closed(self, event: dict[str, Any]) -> None:
        if self._is_asking_to_leave and not event["result"]:
            self.forget_navigation()
