"""Our script in the frames of one page, in an isolated world of each frame."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from playwright.sync_api import CDPSession, Error, TimeoutError

from agentkv_env.errors import ActionFailed, PageHung, StillLoading
from agentkv_env.hosts import AllowList
from agentkv_env.loading import Loading
from agentkv_env.watchdog import Watchdog

WORLD = "agentkv"
MAX_DEPTH = 5  # nested frames of other origins
READING_S = 4.0  # time limit of reading a page; the rest of the page is left out
LEAVING_S = 1.0  # a page that is being left must answer within this time

MIN_REST = 8  # pixels; what is hidden of a frame that scrolls less is padding
SUMMED = ("covered", "busy", "moving")
"""Numbers of a walk to which frames of other origins add theirs; see walk.js."""
NUM_HEARD = 2  # looks at a document that ask for listeners; scripts may add some after the first

# Returns the number of the document's elements and the indices of those that listen to presses.
# Only the page's own world knows its listeners, and the page may have replaced every function
# there, the console's too: V8 keeps a global of that name. So the answer is a short string. Its
# indices may be false, but a page can forge no more than with listeners of its own.
_HEARD = """(() => {
  const all = Document.prototype.querySelectorAll.call(document, "*");
  let heard = "";
  for (let index = 0; index < all.length && index < 5000; index++) {
    const on = getEventListeners(all[index]);
    if (on.click || on.mousedown || on.mouseup || on.pointerdown || on.pointerup || on.dblclick) {
      heard += index + ",";
    }
  }
  return (+all.length) + ":" + heard;
})()"""
HEARING_MS = 500
"""Time limit of that question."""
MAX_HEARD = 50_000
"""Maximum number of characters of its answer; an honest one is shorter."""

SCRIPTS = ("dom", "geometry", "semantics", "images", "layers", "walk", "actions")
"""Files of the folder scripts/, joined in this order into one scope."""


class PageScript:
    """Calls the functions of our script in the frames of one page.

    An element of a frame of another origin lives in that frame's world; `call_on` finds it by id.
    """

    def __init__(
        self,
        cdp: CDPSession,
        main_frame: str,
        *,
        allow: AllowList,
        loading: Loading,
        watchdog: Watchdog,
        timeout_s: float,
        raise_if_gone: Callable[[Error], None],
    ) -> None:
        """`raise_if_gone` raises BrowserGone if an error means that the page is dead."""
        self._cdp = cdp
        self._main_frame = main_frame
        self._allow = allow
        self._loading = loading
        self._watchdog = watchdog
        self._timeout_s = timeout_s
        self._raise_if_gone = raise_if_gone
        self._worlds: dict[str, int] = {}  # frame -> execution context
        self._foreign_elements: dict[int, tuple[str, float, float]] = {}  # id -> frame and offset
        self._document = ""  # token of the document that was read last
        self._next_id = 1
        self._heard = ("", 0)  # document and number of its elements when last asked for listeners
        self._num_heard = 0  # times that this document was asked
        self._read_until = 0.0
        self._in_frames = dict.fromkeys(SUMMED, 0)  # what frames of other origins add
        self._is_partial = False  # True if the current reading left out a part of the page

    def call(self, function: str, *arguments: object, frame: str | None = None) -> Any:
        """Return the value of a function of our script in `frame` (None: the main frame).

        Raises:
            StillLoading: the page is being left for one that has not answered yet.
            Error: the document was replaced during the call, or the function threw.
        """
        frame = frame or self._main_frame
        listed = ", ".join(map(json.dumps, arguments))
        expression = f"agentkv.{function}({listed})"
        world = self._worlds.get(frame)
        if world is not None:
            try:
                return self.evaluate(expression, world).get("value")
            except Error as error:
                if "context" not in error.message and "navigated" not in error.message:
                    raise
        # The frame is new or shows a new document.
        params = {"frameId": frame, "worldName": WORLD}
        world = int(self._send("Page.createIsolatedWorld", params)["executionContextId"])
        self._worlds[frame] = world
        return self.evaluate(f"{_source()}\n{expression}", world).get("value")

    def call_on(self, id: int, function: str, *arguments: object) -> Any:
        """Return the value of a function of our script that takes the element `id`.

        Raises:
            ActionFailed: the page has no element with this id.
        """
        frame, x, y = self._foreign_elements.get(id, (self._main_frame, 0.0, 0.0))
        answer = self.call(function, id, *arguments, frame=frame)
        if isinstance(answer, dict):
            if answer.get("error") == "gone":
                raise ActionFailed(f"there is no element [{id}] on this page")
            if "x" in answer:
                answer["x"] += x
                answer["y"] += y
        return answer

    def set_files(self, id: int, files: Sequence[Path]) -> None:
        """Give `files` of this machine to the file field `id`.

        Raises:
            ActionFailed: the page has no element with this id.
        """
        frame = self._foreign_elements.get(id, (self._main_frame, 0.0, 0.0))[0]
        handle = self.evaluate(f"agentkv.element({id})", self._worlds[frame], by_value=False)
        if "objectId" not in handle:
            raise ActionFailed(f"there is no element [{id}] on this page")
        params = {"files": list(map(str, files)), "objectId": handle["objectId"]}
        self._send("DOM.setFileInputFiles", params)

    def take_numbers(self, count: int) -> int:
        """Return the first of `count` numbers that no element of this document gets."""
        first = self._next_id
        self._next_id += count
        return first

    def read(self) -> dict[str, Any]:
        """Walk the page; the nodes of a frame of another origin take the frame's place."""
        self._read_until = time.monotonic() + READING_S
        self._is_partial = False
        self._in_frames = dict.fromkeys(SUMMED, 0)
        found = self._walk(self._main_frame, self._document, {"x": 0, "y": 0}, None)
        is_new = found["token"] != self._document
        # A page that took all the time would have none left for a second walk.
        has_time = not found["part"]
        if has_time and self._must_listen(found, is_new=is_new) and self._hear(is_new=is_new):
            self._read_until = time.monotonic() + READING_S
            found = self._walk(self._main_frame, self._document, {"x": 0, "y": 0}, None)
        if is_new:
            self._document = found["token"]
            self._foreign_elements = {}
        found["nodes"] = list(self._splice_frames(found["nodes"], self._main_frame, MAX_DEPTH))
        found["part"] = self._is_partial
        for key in SUMMED:
            found[key] += self._in_frames[key]
        return found

    def evaluate(self, expression: str, world: int, *, by_value: bool = True) -> dict[str, Any]:
        """Evaluate `expression` in an execution context and return CDP's remote object.

        Raises:
            StillLoading: the page is being left for one that has not answered yet.
            Error: the context no longer exists, or the expression threw.
        """
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
        # While a page is being left, Chromium usually delays answers until the next page answers,
        # but not always, so the request is made nevertheless.
        is_leaving = self._loading.is_leaving
        limit_s = min(LEAVING_S, self._timeout_s) if is_leaving else 1.8 * self._timeout_s
        try:
            answer: dict[str, Any] = self._cdp.send(method, params, timeout=limit_s * 1000)
        except TimeoutError as error:
            if self._loading.is_leaving:
                raise StillLoading("the page is still loading") from error
            self._watchdog.kill()
            raise PageHung(f"the page did not answer for {limit_s:g} s") from error
        self._watchdog.restart()
        return answer

    def _must_listen(self, found: dict[str, Any], *, is_new: bool) -> bool:
        """Return whether elements of the page may listen to presses that did not when last asked.

        Asking takes a quarter of the time of a look, so a page with scripts is asked in its first
        `NUM_HEARD` looks and whenever its number of elements has changed.
        """
        heard = (found["token"], found["size"])
        if is_new:
            self._num_heard = 0
        if not found["scripted"] or (heard == self._heard and self._num_heard >= NUM_HEARD):
            return False
        self._heard = heard
        self._num_heard += 1
        return True

    def _hear(self, *, is_new: bool) -> bool:
        """Tell our script which elements listen to presses; return whether that was news.

        The elements of a new document then lose their ids, so that the next walk counts from 1.
        """
        asked = {
            "expression": _HEARD,
            "includeCommandLineAPI": True,
            "returnByValue": True,
            "timeout": HEARING_MS,
        }
        try:
            heard = self._send("Runtime.evaluate", asked)["result"].get("value")
            if not isinstance(heard, str) or len(heard) > MAX_HEARD:
                return False  # the page replaced a function
            return bool(self.call("hear", heard, is_new))
        except Error as error:
            self._raise_if_gone(error)
            return False  # the document was replaced

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
                    self._raise_if_gone(error)  # else the frame is loading; a later reading has it

    def _walk_foreign_frame(
        self, node: dict[str, Any], parent: str, depth: int
    ) -> Iterator[dict[str, Any]]:
        expression = f"agentkv.frame({node['f']})"
        handle = self.evaluate(expression, self._worlds[parent], by_value=False)
        described = self._send("DOM.describeNode", {"objectId": handle["objectId"]})
        frame = described["node"].get("frameId")
        if frame is None:
            return  # the page has removed the frame since the walk
        x, y, _, _ = node["b"]
        view = dict(zip(("x", "y", "width", "height"), node["c"], strict=True))
        found = self._walk(frame, None, {"x": x, "y": y}, view)
        if self._allow.refused.match(found["url"]):
            return
        for key in SUMMED:
            self._in_frames[key] += found[key]
        if states := [f"more {side}" for side in ("above", "below") if found[side] > MIN_REST]:
            box = [round(number) for number in node["b"]]
            area = {"k": "element", "r": "area", "n": node["n"], "b": box, "i": node["i"]}
            yield {**area, "s": states, "u": ["area"], "frame": parent}
        for inner in found["nodes"]:
            if "i" in inner:
                self._foreign_elements[inner["i"]] = (frame, x, y)
        yield from self._splice_frames(found["nodes"], frame, depth - 1)


@cache
def _source() -> str:
    folder = resources.files("agentkv_env").joinpath("scripts")
    parts = [folder.joinpath(f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS]
    # If the script runs twice in one world, the second run must keep the ids of the first.
    return "\n".join(['(() => {\n"use strict";\nif (globalThis.agentkv) return;', *parts, "})();"])
