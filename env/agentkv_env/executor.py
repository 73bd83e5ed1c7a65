"""Execute actions on the page of one tab, with real mouse and keyboard events."""

from typing import Any

from playwright.sync_api import Error

from agentkv_env.actions import Action
from agentkv_env.errors import ActionFailed
from agentkv_env.keys import normalize
from agentkv_env.sanitize import quote
from agentkv_env.tab import Tab

# Input types whose value is set whole, in a fixed format, with an example of each format.
FORMATS = {
    "date": "2026-01-31",
    "time": "09:30",
    "datetime-local": "2026-01-31T09:30",
    "month": "2026-01",
    "week": "2026-W05",
    "color": "#ff8800",
    "range": "50",
}


def execute(tab: Tab, action: Action, *, strict: bool) -> None:
    """Execute a click, hover, type, clear, press or scroll.

    With `strict`, as in VisualWebArena, no action is refused in advance, and text is inserted at
    the cursor.

    Raises:
        ActionFailed: the action could not be executed; the message is for the model.
    """
    match action.kind, action.element_id:
        case "press", _:
            _press(tab, action.key, strict=strict)
        case "scroll", _:
            _scroll(tab, action.direction)
        case "click", int(id):
            _click(tab, id, strict=strict)
        case "hover", int(id):
            place = _locate(tab, id, strict=strict)
            tab.page.mouse.move(place["x"], place["y"])
        case "type", int(id):
            _type(tab, id, action, strict=strict)
        case "clear", int(id):
            _clear(tab, id, strict=strict)
        case _:
            raise ActionFailed(f"{action.kind} needs the number of an element")


def _click(tab: Tab, id: int, *, strict: bool) -> None:
    place = _locate(tab, id, strict=strict)
    if not strict:
        _reject_select(place, id)
        if place["disabled"]:
            raise ActionFailed(f"{_describe(place, id)} is disabled")
    tab.page.mouse.click(place["x"], place["y"])


def _type(tab: Tab, id: int, action: Action, *, strict: bool) -> None:
    """Type into a field or select an option.

    Unless `strict`, the text replaces the old value (our choice; VisualWebArena inserts).
    """
    text = action.text
    place = _locate(tab, id, strict=strict)
    if place["tag"] == "select":
        answer = tab.script.call_on(id, "selectOption", text)
        if "error" in answer:
            known = " | ".join(map(quote, answer["error"][:40]))
            raise ActionFailed(f"[{id}] has no option {text!r}; it has: {known}")
        return
    if place["type"] == "file":
        raise ActionFailed("files cannot be uploaded")
    if not strict:
        if place["disabled"] or place["readonly"]:
            state = "disabled" if place["disabled"] else "read-only"
            raise ActionFailed(f"{_describe(place, id)} is {state}")
        if place["role"] not in ("textbox", "combobox", "slider"):
            raise ActionFailed(f"{_describe(place, id)} takes no text")
    if place["type"] in FORMATS:
        if not tab.script.call_on(id, "setValue", text):
            example = FORMATS[place["type"]]
            raise ActionFailed(f"{_describe(place, id)} takes a {place['type']} such as {example}")
    else:
        tab.page.mouse.click(place["x"], place["y"])
        if strict:
            tab.page.keyboard.type(text)
        else:
            _replace(tab, id, text)
    if action.enter:
        tab.page.keyboard.press("Enter")


def _clear(tab: Tab, id: int, *, strict: bool) -> None:
    place = _locate(tab, id, strict=strict)
    if not strict and place["role"] not in ("textbox", "combobox"):
        raise ActionFailed(f"{_describe(place, id)} holds no text to clear")
    _reject_select(place, id)
    if place["type"] in FORMATS:
        tab.script.call_on(id, "setValue", "")
        return
    tab.page.mouse.click(place["x"], place["y"])
    if strict:
        tab.page.keyboard.press("Control+a")
        tab.page.keyboard.press("Backspace")
    else:
        _replace(tab, id, "")


def _press(tab: Tab, key: str, *, strict: bool) -> None:
    try:
        tab.page.keyboard.press(normalize(key, strict=strict))
    except Error as error:
        if "Unknown key" not in error.message:
            raise
        raise ActionFailed(f"unknown key {key!r}; such as Enter, Escape, Control+a") from error


def _scroll(tab: Tab, direction: str) -> None:
    if not tab.script.call("scroll", 1 if direction == "down" else -1):
        raise ActionFailed(f"the page cannot be scrolled further {direction}")


def _replace(tab: Tab, id: int, text: str) -> None:
    if not tab.script.call_on(id, "focus", True):
        raise ActionFailed(f"there is no element [{id}] on this page")
    if not text:
        tab.page.keyboard.press("Backspace")
        return
    # All characters but the last are inserted at once, 20 times faster than key by key. The last
    # one is a real key press, for fields that search while the user types.
    if text[:-1]:
        tab.page.keyboard.insert_text(text[:-1])
    tab.page.keyboard.type(text[-1])


def _locate(tab: Tab, id: int, *, strict: bool) -> dict[str, Any]:
    """Scroll the element into view; return the point to press and the element's properties."""
    place: dict[str, Any] = tab.script.call_on(id, "locate")
    if "error" in place:
        raise ActionFailed(f"[{id}] is not visible")
    if place["covered"] and not strict:
        raise ActionFailed(f"{_describe(place, id)} is covered by {quote(place['covered'])}")
    return place


def _reject_select(place: dict[str, Any], id: int) -> None:
    if place["tag"] == "select":
        raise ActionFailed(f"[{id}] is a list: choose with type [{id}] [option] [0]")


def _describe(place: dict[str, Any], id: int) -> str:
    return f"{place['role'] or quote(place['tag'])} {quote(place['name'][:60])} [{id}]"
