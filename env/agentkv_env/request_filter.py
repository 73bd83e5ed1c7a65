"""Keep pages on the allowed hosts and cancel their downloads."""

import re
from collections import Counter, defaultdict
from collections.abc import Collection
from typing import Any

from playwright.sync_api import (
    BrowserContext,
    CDPSession,
    Download,
    Error,
    Request,
    Route,
    WebSocketRoute,
)
from playwright.sync_api import Page as PlaywrightPage

from agentkv_env.hosts import AllowList
from agentkv_env.proxy import Proxy
from agentkv_env.sanitize import quote

MAX_URL = 200  # characters of a refused address in its notice
MAX_BLOCKED = 1000  # blocked scripts and styles that are counted
_COUNTED = {"script": "script", "stylesheet": "style"}
"""Resource types without which a page may not work, and their names in a notice."""

_ALL = [{"urlPattern": "*"}]
_WORKER_RESPONSES = [  # responses that may create a worker, which inherits their policy
    {"urlPattern": "*", "resourceType": kind, "requestStage": "Response"}
    for kind in ("Script", "Other")
]
_EVERYTHING = re.compile("")


class RequestFilter:
    """Filters the requests of one browser context and reports refusals in `notices`.

    Two mechanisms check requests: Playwright's routes, which see the first request of a new window,
    and each tab over CDP (`handle_paused`), which sees every hop of a redirect. Neither sees all
    requests, so a context of ours also has the proxy. A caller's context has no proxy. There,

    * the first document of a new window is replaced by an empty one, and its tab reloads the
      document once it sees every hop (`take_held`);
    * documents (through their tab) and workers (here) get a Content-Security-Policy with the
      allowed hosts, which Chromium enforces for sockets, WebTransport, sign-in requests and frames
      in other processes;
    * shared workers are paused before their first statement.
    """

    def __init__(
        self,
        context: BrowserContext,
        allow: AllowList,
        *,
        proxy: Proxy | None,
        bystanders: Collection[PlaywrightPage] = (),
    ) -> None:
        """Prepare the filter; it refuses nothing before `install`.

        `proxy` is None for a caller's context, where the caller's handlers come first. Requests of
        `bystanders`, which are other pages of that context, are left alone.
        """
        self._bystanders = bystanders
        self.allow = allow
        self.notices: list[str] = []
        self._context = context
        self._proxy = proxy
        self._owns_context = proxy is not None
        self._pages: list[PlaywrightPage] = []
        self._released = False  # if True, nothing is refused any more
        self._num_refused_pages = 0
        self._blocked: set[str] = set()  # addresses that were counted, each once per session
        self._num_blocked: Counter[tuple[str, str]] = Counter()  # since the last notices
        self._passed: defaultdict[PlaywrightPage, Counter[str]] = defaultdict(Counter)
        self._held: Counter[str] = Counter()  # addresses answered with an empty document
        self._workers: CDPSession | None = None

    def install(self) -> None:
        """Start to check the requests of all pages."""
        self._context.route_web_socket(self.allow.refused, self._on_web_socket)
        if self._owns_context:
            self._context.route(self.allow.refused, self._on_refused)
        else:
            self._context.route(_EVERYTHING, self._on_request)
            self._hold_shared_workers()

    def watch(self, page: PlaywrightPage) -> None:
        """Report the downloads of `page`."""
        self._pages.append(page)
        page.on("download", self._on_download)

    def release(self) -> None:
        """Remove all handlers from a caller's context."""
        self._released = True
        for page in self._pages:
            if not page.is_closed():
                page.remove_listener("download", self._on_download)
        self._context.unroute(_EVERYTHING, self._on_request)
        if self._workers is not None:
            try:
                self._workers.detach()  # lets the paused workers start
            except Error:
                pass  # the browser is gone

    def intercept(self, cdp: CDPSession) -> None:
        """Let the browser pause a page's requests for `handle_paused`."""
        if self._owns_context:
            cdp.send("Fetch.enable", {"patterns": _ALL})
            return
        cdp.send("Fetch.enable", {"patterns": [*_ALL, *_WORKER_RESPONSES]})
        cdp.send("Network.enable")
        cdp.send("Network.setBypassServiceWorker", {"bypass": True})

    @property
    def policy(self) -> str:
        """A Content-Security-Policy that allows exactly the allowed hosts.

        "" in a context of ours, where the proxy makes a policy unnecessary.
        """
        if self._owns_context:
            return ""
        local = "'self' 'unsafe-inline' 'unsafe-eval' 'wasm-unsafe-eval' data: blob: filesystem:"
        sources = f"{local} about: mediastream: {self.allow.sources}"
        return f"default-src {sources}; form-action {sources}"

    def take_notices(self) -> tuple[str, ...]:
        """Return the notices since the last call, without duplicates."""
        self._collect()
        self.notices += self._take_blocked()
        found = tuple(dict.fromkeys(self.notices))
        self.notices.clear()
        return found

    def has_refused_page(self) -> bool:
        """Return whether a main document was refused since the last call."""
        self._collect()
        found, self._num_refused_pages = self._num_refused_pages > 0, 0
        return found

    def failure_of(self, url: str) -> str:
        """Return Chromium's name of the error with which `url` failed, or ""."""
        failures = self._proxy.failures if self._proxy is not None else ()
        host = url.partition("://")[2].partition("/")[0]
        return next((why for found, why in reversed(failures) if f"//{host}/" in found), "")

    def _collect(self) -> None:
        while self._proxy is not None and self._proxy.refused_pages:
            self._record_refusal(self._proxy.refused_pages.popleft())

    def take_held(self, url: str) -> bool:
        """Return whether a new window shows an empty document instead of `url`; true only once."""
        if not self._held[url]:
            return False
        self._held[url] -= 1
        return True

    def handle_paused(
        self, event: dict[str, Any], cdp: CDPSession, *, page: PlaywrightPage, main_frame: str
    ) -> bool:
        """Continue or refuse a paused request; return whether a main document was refused."""
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
                # 204 ends a navigation and keeps the current document; an abort would show an
                # error page.
                cdp.send("Fetch.fulfillRequest", {**request, "responseCode": 204})
            else:
                self._record_block(url, event.get("resourceType", "").lower())
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
        assert browser is not None, "`Session.on` requires a browser"
        page = self._context.new_cdp_session(self._context.pages[0])
        ours = page.send("Target.getTargetInfo")["targetInfo"].get("browserContextId")
        page.detach()
        cdp = self._workers = browser.new_browser_cdp_session()

        def on_attached(event: dict[str, Any]) -> None:
            if event["targetInfo"].get("browserContextId") != ours:
                try:
                    cdp.send("Target.detachFromTarget", {"sessionId": event["sessionId"]})
                except Error:
                    pass  # the worker has ended

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
        """Refuse or hold a request of a caller's context, or leave it to the caller's handlers."""
        request = route.request
        if self._bystanders and self._is_bystanders(request):
            route.fallback()
        elif self.allow.refused.match(request.url):
            self._on_refused(route)
        elif request.resource_type == "document" and not self._has_passed(request):
            self._held[request.url.partition("#")[0]] += 1
            route.fulfill(status=200, content_type="text/html", body="<!doctype html>")
        else:
            route.fallback()

    def _is_bystanders(self, request: Request) -> bool:
        try:
            return request.frame.page in self._bystanders
        except Error:  # the first request of a window comes before its frame exists
            return False

    def _has_passed(self, request: Request) -> bool:
        """Return whether a tab already sees the hops of this request; frames belong to a tab."""
        try:
            frame = request.frame
        except Error:  # the first request of a window comes before its frame exists
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
            self._record_block(request.url, request.resource_type)
            route.abort("blockedbyclient")
            return
        try:
            is_whole_page = request.frame.parent_frame is None
        except Error:  # the first request of a window comes before its frame exists
            is_whole_page = True
        if is_whole_page:
            self._record_refusal(request.url)
        route.fulfill(status=204)

    def _record_refusal(self, url: str) -> None:
        self._num_refused_pages += 1
        self.notices.append(f"navigation to {url[:MAX_URL]} refused; allowed hosts: {self.allow}")

    def _record_block(self, url: str, kind: str) -> None:
        if kind in _COUNTED and url not in self._blocked and len(self._blocked) < MAX_BLOCKED:
            self._blocked.add(url)
            self._num_blocked[url.partition("://")[2].partition("/")[0][:MAX_URL], kind] += 1

    def _take_blocked(self) -> list[str]:
        """Return a notice for each host with newly blocked scripts or styles."""
        notices = []
        for host in dict.fromkeys(host for host, _ in self._num_blocked):
            counts = {kind: self._num_blocked[host, kind] for kind in _COUNTED}
            parts = [
                f"{count} {_COUNTED[kind]}{'s' if count > 1 else ''}"
                for kind, count in counts.items()
                if count
            ]
            verb = "was" if sum(counts.values()) == 1 else "were"
            notices.append(
                f"{' and '.join(parts)} of {host} {verb} blocked: not on the allowed hosts"
            )
        self._num_blocked.clear()
        return notices

    def _on_web_socket(self, socket: WebSocketRoute) -> None:
        if self._released:  # Playwright cannot remove this route
            socket.connect_to_server()
        else:
            socket.close()

    def _on_download(self, download: Download) -> None:
        name = download.suggested_filename[:100]
        shown = name if re.fullmatch(r"[\w.\-]+", name) else quote(name)
        self.notices.append(f"download of {shown} cancelled")
