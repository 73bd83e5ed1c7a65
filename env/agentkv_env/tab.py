"""One browser tab, over Chromium's own protocol: our script in a world of its own, and the gate.

Playwright opens, presses and types; this reads, waits and refuses.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import resources
from typing import Any

from playwright.sync_api import CDPSession, Error, Request
from playwright.sync_api import Page as PlaywrightPage

from agentkv_env.allow import AllowList
from agentkv_env.errors import ActionFailed, BrowserGone, PageHung
from agentkv_env.watchdog import Watchdog

WORLD = "agentkv"
LOADED_S = 1.0  # once the document is there: how long late images and scripts are waited for
FETCH_S = 0.6  # how long requests of a page that stays are waited for; polling pages never rest
REQUESTED_S = 2.0  # how long a navigation that was asked for may take to begin
MAX_DEPTH = 5  # frames in frames of other origins
_UNCOUNTED = {"websocket", "eventsource", "media", "ping"}  # these may stay open for ever


class Tab:
    """A Playwright page with our walk installed and every request checked."""

    def __init__(
        self,
        page: PlaywrightPage,
        *,
        allow: AllowList,
        notice: Callable[[str], None],
        watchdog: Watchdog,
        timeout_s: float,
    ) -> None:
        self.page = page
        self.title = ""
        self.expects_popup = False
        """A window was asked for and is not here yet."""
        self._allow = allow
        self._notice = notice
        self._watchdog = watchdog
        self._timeout_s = timeout_s
        self._crashed = False
        self._requested_at = 0.0
        self._loading: set[str] = set()
        self._has_document = True
        self._open_requests: set[Request] = set()
        self._worlds: dict[str, int] = {}  # frame -> execution context
        self._owners: dict[int, tuple[str, float, float]] = {}  # element in a foreign frame
        self._token = ""
        self._next_id = 1
        page.on("crash", self._on_crash)
        page.on("request", self._on_request)
        page.on("requestfinished", self._on_request_done)
        page.on("requestfailed", self._on_request_done)
        with self.guard():
            self._wire: CDPSession = page.context.new_cdp_session(page)
            self._frame: str = self._wire.send("Page.getFrameTree")["frameTree"]["frame"]["id"]
            for event, handler in (
                ("Page.frameRequestedNavigation", self._on_requested),
                ("Page.frameStartedLoading", self._on_started),
                ("Page.frameStoppedLoading", self._on_stopped),
                ("Page.frameNavigated", self._on_navigated),
                ("Page.navigatedWithinDocument", self._on_stayed),
                ("Page.domContentEventFired", self._on_document),
                ("Page.windowOpen", self._on_window_open),
                ("Fetch.requestPaused", self._on_paused),
            ):
                self._wire.on(event, handler)
            self._wire.send("Page.enable")
            # Playwright's routes never see the later hops of a redirect; this does.
            self._wire.send("Fetch.enable", {"patterns": [{"urlPattern": "*"}]})

    def detach(self) -> None:
        """Take our hands off the page, leaving it open."""
        self.page.remove_listener("crash", self._on_crash)
        self.page.remove_listener("request", self._on_request)
        self.page.remove_listener("requestfinished", self._on_request_done)
        self.page.remove_listener("requestfailed", self._on_request_done)
        try:
            with self._watchdog.limit(self._timeout_s):
                self._wire.detach()
        except Error:
            pass  # the page is gone already

    # ---- what the page tells us -------------------------------------------------------------

    def _on_crash(self, _: PlaywrightPage) -> None:
        self._crashed = True
        if self._watchdog.pid is not None:
            try:
                self.page.close()  # else a call under way would wait for the dead
            except Error:
                pass

    def _on_request(self, request: Request) -> None:
        if request.resource_type not in _UNCOUNTED:
            self._open_requests.add(request)

    def _on_request_done(self, request: Request) -> None:
        self._open_requests.discard(request)

    def _on_requested(self, event: dict[str, Any]) -> None:
        if event["frameId"] == self._frame and event.get("disposition") == "currentTab":
            self._requested_at = time.monotonic()

    def _on_started(self, event: dict[str, Any]) -> None:
        self._loading.add(event["frameId"])
        if event["frameId"] == self._frame:
            self._has_document = False

    def _on_stopped(self, event: dict[str, Any]) -> None:
        self._loading.discard(event["frameId"])
        if event["frameId"] == self._frame:
            self._requested_at = 0.0
            self._has_document = True

    def _on_navigated(self, event: dict[str, Any]) -> None:
        if not event["frame"].get("parentId"):
            self._requested_at = 0.0
            self._open_requests.clear()

    def _on_stayed(self, event: dict[str, Any]) -> None:
        if event["frameId"] == self._frame:
            self._requested_at = 0.0

    def _on_document(self, _: dict[str, Any]) -> None:
        self._has_document = True

    def _on_window_open(self, _: dict[str, Any]) -> None:
        self.expects_popup = True

    def _on_paused(self, event: dict[str, Any]) -> None:
        """Let a request pass, or refuse it; a refused document leaves the page as it is."""
        url, request = event["request"]["url"], {"requestId": event["requestId"]}
        try:
            if not self._allow.refused.match(url):
                self._wire.send("Fetch.continueRequest", request)
            elif event.get("resourceType") == "Document":
                if event.get("frameId") == self._frame:
                    self._requested_at = 0.0
                    self._notice(f"navigation to {url} refused; allowed hosts: {self._allow}")
                # 204 ends a navigation and keeps the present document; an abort would show an
                # error page in its place.
                self._wire.send("Fetch.fulfillRequest", {**request, "responseCode": 204})
            else:
                reason = {"errorReason": "BlockedByClient"}
                self._wire.send("Fetch.failRequest", {**request, **reason})
        except Error:
            pass  # the request or its page is gone

    # ---- asking the page --------------------------------------------------------------------

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Bound a block of browser calls in time; turn a dead page into BrowserGone.

        Raises:
            PageHung: the page did not answer (our own browser is killed then).
            BrowserGone: it crashed or was closed.
        """
        try:
            with self._watchdog.limit(2 * self._timeout_s):
                if self._crashed:
                    raise BrowserGone("the page crashed")
                if self._watchdog.pid is None:
                    self._ping()
                yield
        except Error as error:
            self.raise_if_gone(error)
            raise

    def raise_if_gone(self, error: Error) -> None:
        """Raise what `error` means if it means the end."""
        text = error.message.splitlines()[0] if error.message else str(error)
        if self._watchdog.fired:
            raise PageHung(
                f"the page did not answer for {2 * self._timeout_s:g} s; its browser was killed"
            ) from error
        crashed = self._crashed or "crashed" in text.lower()
        if crashed or self.page.is_closed() or "closed" in text.lower():
            raise BrowserGone(f"the page {'crashed' if crashed else 'is gone'}: {text}") from error

    def _ping(self) -> None:
        """Does the page answer? A browser that is not ours cannot be killed, so we ask first."""
        try:
            self.page.wait_for_function("() => true", timeout=self._timeout_s * 1000)
        except Error as error:
            if "Timeout" in error.message:
                raise PageHung(f"the page did not answer for {self._timeout_s:g} s") from error
            raise

    def call(self, expression: str, *, frame: str | None = None) -> Any:
        """The value of `expression` in our own world of `frame` (None: the main one).

        Raises:
            Error: the document went away under the call, or the expression threw.
        """
        frame = frame or self._frame
        world = self._worlds.get(frame)
        if world is not None:
            try:
                return self._evaluate(expression, world)
            except Error as error:
                if "context" not in error.message and "navigated" not in error.message:
                    raise
        asked = {"frameId": frame, "worldName": WORLD}
        world = int(self._wire.send("Page.createIsolatedWorld", asked)["executionContextId"])
        self._worlds[frame] = world
        return self._evaluate(f"{_script()}\n{expression}", world)

    def _evaluate(self, expression: str, world: int) -> Any:
        answer = self._wire.send(
            "Runtime.evaluate",
            {
                "expression": expression,
                "contextId": world,
                "returnByValue": True,
                "awaitPromise": True,
            },
        )
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            text = details.get("exception", {}).get("description") or details.get("text", "")
            raise Error(f"our script failed in the page: {text}")
        return answer["result"].get("value")

    def ask(self, id: int, function: str, *arguments: object) -> Any:
        """Call one of walk.js's functions on element `id`, wherever it lives.

        Raises:
            ActionFailed: no element has this number any more.
        """
        frame, x, y = self._owners.get(id, (self._frame, 0.0, 0.0))
        listed = ", ".join(json.dumps(argument) for argument in (id, *arguments))
        answer = self.call(f"agentkv.{function}({listed})", frame=frame)
        if isinstance(answer, str) and answer.startswith("{"):
            answer = json.loads(answer)
            if answer.get("error") == "gone":
                raise ActionFailed(f"there is no element [{id}] on this page")
            if "x" in answer:
                answer["x"] += x
                answer["y"] += y
        return answer

    def read(self, *, pictures: bool) -> dict[str, Any]:
        """Walk the page; nodes of frames of other origins stand where the frame stands."""
        arguments = f"{self._next_id}, {json.dumps(self._token)}, {{x: 0, y: 0}}, null"
        found = json.loads(self.call(f"agentkv.walk({arguments}, {json.dumps(pictures)})"))
        if found["token"] != self._token:
            self._token = found["token"]
            self._owners = {}
        self._next_id = found["nextId"]
        found["nodes"] = list(self._spliced(found["nodes"], self._frame, pictures, MAX_DEPTH))
        self.title = found["title"]
        return dict(found)

    def _spliced(
        self, nodes: list[dict[str, Any]], frame: str, pictures: bool, depth: int
    ) -> Iterator[dict[str, Any]]:
        for node in nodes:
            if node["k"] != "frame":
                yield {**node, "frame": frame}
                continue
            if depth == 0:
                continue
            try:
                yield from self._foreign(node, frame, pictures, depth)
            except Error as error:
                self.raise_if_gone(error)  # else the frame is just loading: the next look has it

    def _foreign(
        self, node: dict[str, Any], parent: str, pictures: bool, depth: int
    ) -> Iterator[dict[str, Any]]:
        handle = self._wire.send(
            "Runtime.evaluate",
            {"expression": f"agentkv.frame({node['f']})", "contextId": self._worlds[parent]},
        )["result"]
        described = self._wire.send("DOM.describeNode", {"objectId": handle["objectId"]})
        frame = str(described["node"]["frameId"])
        x, y, _, _ = node["b"]
        view = dict(zip(("x", "y", "width", "height"), node["c"], strict=True))
        arguments = f"{self._next_id}, null, {{x: {x}, y: {y}}}, {json.dumps(view)}"
        walked = self.call(f"agentkv.walk({arguments}, {json.dumps(pictures)})", frame=frame)
        found = json.loads(walked)
        self._next_id = found["nextId"]
        for inner in found["nodes"]:
            if "i" in inner:
                self._owners[inner["i"]] = (frame, x, y)
        yield from self._spliced(found["nodes"], frame, pictures, depth - 1)

    def settle(self, *, turn: bool = True) -> None:
        """Wait until what was just done has had its effect, no longer than it takes.

        A navigation is waited for until its document is there and its images had a moment; a page
        that stays has one frame to react (the turn) and a short time for the requests it makes.
        """
        started = time.monotonic()
        if turn:
            try:
                self.call("agentkv.turn()")
            except Error as error:
                self.raise_if_gone(error)
                self._requested_at = self._requested_at or started
        document_at = 0.0
        while True:
            now = time.monotonic()
            if self._frame in self._loading and not self._has_document:
                limit = started + self._timeout_s
            elif self._requested_at:
                limit = self._requested_at + REQUESTED_S
            elif self._loading or (document_at and self._open_requests):
                document_at = document_at or now
                limit = document_at + LOADED_S
            elif self._open_requests:
                limit = started + FETCH_S
            else:
                return
            if now >= limit:
                self._requested_at = 0.0
                return
            self.page.wait_for_timeout(4)

    @property
    def can_go_back(self) -> bool:
        """Whether there is an earlier page than the empty one every tab begins with."""
        history = self._wire.send("Page.getNavigationHistory")
        index = history["currentIndex"]
        return bool(index > 0 and history["entries"][index - 1]["url"] != "about:blank")


@cache
def _script() -> str:
    return resources.files("agentkv_env").joinpath("walk.js").read_text(encoding="utf-8")
