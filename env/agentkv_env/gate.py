"""What pages may not do by themselves: leave the allowed hosts, wait for an answer, download."""

import re
from typing import Any

from playwright.sync_api import (
    BrowserContext,
    CDPSession,
    Dialog,
    Download,
    Error,
    Route,
    WebSocketRoute,
)
from playwright.sync_api import Page as PlaywrightPage

from agentkv_env.allow import AllowList
from agentkv_env.plain import quoted

MAX_DIALOG = 200  # characters of a dialog's message that are told
MAX_URL = 200  # characters of a refused address that are told


class Gate:
    """Stands at one browser context and tells in `notices` what it refused or answered.

    Requests are checked twice: by Playwright's routes, which also see the first request of a new
    window, and by each tab over Chromium's protocol (`judge`), which also sees the later hops of a
    redirect.
    """

    def __init__(self, context: BrowserContext, allow: AllowList, *, owns_context: bool) -> None:
        """Nothing is refused before `install`. In a caller's context, their handlers go first."""
        self.allow = allow
        self.notices: list[str] = []
        self.num_refused_windows = 0
        """New windows that were refused since this was last set to 0."""
        self._context = context
        self._owns_context = owns_context
        self._pages: list[PlaywrightPage] = []
        self._open = False  # nothing is refused any more

    def install(self) -> None:
        """Check the requests of all pages from now on."""
        self._context.route(self.allow.refused, self._on_refused)
        self._context.route_web_socket(self.allow.refused, self._on_web_socket)
        if self._owns_context:
            self._context.on("dialog", self._on_dialog)

    def watch(self, page: PlaywrightPage) -> None:
        """Answer this page's dialogs and tell of its downloads."""
        self._pages.append(page)
        page.on("download", self._on_download)
        if not self._owns_context:
            page.on("dialog", self._on_dialog)  # behind its owner's, who may answer first

    def release(self) -> None:
        """Take everything off a caller's context again."""
        self._open = True
        for page in self._pages:
            if not page.is_closed():
                page.remove_listener("download", self._on_download)
                page.remove_listener("dialog", self._on_dialog)
        self._context.unroute(self.allow.refused, self._on_refused)

    def judge(self, event: dict[str, Any], wire: CDPSession, *, main_frame: str) -> bool:
        """Let a paused request pass or refuse it; whether it was the main frame's navigation."""
        url, request = event["request"]["url"], {"requestId": event["requestId"]}
        refused_page = False
        try:
            if not self.allow.refused.match(url):
                wire.send("Fetch.continueRequest", request)
            elif event.get("resourceType") == "Document":
                refused_page = event.get("frameId") == main_frame
                if refused_page:
                    self._tell_refused(url)
                # 204 ends a navigation and keeps the present document; an abort would show an
                # error page in its place.
                wire.send("Fetch.fulfillRequest", {**request, "responseCode": 204})
            else:
                wire.send("Fetch.failRequest", {**request, "errorReason": "BlockedByClient"})
        except Error:
            pass  # the request or its page is gone
        return refused_page

    def _on_refused(self, route: Route) -> None:
        request = route.request
        if request.resource_type != "document":
            route.abort("blockedbyclient")
            return
        try:
            is_new = request.frame.page not in self._pages
            is_whole_page = request.frame.parent_frame is None
        except Error:  # a window has no frame yet when its first request comes
            is_new = is_whole_page = True
        if is_new:
            self.num_refused_windows += 1
        if is_whole_page:
            self._tell_refused(request.url)
        route.fulfill(status=204)

    def _tell_refused(self, url: str) -> None:
        self.notices.append(f"navigation to {url[:MAX_URL]} refused; allowed hosts: {self.allow}")

    def _on_web_socket(self, socket: WebSocketRoute) -> None:
        if self._open:  # Playwright cannot take this route off again
            socket.connect_to_server()
        else:
            socket.close()

    def _on_dialog(self, dialog: Dialog) -> None:
        message = " ".join(dialog.message.split())[:MAX_DIALOG]
        kind = dialog.type
        accepted = kind != "prompt"
        try:
            if accepted:
                dialog.accept()
            else:
                dialog.dismiss()
        except Error:
            return  # its owner answered it
        if kind != "beforeunload":
            self.notices.append(f"{kind} {'accepted' if accepted else 'dismissed'}: {message}")

    def _on_download(self, download: Download) -> None:
        name = download.suggested_filename[:100]
        shown = name if re.fullmatch(r"[\w.\-]+", name) else quoted(name)
        self.notices.append(f"download of {shown} cancelled")
