"""One browser tab: a Playwright page with our script, filtered requests and bounded waits."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

from playwright.sync_api import CDPSession, Error, FileChooser
from playwright.sync_api import Page as PlaywrightPage

from agentkv_env.errors import BrowserGone, PageHung, StillLoading, TabClosed
from agentkv_env.loading import NAVIGATION_START_S, POLL_MS, Loading
from agentkv_env.page_script import WORLD, PageScript
from agentkv_env.request_filter import RequestFilter
from agentkv_env.sanitize import clean
from agentkv_env.watchdog import Watchdog

AFTER_FRAME_MS = 20  # after a frame, until the browser has reported what the page requested in it

SETTLE_S = 5.0  # longest wait for a change of the page
LATE_S = 1.5  # longest wait for what an action may still show; searches wait for 0.3 to 1 s
CHOOSER_S = 3.0  # longest wait for a file chooser after a press

_POLICY_WORLD = "agentkv policy"

# Chromium reads the policy when the element enters a head and keeps it after the removal.
# A document that has just begun is empty.
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
  // Prefetches obey no policy, so their rules are removed before Chromium collects them.
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

# Removes, in the page's own world, the APIs whose requests Chromium lets nobody check. The first
# document of a window exists before our scripts run, so the opener's world strips it.
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
      try { if (opened !== this) strip(opened); } catch { /* none, or another origin */ }
      return opened;
    } }.open;
  }
})()"""


class Tab:
    """A Playwright page with our script installed and every request filtered."""

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
        """Title of the page when it was last read."""
        self.expects_popup = False
        """True if the page has requested a window that has not appeared."""
        self.is_popup = False
        """True if a page has requested this tab."""
        self.on_dialog_closed: Callable[[bool, str], None] | None = None
        """Called when a dialog is closed: whether it was accepted, and the text of a prompt."""
        self._filter = request_filter
        self._watchdog = watchdog
        self._timeout_s = timeout_s
        self.holds_mouse = False
        """True if a dialog kept an action from releasing the mouse."""
        self._crashed = False
        self._watched_element: int | None = None  # that the last action was on
        self._awaits_reload = False  # True while an empty document replaces the held one
        page.on("crash", self._on_crash)
        self._loading = Loading(page)
        with self.guard():
            self._cdp: CDPSession = page.context.new_cdp_session(page)
            tree = self._cdp.send("Page.getFrameTree")["frameTree"]
            self._frame: str = tree["frame"]["id"]
            self._loading.follow(self._cdp, self._frame)
            self.script = PageScript(
                self._cdp,
                self._frame,
                allow=request_filter.allow,
                loading=self._loading,
                watchdog=watchdog,
                timeout_s=timeout_s,
                raise_if_gone=self.raise_if_gone,
            )
            self._cdp.on("Page.windowOpen", self._on_window_open)
            self._cdp.on("Page.javascriptDialogClosed", self._on_dialog_closed)
            self._cdp.on("Page.frameNavigated", self._on_navigated)
            self._cdp.on("Fetch.requestPaused", self._on_paused)
            self._cdp.send("Page.enable")
            request_filter.intercept(self._cdp)
            self._run_in_page(self.script.timers)
            if request_filter.policy:
                source = {
                    "source": f"({_APPLY_POLICY})({json.dumps(request_filter.policy)})",
                    "worldName": _POLICY_WORLD,
                }
                self._cdp.send("Page.addScriptToEvaluateOnNewDocument", source)
                self._run_in_page(_REMOVE_APIS)
                self._cdp.send("Page.setPrerenderingAllowed", {"isAllowed": False})
                self._apply_policy(tree)
            self._reload_held(page.url)

    def detach(self) -> None:
        """Detach from the page and leave it open."""
        self.page.remove_listener("crash", self._on_crash)
        self._loading.detach()
        try:
            with self._watchdog.limit(self._timeout_s):
                self._cdp.detach()
        except Error:
            pass  # the page is already gone

    def _on_crash(self, _: PlaywrightPage) -> None:
        self._crashed = True
        if self._watchdog.pid is not None:
            try:
                self.page.close()  # ends a pending call, which would wait forever
            except Error:
                pass

    def _on_window_open(self, _: dict[str, Any]) -> None:
        self.expects_popup = True

    def _on_dialog_closed(self, event: dict[str, Any]) -> None:
        if self.on_dialog_closed is not None:
            self.on_dialog_closed(event["result"], event.get("userInput", ""))

    def _on_paused(self, event: dict[str, Any]) -> None:
        if self._filter.handle_paused(event, self._cdp, page=self.page, main_frame=self._frame):
            self._loading.forget_navigation()
            self._awaits_reload = False

    def _on_navigated(self, event: dict[str, Any]) -> None:
        if not event["frame"].get("parentId"):
            self._awaits_reload = False
            self._reload_held(event["frame"]["url"])

    def _run_in_page(self, source: str) -> None:
        """Run a script in the page's own world, now and at the beginning of every document."""
        self._cdp.send("Page.addScriptToEvaluateOnNewDocument", {"source": source})
        try:
            self._cdp.send("Runtime.evaluate", {"expression": source})
        except Error:
            pass  # the page is loading another document

    def _apply_policy(self, tree: dict[str, Any]) -> None:
        """Apply the filter's policy to the documents that are already loaded."""
        asked = {"frameId": tree["frame"]["id"], "worldName": _POLICY_WORLD}
        try:
            world = int(self._cdp.send("Page.createIsolatedWorld", asked)["executionContextId"])
            self.script.evaluate(f"({_APPLY_POLICY})({json.dumps(self._filter.policy)})", world)
        except Error:
            pass  # the frame is loading another document, or belongs to another process
        for child in tree.get("childFrames", ()):
            self._apply_policy(child)

    def _reload_held(self, url: str) -> None:
        """Load the document that the filter held back, now that this tab sees every hop."""
        if self._filter.take_held(url):
            self._awaits_reload = True
            try:
                self._cdp.send("Page.reload")
            except Error:
                pass  # the window is closed again

    def hear_person(self, on_message: Callable[[dict[str, Any]], None]) -> None:
        """Hear from now on what a person does in this tab, of which nothing was read before.

        Our script reads each event before the page does, and tells it through a function that only
        its own world has.

        Args:
            on_message: called with each message of scripts/person.js.
        """
        tell = f"agentkv{token_hex(8)}"

        def on_called(event: dict[str, Any]) -> None:
            if event["name"] == tell:
                on_message(json.loads(event["payload"]))

        self._cdp.on("Runtime.bindingCalled", on_called)
        self._cdp.send("Runtime.enable")  # without it, no call is reported
        self._cdp.send("Runtime.addBinding", {"name": tell, "executionContextName": WORLD})
        tree = self._cdp.send("Page.getFrameTree")["frameTree"]
        self.script.hear_person(tell, _frames_in(tree))

    @property
    def history(self) -> tuple[int, Sequence[dict[str, Any]]]:
        """The index of the current entry of the history, and all entries as CDP has them."""
        history = self._cdp.send("Page.getNavigationHistory")
        return history["currentIndex"], history["entries"]

    @property
    def has_crashed(self) -> bool:
        """True once the renderer of the page has crashed."""
        return self._crashed

    @property
    def is_leaving(self) -> bool:
        """True if the page is being left for one that has not answered yet."""
        return self._loading.is_leaving

    @property
    def num_unanswered(self) -> int:
        """Number of recent requests for data that the page waits for and we no longer do."""
        return self._loading.num_unanswered

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Limit the time of each browser call in a block, and raise BrowserGone for a dead page.

        Raises:
            PageHung: the page did not answer; a browser of ours is killed then.
            TabClosed: the page closed its window.
            BrowserGone: the page or the browser crashed.
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
        """Raise BrowserGone, PageHung or TabClosed if `error` means that the page is dead."""
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
        # A caller's browser cannot be killed, so check first that the page answers.
        try:
            # In Playwright's own world, because the page may have patched functions of its world.
            root = self.page.locator(":root")
            root.wait_for(state="attached", timeout=self._timeout_s * 1000)
        except Error as error:
            if "Timeout" in error.message:
                raise PageHung(f"the page did not answer for {self._timeout_s:g} s") from error
            raise

    def wait_idle(self, *, first_frame: bool = True) -> None:
        """Wait until the page has reacted to the last action and has finished loading.

        The page gets one frame to react, unless `first_frame` is False. Then its requests are
        awaited. Their results may make the page react again, so it gets another frame after each
        wait, until there is nothing to wait for.
        """
        self._wait_idle(time.monotonic(), first_frame=first_frame)

    def _wait_idle(self, started_at: float, *, first_frame: bool, after_ms: int = 0) -> None:
        while self._awaits_reload and time.monotonic() < started_at + NAVIGATION_START_S:
            self.page.wait_for_timeout(POLL_MS)
        self._awaits_reload = False
        if first_frame:
            self._wait_frame(started_at, after_ms)
        while self._loading.wait(
            started_at, timeout_s=self._timeout_s, on_wait=self._watchdog.restart
        ):
            if time.monotonic() > started_at + self._timeout_s:
                return  # the page reloads itself repeatedly
            self._wait_frame(time.monotonic())

    def _wait_frame(self, asked_at: float, after_ms: int = 0) -> None:
        try:
            self.page.wait_for_timeout(1)  # receive events first: the page may be leaving
            if not self._loading.is_leaving:
                self.script.call("nextFrame", after_ms)
            self.page.wait_for_timeout(AFTER_FRAME_MS)
        except StillLoading:
            pass  # the next reading reports it
        except Error as error:
            self.raise_if_gone(error)
            self._loading.expect_navigation(asked_at)

    def begin_action(
        self, id: int | None = None, *, changes: bool = True, again: bool = False
    ) -> None:
        """Watch from now on what an action, on element `id`, causes; with `again`, go on with it.

        With `changes`, it is an action that scripts answer with a change as a rule.
        """
        self._watched_element = id
        self._call_around("beginAction", changes, again)

    def wait_late(self, limit_s: float = LATE_S) -> bool:
        """Wait for what the last action may still show, as far as known; return whether it waited.

        Timers that the action armed, requests that they make and movements of text count, up to
        `limit_s` seconds; requests then get what `wait_idle` gives them. What was already running
        when the action began does not count. A new document counts while it says that it loads.
        """
        started_at = time.monotonic()
        has_waited = False
        while True:
            left_ms = round(1000 * max(0.0, started_at + limit_s - time.monotonic()))
            due_ms = min(filter(None, self._call_around("due", left_ms)), default=0)
            if not due_ms:
                return has_waited
            has_waited = True
            self._wait_idle(started_at, first_frame=True, after_ms=due_ms)

    def _call_around(self, function: str, *arguments: object) -> list[Any]:
        """Return what a function says in the frames of the last action.

        Frames that are gone are not asked, nor is a page that is being left.
        """
        said = []
        for frame in self.script.frames_around(self._watched_element):
            try:
                if not self._loading.is_leaving:
                    said.append(self.script.call(function, *arguments, frame=frame))
            except StillLoading:
                pass
            except Error as error:
                self.raise_if_gone(error)
        return said

    def wait_settled(self) -> None:
        """Wait for what the action before may still show, or else for a change of the page.

        Lasts until it has come or the page is quiet again, at most `SETTLE_S` seconds.
        """
        limit_s = min(SETTLE_S, self._timeout_s)
        self.begin_action(self._watched_element, again=True)
        if self.wait_late(limit_s):
            return
        try:
            self.script.call("settled", 1000 * limit_s)
        except StillLoading:
            pass
        except Error as error:
            self.raise_if_gone(error)  # else the page was left, which is a change

    def answer_file_chooser(self, press: Callable[[], object], files: Sequence[Path]) -> bool:
        """Give `files` to the file chooser that `press` opens; return whether it opens one."""
        choosers: list[FileChooser] = []

        def keep(chooser: FileChooser) -> None:
            choosers.append(chooser)

        self.page.on("filechooser", keep)
        try:
            press()
            until = time.monotonic() + CHOOSER_S
            while not choosers and time.monotonic() < until:
                self.page.wait_for_timeout(POLL_MS)
            if choosers:
                choosers[0].set_files(list(files))
        finally:
            self.page.remove_listener("filechooser", keep)
        return bool(choosers)

    def end_script(self) -> None:
        """End the script that the page runs now.

        Chromium looks only after some hundred turns of a loop, and only in sessions that were
        attached before the script began, as ours was.
        """
        self._cdp.send("Runtime.terminateExecution")

    @property
    def can_go_back(self) -> bool:
        """True if the history has an earlier page than the initial about:blank."""
        index, entries = self.history
        return bool(index > 0 and entries[index - 1]["url"] != "about:blank")

    def read(self) -> dict[str, Any]:
        """Read the page with our script, and its title."""
        found = self.script.read()
        self.title = clean(found["title"])
        return found

    def read_title(self) -> None:
        """Read only the title; it is unchanged if the page cannot be read."""
        try:
            self.title = clean(self.script.call("title"))
        except StillLoading:
            pass
        except Error as error:
            self.raise_if_gone(error)


def _frames_in(tree: dict[str, Any]) -> list[str]:
    """Return the ids of a frame and of all frames in it."""
    inner = [frame for child in tree.get("childFrames", ()) for frame in _frames_in(child)]
    return [tree["frame"]["id"], *inner]
