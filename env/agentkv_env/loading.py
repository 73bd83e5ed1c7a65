"""What a page is still waiting for, and waiting for it no longer than it takes."""

import time
from collections.abc import Callable
from typing import Any

from playwright.sync_api import CDPSession, Request
from playwright.sync_api import Page as PlaywrightPage

SUBRESOURCES_S = 1.0  # once the document is there: how long late images and scripts are waited for
FETCH_S = 2.0  # how long requests of a page that stays are waited for; polling pages never rest
NAVIGATION_START_S = 2.0  # how long a navigation that was asked for may take to begin
POLL_MS = 4
_NEVER_IDLE_TYPES = {"websocket", "eventsource", "media", "ping"}  # these may stay open for ever


class Loading:
    """Follows one page's navigations and requests by its browser's events."""

    def __init__(self, page: PlaywrightPage) -> None:
        self._page = page
        self._frame = ""
        self._requested_at = 0.0  # when a navigation was asked for that has not begun; else 0
        self._frames: set[str] = set()  # that load at the moment
        self._has_document = True
        self.is_leaving = False
        """Whether the page is being left for one that has not answered yet."""
        self._open_requests: set[Request] = set()
        page.on("request", self._on_request)
        page.on("requestfinished", self._on_request_done)
        page.on("requestfailed", self._on_request_done)

    def follow(self, cdp: CDPSession, main_frame: str) -> None:
        """Listen on the page's own connection."""
        self._frame = main_frame
        cdp.on("Page.frameRequestedNavigation", self._on_navigation_requested)
        cdp.on("Page.frameStartedLoading", self._on_started)
        cdp.on("Page.frameStoppedLoading", self._on_stopped)
        cdp.on("Page.frameNavigated", self._on_navigated)
        cdp.on("Page.navigatedWithinDocument", self._on_same_document)
        cdp.on("Page.domContentEventFired", self._on_dom_ready)

    def detach(self) -> None:
        """Take the listeners off the page."""
        self._page.remove_listener("request", self._on_request)
        self._page.remove_listener("requestfinished", self._on_request_done)
        self._page.remove_listener("requestfailed", self._on_request_done)

    def expect_navigation(self, asked_at: float) -> None:
        """The page began to leave at `asked_at` (monotonic seconds)."""
        self._requested_at = self._requested_at or asked_at

    def forget_navigation(self) -> None:
        """The navigation that was asked for will not come."""
        self._requested_at = 0.0

    def wait(
        self, started_at: float, *, timeout_s: float, on_wait: Callable[[], None] = lambda: None
    ) -> bool:
        """Wait until what began at `started_at` has loaded; say whether something then came.

        A navigation is waited for until its document is there (`timeout_s` at most) and its images
        had a moment; the requests of a page that stays get a short time, and one that did not end
        in it is not waited for again. `on_wait` is called again and again meanwhile.
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
                self._open_requests.clear()
                # Of a document that came and never ends, the next wait expects nothing more.
                self._has_document = not self.is_leaving
                return False
            has_waited = True
            self._page.wait_for_timeout(POLL_MS)
            on_wait()

    def _on_request(self, request: Request) -> None:
        if request.resource_type not in _NEVER_IDLE_TYPES:
            self._open_requests.add(request)

    def _on_request_done(self, request: Request) -> None:
        self._open_requests.discard(request)

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

    def _on_same_document(self, event: dict[str, Any]) -> None:
        if event["frameId"] == self._frame:
            self.forget_navigation()

    def _on_dom_ready(self, _: dict[str, Any]) -> None:
        self._has_document = True
