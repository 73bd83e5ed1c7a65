"""What pages may not do by themselves: leave the allowed hosts, wait for an answer, download."""

import re
from collections import Counter, defaultdict
from typing import Any

from playwright.sync_api import (
    BrowserContext,
    CDPSession,
    Dialog,
    Download,
    Error,
    Request,
    Route,
    WebSocketRoute,
)
from playwright.sync_api import Page as PlaywrightPage

from agentkv_env.allow import AllowList
from agentkv_env.proxy import Proxy
from agentkv_env.sanitize import quote

MAX_DIALOG = 200  # characters of a dialog's message that are told
MAX_URL = 200  # characters of a refused address that are told

_ALL = [{"urlPattern": "*"}]
_ANSWERS = [  # those that may make a worker, which keeps to their policy
    {"urlPattern": "*", "resourceType": kind, "requestStage": "Response"}
    for kind in ("Script", "Other")
]
_EVERYTHING = re.compile("")


class RequestFilter:
    """Stands at one browser context and tells in `notices` what it refused or answered.

    Requests are checked by Playwright's routes, which also see the first request of a new window,
    and by each tab over Chromium's protocol (`handle_paused`), which also sees the later hops of a
    redirect. Neither sees all: beneath them a context of ours has the proxy. A caller's context has
    none; there

    * the first document of a new window is answered by an empty one, which its tab loads again
      once the tab sees every hop (`take_held`);
    * documents (by their tab) and workers (here) get a Content-Security-Policy that names the
      allowed hosts, which Chromium keeps for sockets, for WebTransport, for sign-in requests and
      for frames in other processes;
    * shared workers are held before their first line.
    """

    def __init__(self, context: BrowserContext, allow: AllowList, *, proxy: Proxy | None) -> None:
        """Nothing is refused before `install`.

        Without a proxy it is a caller's context, where their handlers go first.
        """
        self.allow = allow
        self.notices: list[str] = []
        self._context = context
        self._proxy = proxy
        self._owns_context = proxy is not None
        self._pages: list[PlaywrightPage] = []
        self._open = False  # nothing is refused any more
        self._num_refused_pages = 0
        self._passed: defaultdict[PlaywrightPage, Counter[str]] = defaultdict(Counter)
        self._held: Counter[str] = Counter()  # addresses answered by an empty document
        self._workers: CDPSession | None = None

    def install(self) -> None:
        """Check the requests of all pages from now on."""
        self._context.route_web_socket(self.allow.refused, self._on_web_socket)
        if self._owns_context:
            self._context.route(self.allow.refused, self._on_refused)
            self._context.on("dialog", self._on_dialog)
        else:
            self._context.route(_EVERYTHING, self._on_request)
            self._hold_shared_workers()

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
        self._context.unroute(_EVERYTHING, self._on_request)
        if self._workers is not None:
            try:
                self._workers.detach()  # those held begin
            except Error:
                pass  # the browser is gone

    def intercept(self, cdp: CDPSession) -> None:
        """Have a page's requests paused, for `handle_paused`."""
        if self._owns_context:
            cdp.send("Fetch.enable", {"patterns": _ALL})
            return
        cdp.send("Fetch.enable", {"patterns": [*_ALL, *_ANSWERS]})
        cdp.send("Network.enable")
        cdp.send("Network.setBypassServiceWorker", {"bypass": True})

    @property
    def policy(self) -> str:
        """The allowed hosts as a Content-Security-Policy that forbids nothing else.

        "" in a context of ours, which needs none.
        """
        if self._owns_context:
            return ""
        local = "'self' 'unsafe-inline' 'unsafe-eval' 'wasm-unsafe-eval' data: blob: filesystem:"
        sources = f"{local} about: mediastream: {self.allow.sources}"
        return f"default-src {sources}; form-action {sources}"

    def take_notices(self) -> tuple[str, ...]:
        """What there is to tell since this was last asked, each line once."""
        self._collect()
        found = tuple(dict.fromkeys(self.notices))
        self.notices.clear()
        return found

    def has_refused_page(self) -> bool:
        """Whether the document of a tab or window was refused since this was last asked."""
        self._collect()
        found, self._num_refused_pages = self._num_refused_pages > 0, 0
        return found

    def failure_of(self, url: str) -> str:
        """The browser's name for why `url` did not answer; "" if that is not known."""
        failures = self._proxy.failures if self._proxy is not None else ()
        host = url.partition("://")[2].partition("/")[0]
        return next((why for found, why in reversed(failures) if f"//{host}/" in found), "")

    def _collect(self) -> None:
        while self._proxy is not None and self._proxy.refused_pages:
            self._record_refusal(self._proxy.refused_pages.popleft())

    def take_held(self, url: str) -> bool:
        """Whether a new window shows an empty document in place of `url`; true once."""
        if not self._held[url]:
            return False
        self._held[url] -= 1
        return True

    def handle_paused(
        self, event: dict[str, Any], cdp: CDPSession, *, page: PlaywrightPage, main_frame: str
    ) -> bool:
        """Let a paused request pass or refuse it; whether it was the main frame's navigation."""
        url, request = event["request"]["url"], {"requestId": event["requestId"]}
        refused_page = False
        try:
            if "responseStatusCode" in event or "responseErrorReason" in event:
                cdp.send("Fetch.continueResponse", {**request, **self._with_policy(event)})
            elif not self.allow.refused.match(url):
                if not self._owns_context and event.get("frameId") == main_frame:
                    self._passed[page][url] += 1
                cdp.send("Fetch.continueRequest", request)
            elif event.get("resourceType") == "Document":
                refused_page = event.get("frameId") == main_frame
                if refused_page:
                    self._record_refusal(url)
                # 204 ends a navigation and keeps the present document; an abort would show an
                # error page in its place.
                cdp.send("Fetch.fulfillRequest", {**request, "responseCode": 204})
            else:
                cdp.send("Fetch.failRequest", {**request, "errorReason": "BlockedByClient"})
        except Error:
            pass  # the request or its page is gone
        return refused_page

    def _with_policy(self, event: dict[str, Any]) -> dict[str, Any]:
        status = event.get("responseStatusCode", 0)
        if not 200 <= status < 300 and not 400 <= status:
            return {}
        headers = [*event["responseHeaders"]]
        headers.append({"name": "Content-Security-Policy", "value": self.policy})
        return {"responseCode": status, "responseHeaders": headers}

    def _hold_shared_workers(self) -> None:
        browser = self._context.browser
        assert browser is not None, "`Session.on` asks for one"
        page = self._context.new_cdp_session(self._context.pages[0])
        ours = page.send("Target.getTargetInfo")["targetInfo"].get("browserContextId")
        page.detach()
        cdp = self._workers = browser.new_browser_cdp_session()

        def on_attached(event: dict[str, Any]) -> None:
            if event["targetInfo"].get("browserContextId") != ours:
                try:
                    cdp.send("Target.detachFromTarget", {"sessionId": event["sessionId"]})
                except Error:
                    pass  # it ended

        cdp.on("Target.attachedToTarget", on_attached)
        cdp.send(
            "Target.setAutoAttach",
            {
                "autoAttach": True,
                "waitForDebuggerOnStart": True,
                "flatten": True,
                "filter": [{"type": "shared_worker"}],
            },
        )

    def _on_request(self, route: Route) -> None:
        """Of a caller's context: refuse, hold, or leave it to the caller's own handlers."""
        request = route.request
        if self.allow.refused.match(request.url):
            self._on_refused(route)
        elif request.resource_type == "document" and not self._has_passed(request):
            self._held[request.url.partition("#")[0]] += 1
            route.fulfill(status=200, content_type="text/html", body="<!doctype html>")
        else:
            route.fallback()

    def _has_passed(self, request: Request) -> bool:
        """Whether the tab sees this request's hops; a frame's are its tab's."""
        try:
            frame = request.frame
        except Error:  # a window has no frame yet when its first request comes
            return False
        passed, url = self._passed[frame.page], request.url.partition("#")[0]
        if frame.parent_frame is not None:
            return True
        if not passed[url]:
            return False
        passed[url] -= 1
        return True

    def _on_refused(self, route: Route) -> None:
        request = route.request
        if request.resource_type != "document":
            route.abort("blockedbyclient")
            return
        try:
            is_whole_page = request.frame.parent_frame is None
        except Error:  # a window has no frame yet when its first request comes
            is_whole_page = True
        if is_whole_page:
            self._record_refusal(request.url)
        route.fulfill(status=204)

    def _record_refusal(self, url: str) -> None:
        self._num_refused_pages += 1
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
        shown = name if re.fullmatch(r"[\w.\-]+", name) else quote(name)
        self.notices.append(f"download of {shown} cancelled")
