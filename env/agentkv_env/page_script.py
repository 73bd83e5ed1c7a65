"""Our script in the frames of one page, in an isolated world of each frame."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from secrets import token_hex
from typing import Any

from playwright.sync_api import CDPSession, Error, TimeoutError

from agentkv_env.errors import ActionFailed, PageHung, StillLoading
from agentkv_env.hosts import AllowList
from agentkv_env.loading import Loading
from agentkv_env.watchdog import Watchdog

WORLD = "agentkv"
MAX_DEPTH = 5  # nested frames of other origins, and closed shadow roots in others
MAX_ROOTS = 60  # closed shadow roots that one reading opens
READING_S = 4.0  # time limit of reading a page; the rest of the page is left out
LEAVING_S = 1.0  # a page that is being left must answer within this time

# Tells of each element of a list whether it has a shadow root, and of which mode.
_NODES = {
    "serialization": "deep",
    "maxDepth": 1,
    "additionalParameters": {"maxNodeDepth": 0, "includeShadowTree": "all"},
}

MIN_REST = 8  # pixels; what is hidden of a frame that scrolls less is padding
SUMMED = ("covered", "busy", "moving", "mayChange")
"""Numbers of a walk to which frames of other origins add theirs, as they do to `unsent`; see
walk.js."""
NUM_HEARD = 2  # looks at a document that ask for listeners; scripts may add some after the first

# Returns the number of the document's elements and the indices of those that listen to presses, and
# of those that listen to the mouse coming, which React keeps in properties of elements. Only the
# page's own world knows its listeners, and the page may have replaced every function there, the
# console's too: V8 keeps a global of that name. So the answer is a short string. Its indices may be
# false, but a page can forge no more than with listeners of its own.
_HEARD = """(() => {
  const all = Document.prototype.querySelectorAll.call(document, "*");
  let heard = "", hovered = "";
  for (let index = 0; index < all.length && index < 5000; index++) {
    const el = all[index], on = getEventListeners(el);
    if (on.click || on.mousedown || on.mouseup || on.pointerdown || on.pointerup || on.dblclick) {
      heard += index + ",";
    }
    const key = Object.keys(el).find((key) => key.startsWith("__reactProps$"));
    const props = key ? el[key] : {};
    if (on.mouseenter || on.mouseover || on.pointerenter || on.pointerover || props.onMouseEnter ||
        props.onMouseOver || props.onPointerEnter) hovered += index + ",";
  }
  return (+all.length) + ":" + heard + ":" + hovered;
})()"""
HEARING_MS = 500
"""Time limit of that question."""
MAX_HEARD = 60_000
"""Maximum number of characters of its answer; an honest one is shorter."""

MAX_SHEET = 2_000_000
"""Maximum number of characters of a style sheet of another origin."""

SCRIPTS = (
    *("dom", "shadows", "geometry", "frames", "generated", "semantics", "options", "gauges"),
    *("images", "layers", "late", "hover", "rows", "walk", "validation", "fields", "actions"),
)
"""Files of the folder scripts/, joined in this order into one scope."""


_WHOLE = {"x": 0, "y": 0, "m": None}  # the place of the page itself; see scripts/frames.js


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a frame of another origin is."""

    parent: str
    """The frame whose document has it ..."""
    element: int
    """... as this element."""
    at: dict[str, Any]
    """The place of its document in the viewport when it was last read; see scripts/frames.js."""


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
        self._channel = token_hex(8)  # name of events that the page does not know
        self._worlds: dict[str, int] = {}  # frame -> execution context
        self._foreign_elements: dict[int, str] = {}  # id -> frame of another origin
        self._foreign_frames: dict[str, _Place] = {}
        self._document = ""  # token of the document that was read last
        self._next_id = 1
        self._heard = ("", 0)  # document and number of its elements when last asked for listeners
        self._num_heard = 0  # times that this document was asked
        self._read_until = 0.0
        self._roots_left = MAX_ROOTS
        self._in_frames = dict.fromkeys(SUMMED, 0)  # what frames of other origins add
        self._unsent: list[dict[str, Any]] = []  # fields of all frames that kept a form unsent
        self._is_partial = False  # True if the current reading left out a part of the page
        self._tell = ""  # name of the function with which our script tells of a person's events
        self._shown_in: dict[int, list[dict[str, Any]]] = {}  # frame element -> nodes read last

    def hear_person(self, tell: str, frames: Sequence[str]) -> None:
        """Let our script tell what a person does, in all frames and documents from now on.

        Nothing of the page was read before.

        Args:
            tell: name of the function that the browser opens to our world.
            frames: the frames that the page has.
        """
        assert not self._worlds, "our script runs already"
        self._tell = tell
        source = {"source": self._source, "worldName": WORLD}
        self._send("Page.addScriptToEvaluateOnNewDocument", source)
        for frame in frames:
            try:
                self.call("title", frame=frame)
            except Error as error:
                self._raise_if_gone(error)  # else it loads a document, where our script runs

    @property
    def _source(self) -> str:
        return _source(self._channel, self._tell)

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
        try:
            value = self.evaluate(f"{self._source}\n{expression}", world).get("value")
        except Error:
            self._worlds[frame] = world  # the function threw, but our script is there
            raise
        self._worlds[frame] = world  # not if a dialog of the page ended the call
        return value

    @property
    def timers(self) -> str:
        """Source of the script that tells ours about timers, for the page's own world."""
        return f'{_file("timers")}("{self._channel}")'

    def frames_around(self, id: int | None) -> tuple[str, ...]:
        """Return the main frame, and that of element `id` if it is of another origin."""
        return tuple(dict.fromkeys((self._main_frame, self._frame_of(id))))

    def _frame_of(self, id: int | None) -> str:
        return self._foreign_elements.get(id or 0, self._main_frame)

    def call_on(self, id: int, function: str, *arguments: object) -> Any:
        """Return the value of a function of our script that takes the element `id`.

        Raises:
            ActionFailed: the page has no element with this id.
        """
        frame = self._frame_of(id)
        answer = self.call(function, id, *arguments, frame=frame)
        if isinstance(answer, dict) and answer.get("error") == "gone":
            raise ActionFailed(f"there is no element [{id}] on this page")
        return answer

    def locate(self, id: int, at: dict[str, Any] | None, *, under: bool) -> dict[str, Any]:
        """Return the point to press for the element `id`, in pixels of the viewport; see `locate`
        in actions.js.

        Frames of other origins around the element are scrolled into view as well.

        Raises:
            ActionFailed: the page has no element with this id.
        """
        frame = self._frame_of(id)
        around = self._foreign_frames.get(frame)
        found: dict[str, Any] = self.call_on(
            id, "locate", at, under, around.at if around else _WHOLE
        )
        while around and "error" not in found:
            point = (found["x"], found["y"])
            outer = self.call("through", around.element, point, frame=around.parent)
            if "error" in outer:
                raise ActionFailed(f"there is no element [{id}] on this page")
            found["x"], found["y"] = outer["x"], outer["y"]
            found["bent"] |= outer["bent"]
            found["covered"] = found["covered"] or ("" if under else outer["covered"])
            around = self._foreign_frames.get(around.parent)
        return found

    def ask_on(self, id: int, function: str, *arguments: object) -> Any:
        """Return what `call_on` does, or None if the page has left or removed the element."""
        try:
            answer = self.call_on(id, function, *arguments)
        except StillLoading:
            return None
        except Error as error:
            self._raise_if_gone(error)
            return None  # the document was replaced
        return None if isinstance(answer, dict) and answer.get("left") else answer

    def set_files(self, id: int, files: Sequence[Path]) -> None:
        """Give `files` of this machine to the file field `id`.

        Raises:
            ActionFailed: the page has no element with this id.
        """
        frame = self._frame_of(id)
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
        self._roots_left = MAX_ROOTS
        self._unsent = []
        found = self._walk(self._main_frame, self._document, _WHOLE, None)
        is_new = found["token"] != self._document
        # A page that took all the time would have none left for a second walk.
        if not found["part"]:
            is_news = self._read_sheets(found["sheets"])
            if self._must_listen(found, is_new=is_new):
                is_news |= self._hear(is_new=is_new)
            is_news |= self._open_roots(self._main_frame, found, is_new=is_new)
            if is_news:
                self._read_until = time.monotonic() + READING_S
                found = self._walk_inner(
                    self._main_frame, self._document, _WHOLE, None, is_new=is_new
                )
        if is_new:
            self._document = found["token"]
            self._foreign_elements = {}
            self._foreign_frames = {}
            self._shown_in = {}
        found["nodes"] = list(self._splice_frames(found["nodes"], self._main_frame, MAX_DEPTH))
        found["part"] = self._is_partial
        for key in SUMMED:
            found[key] += self._in_frames[key]
        found["unsent"] = self._unsent
        if self._tell:
            self.call("countFrom", self._next_id)
        return found

    def read_before(self, reading: str, next_id: int) -> dict[str, Any]:
        """Return the page as our script read it before an event of a person, as `read` does.

        The nodes of frames of other origins are those that were read last.

        Args:
            reading: the walk of the main frame.
            next_id: the first number that was free then.
        """
        found: dict[str, Any] = json.loads(reading)
        if found["token"] == self._document:
            self._next_id = max(self._next_id, next_id)
        nodes: list[dict[str, Any]] = []
        for node in found["nodes"]:
            if node["k"] == "frame":
                nodes += self._shown_in.get(node["i"], ())
            else:
                nodes.append({**node, "frame": self._main_frame})
        return {**found, "nodes": nodes}

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

    def _read_sheets(self, addresses: list[str]) -> bool:
        """Give our script style sheets that only the browser may read; return whether any is."""
        for address in addresses:
            asked = {"frameId": self._main_frame, "url": address}
            try:
                sheet = self._send("Page.getResourceContent", asked)
                text = "" if sheet["base64Encoded"] else sheet["content"]
            except Error as error:
                self._raise_if_gone(error)
                text = ""  # it is gone from the browser's memory
            self.call("readSheet", address, text if len(text) <= MAX_SHEET else "")
        return bool(addresses)

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

    def _open_roots(self, frame: str, found: dict[str, Any], *, is_new: bool) -> bool:
        """Hand our script the closed shadow roots that it suspects; return whether there are any.

        The elements of a new document then lose their ids, so that the next walk counts from 1.
        """
        if not found["hosts"] or not self._roots_left:
            return False
        world = self._worlds[frame]
        asked = {
            "expression": "agentkv.hosts()",
            "contextId": world,
            "serializationOptions": _NODES,
        }
        try:
            told = self._send("Runtime.evaluate", asked)["result"]["deepSerializedValue"]["value"]
            roots = [node["value"].get("shadowRoot") for node in told]
            closed = [root["value"] for root in roots if root and root["value"]["mode"] == "closed"]
            self._is_partial |= len(closed) >= self._roots_left  # there may be more
            closed = closed[: self._roots_left]
            self._roots_left -= len(closed)
            for root in closed:
                node = {"backendNodeId": root["backendNodeId"], "executionContextId": world}
                handle = self._send("DOM.resolveNode", node)["object"]["objectId"]
                adopted = {
                    "objectId": handle,
                    "functionDeclaration": "function (anew) { agentkv.adopt(this, anew) }",
                    "arguments": [{"value": is_new}],
                }
                self._send("Runtime.callFunctionOn", adopted)
        except Error as error:
            self._raise_if_gone(error)
            return False  # the document was replaced
        return bool(closed)

    def _walk_inner(self, *arguments: Any, is_new: bool) -> dict[str, Any]:
        """Walk, and again as long as there are closed shadow roots in those that were opened."""
        for _ in range(MAX_DEPTH):
            found = self._walk(*arguments)
            if found["part"] or not self._open_roots(arguments[0], found, is_new=is_new):
                break
        return found

    def _walk(
        self, frame: str, document: str | None, at: dict[str, Any], view: dict[str, float] | None
    ) -> dict[str, Any]:
        left_ms = max(1, round(1000 * (self._read_until - time.monotonic())))
        found: dict[str, Any] = json.loads(
            self.call("walk", self._next_id, document, at, view, left_ms, frame=frame)
        )
        self._next_id = found["nextId"]
        self._is_partial |= found["part"]
        self._unsent += found["unsent"]
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
                    inner = list(self._walk_foreign_frame(node, frame, depth))
                except Error as error:
                    self._raise_if_gone(error)  # else the frame is loading; a later reading has it
                    continue
                self._shown_in[node["i"]] = inner
                yield from inner

    def _walk_foreign_frame(
        self, node: dict[str, Any], parent: str, depth: int
    ) -> Iterator[dict[str, Any]]:
        expression = f"agentkv.frame({node['f']})"
        handle = self.evaluate(expression, self._worlds[parent], by_value=False)
        described = self._send("DOM.describeNode", {"objectId": handle["objectId"]})
        frame = described["node"].get("frameId")
        if frame is None:
            return  # the page has removed the frame since the walk
        view = dict(zip(("x", "y", "width", "height"), node["c"], strict=True))
        found = self._walk(frame, None, node["at"], view)
        if not found["part"] and self._open_roots(frame, found, is_new=False):
            found = self._walk_inner(frame, None, node["at"], view, is_new=False)
        if self._allow.refused.match(found["url"]):
            return
        for key in SUMMED:
            self._in_frames[key] += found[key]
        if states := [f"more {side}" for side in ("above", "below") if found[side] > MIN_REST]:
            box = [round(number) for number in node["b"]]
            area = {"k": "element", "r": "area", "n": node["n"], "b": box, "i": node["i"]}
            yield {**area, "s": states, "u": ["area"], "frame": parent}
        self._foreign_frames[frame] = _Place(parent, node["i"], node["at"])
        for inner in found["nodes"]:
            if "i" in inner:
                self._foreign_elements[inner["i"]] = frame
        yield from self._splice_frames(found["nodes"], frame, depth - 1)


@cache
def _file(name: str) -> str:
    file = resources.files("agentkv_env").joinpath("scripts", f"{name}.js")
    return file.read_text(encoding="utf-8").rstrip()


def _source(channel: str, tell: str) -> str:
    # If the script runs twice in one world, the second run must keep the ids of the first.
    head = (
        f'(() => {{\n"use strict";\nif (globalThis.agentkv) return;\nconst CHANNEL = "{channel}"'
        f', TELL = "{tell}";'
    )
    scripts = (*SCRIPTS, *(("person",) if tell else ()))
    return "\n".join([head, *map(_file, scripts), "})();"])
