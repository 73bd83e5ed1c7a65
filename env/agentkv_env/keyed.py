"""Fields that take keys one by one: the boxes of a code, the segments of a date, sliders."""

import math
import re
from collections.abc import Sequence
from typing import Any

from agentkv_env.errors import ActionFailed
from agentkv_env.held import is_same, to_number
from agentkv_env.place import Place, describe
from agentkv_env.sanitize import quote
from agentkv_env.tab import Tab

MAX_PRESSES = 600
"""Key presses of one movement of a slider, at some 3 ms each, ..."""
MAX_BATCH = 100
"""... and between two looks at it."""
SLOW_FRAMES = 5
"""Frames that a slider has to react to a press."""
MANY_STEPS = 20
"""Steps of a slider that are worth a try of the keys for larger ones."""
MAX_PARTS = 12
"""Parts of a field that an error names."""
MAX_BACKSPACES = 6
"""Key presses that empty a segment; a year has four digits."""
MAX_SHOWN = 80
"""Characters of a text that an error quotes."""

_SEPARATORS = re.compile(r"[\s\-/.]+")


# ---- boxes


def rooms(tab: Tab, id: int) -> list[int]:
    """Return how many characters the box `id` and those after it in its row take."""
    state = tab.script.ask_on(id, "sequence", False)
    return [part["room"] for part in state["parts"]] if state else []


def share(tab: Tab, id: int, text: str) -> list[str] | None:
    """Return what each box of a row gets of a code, or None if element `id` begins no such row.

    Boxes of one character may get a code that is shorter than the row. Others must be filled.
    """
    capacities, code = rooms(tab, id), _SEPARATORS.sub("", text)
    if len(capacities) < 2 or not code:
        return None
    total = sum(capacities)
    if not (len(code) <= total if total == len(capacities) else len(code) == total):
        return None
    pieces = []
    for room in capacities:
        pieces.append(code[:room])
        code = code[room:]
    return [piece for piece in pieces if piece]


def type_into_boxes(
    tab: Tab, id: int, pieces: Sequence[str], place: Place, *, secret: str = ""
) -> str:
    """Type a piece into each box of a row, and return a notice, empty for none.

    `secret` is what a reader sees of a code that is secret: it is inserted by our script, because a
    key press goes to whatever document has the focus.

    Raises:
        ActionFailed: the boxes do not hold the pieces afterwards.
    """
    for number, piece in enumerate(pieces):
        if secret:
            tab.script.ask_on(id, "insertSecretPart", number, piece, secret)
        else:
            tab.script.ask_on(id, "enterPart", number)
            tab.page.keyboard.type(piece)
    return check_boxes(tab, id, pieces, place, True, secret=secret)


def check_boxes(
    tab: Tab, id: int, pieces: Sequence[str], place: Place, reacts: bool, *, secret: str = ""
) -> str:
    """Return a notice if the boxes hold `pieces` in another form; empty if they hold them unchanged
    or are gone. With `reacts`, the page gets a frame first.

    Raises:
        ActionFailed: they hold something else.
    """
    state = tab.script.ask_on(id, "sequence", reacts)
    if state is None:
        return ""  # a page often goes on by itself after the last character
    held = [part["text"] for part in state["parts"]][: len(pieces)]
    if "".join(held).casefold() == "".join(pieces).casefold():
        return ""
    if secret or place["type"] == "password":
        shown = "something else"
    else:
        shown = " ".join(map(_shown, held)) if any(held) else "nothing"
    raise ActionFailed(
        f"{describe(place, id)} and the boxes after it hold {shown} now: the page has refused the "
        "code, or takes no such characters; if it may be typed again, type it into the first box"
    )


# ---- segments


def type_into_segments(tab: Tab, id: int, text: str, place: Place) -> list[str]:
    """Type into one segment of a date or time, or into several; return what each was to hold.

    Raises:
        ActionFailed: there are fewer segments, a number is outside of one, or they do not hold the
            text afterwards.
    """
    state = tab.script.ask_on(id, "sequence", False)
    parts: list[dict[str, Any]] = state["parts"] if state else []
    if not text.strip():
        _clear_segment(tab, id, place)
        return []
    words = re.findall(r"[^\W_]+", text) if len(parts) > 1 else [text.strip()]
    _require_fitting(parts, words, id, place)
    for number, word in enumerate(words):
        tab.script.ask_on(id, "enterPart", number)
        tab.page.keyboard.type(word)
    if (missing := _missing(tab, id, words)) is None:
        return words
    number, part = missing
    # Once more, after a clearing; a segment may also know only the keys that raise and lower it.
    tab.script.ask_on(id, "enterPart", number)
    for _ in words[number]:
        tab.page.keyboard.press("Backspace")
    tab.page.keyboard.type(words[number])
    missing = _missing(tab, id, words)
    if missing is not None and number == 0 and len(words) == 1 and part["now"] is not None:
        if (wanted := to_number(words[0])) is not None:
            _approach(tab, id, wanted, part, ("ArrowUp", "ArrowDown"))
            missing = _missing(tab, id, words)
    _require_held(missing, parts, words, place, id)
    return words


def check_segments(tab: Tab, id: int, words: Sequence[str], place: Place, reacts: bool) -> str:
    """Check that segments still hold what was typed into them; return no notice. With `reacts`, the
    page gets a frame first.

    Raises:
        ActionFailed: the page has changed them since.
    """
    state = tab.script.ask_on(id, "sequence", False)
    parts: list[dict[str, Any]] = state["parts"] if state else []
    _require_held(_missing(tab, id, words, reacts), parts, words, place, id)
    return ""


def _require_held(
    missing: tuple[int, dict[str, Any]] | None,
    parts: Sequence[dict[str, Any]],
    words: Sequence[str],
    place: Place,
    id: int,
) -> None:
    if missing is not None:
        number, part = missing
        raise ActionFailed(
            f"the segment {quote(part['name'])} of {describe(place, id)} shows {_shown_in(part)} "
            f"now instead of {quote(words[number])}; {_allowed(parts)}"
        )


def _clear_segment(tab: Tab, id: int, place: Place) -> None:
    state: dict[str, Any] | None = {}
    for _ in range(MAX_BACKSPACES):
        tab.page.keyboard.press("Backspace")
        state = tab.script.ask_on(id, "slider", True)
        if state is None or state["now"] is None:
            return
    raise ActionFailed(
        f"{describe(place, id)} shows {_shown_in(state or {})} now; type another value"
    )


def _require_fitting(
    parts: Sequence[dict[str, Any]], words: Sequence[str], id: int, place: Place
) -> None:
    if not words or len(words) > max(1, len(parts)):
        raise ActionFailed(
            f"{describe(place, id)} and the segments after it are {max(1, len(parts))}, and the "
            f"text has {len(words)} parts; {_allowed(parts)}"
        )
    for word, part in zip(words, parts, strict=False):
        number = to_number(word)
        if number is not None and _is_outside(number, part):
            raise ActionFailed(
                f"the segment {quote(part['name'])} of {describe(place, id)} does not take "
                f"{quote(word)}; {_allowed(parts)}"
            )


def _allowed(parts: Sequence[dict[str, Any]]) -> str:
    """Say what segments there are, and what they take."""
    said = []
    for part in parts[:MAX_PARTS]:
        name = quote(part["name"][:60]) + ("" if part["id"] is None else f" [{part['id']}]")
        has_range = part["least"] is not None and part["most"] is not None
        said.append(name + (f" from {part['least']:g} to {part['most']:g}" if has_range else ""))
    return f"type each segment by itself, or all in this order with spaces: {', '.join(said)}"


def _missing(
    tab: Tab, id: int, words: Sequence[str], reacts: bool = True
) -> tuple[int, dict[str, Any]] | None:
    """Return number and state of the first segment that does not hold its word, or None."""
    state = tab.script.ask_on(id, "sequence", reacts)
    for number, (word, part) in enumerate(
        zip(words, state["parts"] if state else [], strict=False)
    ):
        if not _holds(part, word):
            return number, part
    return None


def _holds(part: dict[str, Any], word: str) -> bool:
    shown = (part["shown"], part["text"])
    if (number := to_number(word)) is not None:
        return number == (to_number(part["shown"]) if part["now"] is None else part["now"])
    # `p` is enough for PM, and `Mar` for March; without a number, `mm` may stand for an empty one
    starts = any(each.casefold().startswith(word.casefold()) for each in shown)
    return any(is_same(word.casefold(), each.casefold()) for each in shown) or (
        starts and part["now"] is not None
    )


# ---- sliders


def move_slider(tab: Tab, id: int, text: str, place: Place) -> str:
    """Move a slider to the number in `text` by keys, and return a notice.

    Raises:
        ActionFailed: `text` is no number or outside of the range, or the slider does not go there.
    """
    state, wanted = tab.script.ask_on(id, "slider", False), to_number(text)
    if state is None or state["now"] is None:
        raise ActionFailed(f"{describe(place, id)} tells no value; drag [{id}] to a point")
    if wanted is None or _is_outside(wanted, state):
        raise refused_value(text, state, place, id)
    tab.script.call_on(id, "focus", False)
    for keys in (("ArrowRight", "ArrowLeft"), ("ArrowUp", "ArrowDown")):
        begin = state["now"]
        state = _approach(tab, id, wanted, state, keys)
        if state is None or _is_at(state, wanted):
            return ""
        if state["now"] != begin:
            break
    raise ActionFailed(
        f"{describe(place, id)} shows {_shown_in(state)} now and does not go to {wanted:g} by "
        f"keys; it takes a number{_range(state)}; type a nearer one, or drag [{id}]"
    )


def check_slider(tab: Tab, id: int, text: str, place: Place, reacts: bool) -> str:
    """Check that a slider still shows the number that it was moved to; return no notice. With
    `reacts`, the page gets a frame first.

    Raises:
        ActionFailed: the page has moved it since.
    """
    state, wanted = tab.script.ask_on(id, "slider", reacts), to_number(text)
    if state is None or wanted is None or _is_at(state, wanted):
        return ""
    raise ActionFailed(
        f"{describe(place, id)} shows {_shown_in(state)} now: the page has moved it back from "
        f"{wanted:g}; it takes a number{_range(state)}"
    )


def refused_value(text: str, state: dict[str, Any], place: Place, id: int) -> ActionFailed:
    """Return the error of a slider that does not take a text."""
    return ActionFailed(
        f"{describe(place, id)} does not take {_shown(text)}; it takes a number{_range(state)}, "
        f"and shows {_shown_in(state)} now"
    )


def _is_outside(wanted: float, part: dict[str, Any]) -> bool:
    least, most = part["least"], part["most"]
    return (least is not None and wanted < least) or (most is not None and wanted > most)


def _is_at(state: dict[str, Any], wanted: float) -> bool:
    now = state["now"]
    return now is not None and bool(abs(now - wanted) <= 1e-9 * max(1.0, abs(wanted)))


def _range(state: dict[str, Any]) -> str:
    if state.get("least") is None or state.get("most") is None:
        return ""
    steps = f" in steps of {state['step']:g}" if state["step"] else ""
    return f" from {state['least']:g} to {state['most']:g}{steps}"


def _approach(
    tab: Tab, id: int, wanted: float, state: dict[str, Any], fine: tuple[str, str]
) -> dict[str, Any] | None:
    """Press the keys that raise and lower a value until it is the wanted one, or the nearest to it.

    Nothing tells how far a press goes, so that is measured. Returns the last state, or None if the
    element has gone.
    """
    coarse = ("PageUp", "PageDown")
    size = {fine: 0.0, coarse: 0.0}  # of a step; 0 until it is known
    is_reversed = False
    left = MAX_PRESSES
    while not _is_at(state, wanted) and left > 0:
        distance = wanted - state["now"]
        is_far = bool(size[fine]) and abs(distance) > MANY_STEPS * size[fine]
        pair = coarse if is_far and size[coarse] <= abs(distance) else fine
        count = max(1, int(abs(distance) / size[pair])) if size[pair] else 1
        count = min(count, left, MAX_BATCH)
        for _ in range(count):
            tab.page.keyboard.press(pair[(distance < 0) is not is_reversed])
        left -= count
        found = _reaction(tab, id, state)
        if found is None or found["now"] is None:
            return found
        moved, state = found["now"] - state["now"], found
        size[pair] = abs(moved) / count
        if pair is coarse:
            if moved * distance <= 0:
                size[coarse] = math.inf  # these keys are of no use here
        elif not moved:
            return state
        elif moved * distance < 0:
            if is_reversed:
                return state
            is_reversed = True
        elif count == 1 and (wanted - state["now"]) * distance < 0:  # it went past
            if abs(wanted - state["now"]) > abs(distance):
                tab.page.keyboard.press(pair[(distance > 0) is not is_reversed])
                return _reaction(tab, id, state)
            return state
    return state


def _reaction(tab: Tab, id: int, state: dict[str, Any]) -> dict[str, Any] | None:
    """Return the state of a slider once a press has changed it, or after `SLOW_FRAMES`."""
    found: dict[str, Any] | None = None
    for _ in range(SLOW_FRAMES):
        found = tab.script.ask_on(id, "slider", True)
        if found is None or found["now"] != state["now"]:
            break
    return found


def _shown(text: str) -> str:
    return quote(text[:MAX_SHOWN]) if text.strip() else "nothing"


def _shown_in(part: dict[str, Any]) -> str:
    return _shown(part.get("text") or part.get("shown") or "")
