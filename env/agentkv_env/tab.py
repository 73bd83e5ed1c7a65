"""One browser tab, over Chromium's own protocol: our script in a world of its own.

Playwright opens, presses and types; this reads and waits.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import resources
from typing import Any

from playwright.sync_api import CDPSession, Error, TimeoutError
from playwright.sync_api import Page as PlaywrightPage

from agentkv_env.errors import ActionFailed, BrowserGone, PageHung, StillLoading, TabClosed
from agentkv_env.loading import NAVIGATION_START_S, POLL_MS, Loading
from agentkv_env.request_filter import RequestFilter
from agentkv_env.sanitize import clean
from agentkv_env.watchdog import Watchdog

WORLD = "agentkv"
_POLICY = "agentkv policy"
AFTER_FRAME_MS = 20  # after a turn: until what the page asked for in it has been told to us
MAX_DEPTH = 5  # frames in frames of other origins
READING_S = 4.0  # how long a page is read; what is not reached by then is left out
LEAVING_S = 1.0  # how long a page that is being left may take to answer

# Chromium reads the policy when the element gets into a head, and keeps it when it is gone again.
# A document that has only begun is empty.
_APPLY_POLICY = """policy => {
  const meta = document.createElement("meta");
  meta.httpEquiv = "Content-Security-Policy";
  meta.content = policy;
  const root = document.documentElement || document.appendChild(document.createElement("html"));
  const head = document.head || root.appendChild(document.createElement("head"));
  head.append(meta);
  meta.remove();
  if (!head.firstChild && !root.attributes.length) {
    head.remove();
    if (!root.firstChild) root.remove();
  }
  // Prefetches know no policy; their rules are taken out before Chromium gathers them.
  const isRules = type => /^\\s*speculationrules\\s*$/i.test(type || "");
  new MutationObserver(records => {
    for (const { addedNodes, target, oldValue } of records) {
      if (isRules(oldValue)) target.remove();
      for (const node of addedNodes) {
        if (node.nodeType !== 1) continue;
        const scripts = node.matches("script") ? [node] : node.querySelectorAll("script");
        for (const each of scripts) if (isRules(each.type)) each.remove();
      }
    }
  }).observe(document, {
    childList: true, subtree: true, attributeFilter: ["type"], attributeOldValue: true,
  });
}"""

# What Chromium asks nobody about, in the page's own world, as in browsers without it. The first
# document of a window is there before any script of ours: its opener's world takes care of it.
_REMOVE_APIS = """(() => {
  const { deleteProperty, apply } = Reflect;
  const strip = scope => {
    deleteProperty(scope, "RTCPeerConnection");
    deleteProperty(scope, "webkitRTCPeerConnection");
    deleteProperty(scope.Navigator.prototype, "serviceWorker");
  };
  strip(globalThis);
  for (const owner of [globalThis, Document.prototype]) {
    const { open } = owner;
    owner.open = { open(...given) {
      const opened = apply(open, this, given);
      try { if (opened !== this) strip(opened); } catch { /* none, or of another origin */ }
      return opened;
    } }.open;
  }
})()"""


class Tab:
    """A Playwright page with our script installed and every request checked."""

    def __init__(
        self,
        page: PlaywrightPage,
        *,
        request_filter: RequestFilter,
        watchdog: Watchdog,
        timeout_s: float,
    ) -> None:
        self.page = page
        self.title = ""
        """As of the last reading."""
        self.expects_popup = False
        """A window was asked for and is not here yet."""
        self._filter = request_filter
        self._watchdog = watchdog
        self._timeout_s = timeout_s
        self._crashed = False
        self._awaits_reload = False  # shows an empty document in place of the one it loads
        self._worlds: dict[str, int] = {}  # frame -> execution context
        self._foreign_elements: dict[
            int, tuple[str, float, float]
        ] = {}  # element in a foreign frame
        self._document = ""  # token of the one last read
        self._next_id = 1
        self._read_until = 0.0
        self._is_partial = False  # of the reading under way: not all of the page was reached
        page.on("crash", self._on_crash)
        self._loading = Loading(page)
        with self.guard():
            self._cdp: CDPSession = page.context.new_cdp_session(page)
            tree = self._cdp.send("Page.getFrameTree")["frameTree"]
            self._frame: str = tree["frame"]["id"]
            self._loading.follow(self._cdp, self._frame)
            self._cdp.on("Page.windowOpen", self._on_window_open)
            self._cdp.on("Page.frameNavigated", self._on_navigated)
            self._cdp.on("Fetch.requestPaused", self._on_paused)
            self._cdp.send("Page.enable")
            request_filter.intercept(self._cdp)
            if request_filter.policy:
                source = {
                    "source": f"({_APPLY_POLICY})({json.dumps(request_filter.policy)})",
                    "worldName": _POLICY,
                }
                self._cdp.send("Page.addScriptToEvaluateOnNewDocument", source)
                self._cdp.send("Page.addScriptToEvaluateOnNewDocument", {"source": _REMOVE_APIS})
                self._cdp.send("Page.setPrerenderingAllowed", {"isAllowed": False})
                self._apply_policy(tree)
            self._reload_held(page.url)

    def detach(self) -> None:
        """Take our hands off the page, leaving it open."""
        self.page.remove_listener("crash", self._on_crash)
        self._loading.detach()
        try:
            with self._watchdog.limit(self._timeout_s):
                self._cdp.detach()
        except Error:
            pass  # the page is gone already

    def _on_crash(self, _: PlaywrightPage) -> None:
        self._crashed = True
        if self._watchdog.pid is not None:
            try:
                self.page.close()  # else a call under way would wait for the dead
            except Error:
                pass

    def _on_window_open(self, _: dict[str, Any]) -> None:
        self.expects_popup = True

    def _on_paused(self, event: dict[str, Any]) -> None:
        if self._filter.handle_paused(event, self._cdp, page=self.page, main_frame=self._frame):
            self._loading.forget_navigation()
            self._awaits_reload = False

    def _on_navigated(self, event: dict[str, Any]) -> None:
        if not event["frame"].get("parentId"):
            self._awaits_reload = False
            self._reload_held(event["frame"]["url"])

    def _apply_policy(self, tree: dict[str, Any]) -> None:
        """Give the gate's policy to documents that are there already."""
        asked = {"frameId": tree["frame"]["id"], "worldName": _POLICY}
        try:
            world = int(self._cdp.send("Page.createIsolatedWorld", asked)["executionContextId"])
            self._evaluate(f"({_APPLY_POLICY})({json.dumps(self._filter.policy)})", world)
            if not tree["frame"].get("parentId"):
                self._cdp.send("Runtime.evaluate", {"expression": _REMOVE_APIS})
        except Error:
            pass  # the frame loads another document just now, or is another process's
        for child in tree.get("childFrames", ()):
            self._apply_policy(child)

    def _reload_held(self, url: str) -> None:
        """Load what the gate held back until this tab saw every hop of it, body and all."""
        if self._filter.take_held(url):
            self._awaits_reload = True
            try:
                self._cdp.send("Page.reload")
            except Error:
                pass  # the window is gone again

    @property
    def has_crashed(self) -> bool:
        return self._crashed

    @property
    def is_leaving(self) -> bool:
        """Whether it is being left for a page that has not answered yet."""
        return self._loading.is_leaving

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Bound each browser call of a block in time; turn a dead page into BrowserGone.

        Raises:
            PageHung: the page did not answer (our own browser is killed then).
            TabClosed: it closed its window.
            BrowserGone: it crashed, or the browser did.
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
        browser = self.page.context.browser
        if self.page.is_closed() and not crashed and (browser is None or browser.is_connected()):
            raise TabClosed("the page closed its window") from error
        gone = "closed" in text.lower() and "navigated or closed" not in text
        if crashed or self.page.is_closed() or gone:
            raise BrowserGone(f"the page {'crashed' if crashed else 'is gone'}: {text}") from error

    def _ping(self) -> None:
        """Does the page answer? A browser that is not ours cannot be killed, so we ask first."""
        try:
            # In Playwright's own world: in the page's the page may have replaced what it takes.
            root = self.page.locator(":root")
            root.wait_for(state="attached", timeout=self._timeout_s * 1000)
        except Error as error:
            if "Timeout" in error.message:
                raise PageHung(f"the page did not answer for {self._timeout_s:g} s") from error
            raise

    def wait_idle(self, *, first_frame: bool = True) -> None:
        """Wait until what was just done has had its effect, no longer than it takes.

        The page gets one frame to react (the turn); then what it began to load is waited for. What
        came may make it react once more, so it gets another turn, until nothing was waited for.
        """
        started_at = time.monotonic()
        while self._awaits_reload and time.monotonic() < started_at + NAVIGATION_START_S:
            self.page.wait_for_timeout(POLL_MS)
        self._awaits_reload = False
        if first_frame:
            self._wait_frame(started_at)
        while self._loading.wait(
            started_at, timeout_s=self._timeout_s, on_wait=self._watchdog.restart
        ):
            if time.monotonic() > started_at + self._timeout_s:
                return  # a page that loads itself again and again
            self._wait_frame(time.monotonic())

    def _wait_frame(self, asked_at: float) -> None:
        try:
            self.page.wait_for_timeout(1)  # hear first whether the page is being left
            if not self._loading.is_leaving:
                self.call("nextFrame")
            self.page.wait_for_timeout(AFTER_FRAME_MS)
        except StillLoading:
            pass  # whoever asks for the page hears of it
        except Error as error:
            self.raise_if_gone(error)
            self._loading.expect_navigation(asked_at)

    @property
    def can_go_back(self) -> bool:
        """Whether there is an earlier page than the empty one every tab begins with."""
        history = self._cdp.send("Page.getNavigationHistory")
        index = history["currentIndex"]
        return bool(index > 0 and history["entries"][index - 1]["url"] != "about:blank")

    def call(self, function: str, *arguments: object, frame: str | None = None) -> Any:
        """The value of one of our script's functions in `frame` (None: the main one).

        Raises:
            Error: the document went away under the call, or the function threw.
        """
        frame = frame or self._frame
        listed = ", ".join(map(json.dumps, arguments))
        expression = f"agentkv.{function}({listed})"
        world = self._worlds.get(frame)
        if world is not None:
            try:
                return self._evaluate(expression, world).get("value")
            except Error as error:
                if "context" not in error.message and "navigated" not in error.message:
                    raise
        # The frame is new to us or shows a new document.
        asked = {"frameId": frame, "worldName": WORLD}
        world = int(self._send("Page.createIsolatedWorld", asked)["executionContextId"])
        self._worlds[frame] = world
        return self._evaluate(f"{_script()}\n{expression}", world).get("value")

    def _evaluate(self, expression: str, world: int, *, by_value: bool = True) -> dict[str, Any]:
        answer = self._send(
            "Runtime.evaluate",
            {
                "expression": expression,
                "contextId": world,
                "returnByValue": by_value,
                "awaitPromise": True,
            },
        )
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            text = details.get("exception", {}).get("description") or details.get("text", "")
            raise Error(f"our script failed in the page: {text}")
        result: dict[str, Any] = answer["result"]
        return result

    def _send(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """What the page answers.

        Raises:
            StillLoading: it is being left for a page that takes longer than is waited for.
            Error: it answers with an error.
        """
        # Chromium keeps back what is asked of a page that is being left until the next one answers.
        # Not always, so it is asked all the same.
        patience = (
            min(LEAVING_S, self._timeout_s) if self._loading.is_leaving else 1.8 * self._timeout_s
        )
        try:
            answer: dict[str, Any] = self._cdp.send(method, params, timeout=patience * 1000)
        except TimeoutError as error:
            if self._loading.is_leaving:
                raise StillLoading("the page is still loading") from error
            self._watchdog.kill()
            raise PageHung(f"the page did not answer for {patience:g} s") from error
        self._watchdog.restart()
        return answer

    def call_on(self, id: int, function: str, *arguments: object) -> Any:
        """Call one of our script's functions on element `id`, wherever it lives.

        Raises:
            ActionFailed: no element has this number any more.
        """
        frame, x, y = self._foreign_elements.get(id, (self._frame, 0.0, 0.0))
        answer = self.call(function, id, *arguments, frame=frame)
        if isinstance(answer, dict):
            if answer.get("error") == "gone":
                raise ActionFailed(f"there is no element [{id}] on this page")
            if "x" in answer:
                answer["x"] += x
                answer["y"] += y
        return answer

    def read(self) -> dict[str, Any]:
        """Walk the page; nodes of frames of other origins stand where the frame stands."""
        self._read_until = time.monotonic() + READING_S
        self._is_partial = False
        found = self._walk(self._frame, self._document, {"x": 0, "y": 0}, None)
        if found["token"] != self._document:
            self._document = found["token"]
            self._foreign_elements = {}
        found["nodes"] = list(self._splice_frames(found["nodes"], self._frame, MAX_DEPTH))
        found["part"] = self._is_partial
        self.title = clean(found["title"])
        return found

    def read_title(self) -> None:
        """Read nothing but the title; it stays as it was where that cannot be."""
        try:
            self.title = clean(self.call("title"))
        except StillLoading:
            pass
        except Error as error:
            self.raise_if_gone(error)

    def _walk(
        self, frame: str, document: str | None, at: dict[str, float], view: dict[str, float] | None
    ) -> dict[str, Any]:
        left_ms = max(1, round(1000 * (self._read_until - time.monotonic())))
        found: dict[str, Any] = json.loads(
            self.call("walk", self._next_id, document, at, view, left_ms, frame=frame)
        )
        self._next_id = found["nextId"]
        self._is_partial |= found["part"]
        return found

    def _splice_frames(
        self, nodes: list[dict[str, Any]], frame: str, depth: int
    ) -> Iterator[dict[str, Any]]:
        for node in nodes:
            if node["k"] != "frame":
                yield {**node, "frame": frame}
            elif depth == 0 or time.monotonic() > self._read_until:
                self._is_partial = True
            else:
                try:
                    yield from self._walk_foreign_frame(node, frame, depth)
                except Error as error:
                    self.raise_if_gone(error)  # else it is just loading: the next look has it

    def _walk_foreign_frame(
        self, node: dict[str, Any], parent: str, depth: int
    ) -> Iterator[dict[str, Any]]:
        expression = f"agentkv.frame({node['f']})"
        handle = self._evaluate(expression, self._worlds[parent], by_value=False)
        described = self._send("DOM.describeNode", {"objectId": handle["objectId"]})
        frame = described["node"].get("frameId")
        if frame is None:
            return  # the page took the element out since the walk
        x, y, _, _ = node["b"]
        view = dict(zip(("x", "y", "width", "height"), node["c"], strict=True))
        found = self._walk(frame, None, {"x": x, "y": y}, view)
        if self._filter.allow.refused.match(found["url"]):
            return
        for inner in found["nodes"]:
            if "i" in inner:
                self._foreign_elements[inner["i"]] = (frame, x, y)
        yield from self._splice_frames(found["nodes"], frame, depth - 1)


SCRIPTS = ("dom", "geometry", "semantics", "images", "walk", "actions")
"""Files of the folder walk/, which share one scope."""


@cache
def _script() -> str:
    folder = resources.files("agentkv_env").joinpath("walk")
    parts = [folder.joinpath(f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS]
    # A second run in the same world finds the first one's numbers in use and leaves them.
    return "\n".join(['(() => {\n"use strict";\nif (globalThis.agentkv) return;', *parts, "})();"])
