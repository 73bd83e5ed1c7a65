"""Execute actions on the page of one tab, with real mouse and keyboard events."""

from typing import Any

from playwright.sync_api import Error

from agentkv_env.actions import Action, Point
from agentkv_env.errors import ActionFailed
from agentkv_env.keys import normalize
from agentkv_env.named_secrets import NamedSecrets, names_in
from agentkv_env.page_dialogs import LAST_STEP, DialogOpened
from agentkv_env.sanitize import quote
from agentkv_env.tab import Tab
from agentkv_env.uploads import Uploads

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


# x and y of one scroll
_STEPS = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
HOVER_POLLS = 10
"""Checks whether an element is still under the mouse before it is pressed, ..."""
HOVER_POLL_MS = 30
"""... and milliseconds between them."""
DRAG_STEPS = 8
"""Movements of the mouse in a drag; pages often ignore a single one."""


def execute(
    tab: Tab, action: Action, *, strict: bool, uploads: Uploads, secrets: NamedSecrets
) -> None:
    """Execute an action on the page or on an element of it.

    With `strict`, as in VisualWebArena, no action is refused in advance, and text is inserted at
    the cursor. `secrets` are typed where a text names them.

    Raises:
        ActionFailed: the action could not be executed; the message is for the model.
        DialogOpened: a dialog of the page opened before the action's last step.
    """
    match action.kind, action.element_id:
        case "press", _:
            if secrets and _pastes(normalize(action.key)):
                raise ActionFailed("nothing is pasted in a session with secrets; type the text")
            _press(tab, action.key, strict=strict)
        case "scroll", None:
            if not tab.script.call("scroll", *_STEPS[action.direction or "down"]):
                raise ActionFailed(f"the page cannot be scrolled further {action.direction}")
        case "scroll", int(id):
            _scroll_area(tab, id, action)
        case "wait", _:
            with LAST_STEP:
                tab.wait_settled()
        case "select_text", _:
            _select_text(tab, action)
        case "click" | "double_click" | "right_click", int(id):
            _click(tab, id, action, strict=strict)
        case "hover", int(id):
            place = _locate(tab, id, strict=strict, point=action.point)
            with LAST_STEP:
                tab.page.mouse.move(place["x"], place["y"])
        case "drag", int(id):
            if secrets:  # what is selected in a field would be dropped elsewhere
                _reject_field(tab, id)
            _drag(tab, id, action, strict=strict)
        case "type", int(id):
            _type(tab, id, action, strict=strict, uploads=uploads, secrets=secrets)
        case "append" | "insert", int(id):
            _add(tab, id, action, secrets)
        case "clear", int(id):
            _clear(tab, id, strict=strict)
        case "choose", int(id):
            _choose(tab, id, action.items)
        case "upload", int(id):
            _upload(tab, id, action, uploads)
        case _:
            raise ActionFailed(f"{action.kind} needs the number of an element")


def _click(tab: Tab, id: int, action: Action, *, strict: bool) -> None:
    place = _locate(tab, id, strict=strict, point=action.point)
    if not strict:
        _reject_select(place, id)
        if place["disabled"]:
            raise ActionFailed(f"{_describe(place, id)} is disabled")
        place = _hover(tab, id, place, action.point)
    with LAST_STEP:
        tab.page.mouse.click(
            place["x"],
            place["y"],
            button="right" if action.kind == "right_click" else "left",
            click_count=2 if action.kind == "double_click" else 1,
        )


def _hover(tab: Tab, id: int, place: dict[str, Any], point: Point | None) -> dict[str, Any]:
    """Move the mouse onto an element; return its place when what it does then has come to rest.

    An element that shows another picture under the mouse has no size until the picture is loaded.
    One that opens a menu over itself is covered.
    """
    tab.page.mouse.move(place["x"], place["y"])
    tab.script.call("drawn")
    for _ in range(HOVER_POLLS):
        if tab.script.call_on(id, "isAimedAt"):
            return place
        tab.page.wait_for_timeout(HOVER_POLL_MS)
    return _locate(tab, id, strict=False, point=point)


def _drag(tab: Tab, id: int, action: Action, *, strict: bool) -> None:
    """Press the mouse on one element, move it in steps, and release it on another."""
    target_id, target_point = action.target_id, action.target_point
    if target_id is None:
        raise ActionFailed(f"drag needs an element to drop on: drag [{id}] [number]")
    # If the target were missed after the press, the release would be a click. A drag from an
    # element to itself may end beyond it, as the corner of a field does that grows.
    is_own = target_id == id
    end = _locate(tab, target_id, strict=strict or is_own, point=target_point, under=True)
    if is_own and not _is_in_window(tab, end):
        raise ActionFailed(f"the point is outside the window of {_describe(end, id)}")
    # A handle may lie over the point of an element that it moves.
    is_point = action.point is not None
    place = _locate(tab, id, strict=strict, point=action.point, under=is_point)
    x, y = place["x"], place["y"]
    mouse = tab.page.mouse
    mouse.move(x, y)
    mouse.down()
    try:
        # Sortable items make room during the drag, so we aim at the place where the target was at
        # the start.
        end = _locate(tab, target_id, strict=True, point=target_point, under=True)
        mouse.move(end["x"], end["y"], steps=DRAG_STEPS)
        tab.script.call("nextFrame")
    except DialogOpened:
        raise  # the page takes no release now
    except BaseException:
        mouse.up()
        raise
    with LAST_STEP:
        mouse.up()


def _is_in_window(tab: Tab, place: dict[str, Any]) -> bool:
    size = tab.page.viewport_size
    return size is None or (0 <= place["x"] < size["width"] and 0 <= place["y"] < size["height"])


def _type(
    tab: Tab, id: int, action: Action, *, strict: bool, uploads: Uploads, secrets: NamedSecrets
) -> None:
    """Type into a field or select an option.

    Unless `strict`, the text replaces the old value (our choice; VisualWebArena inserts).
    """
    text = action.text
    place = _locate(tab, id, strict=strict)
    has_secret = bool(names_in(text))
    if has_secret:
        _require_secret_field(place, id)
    if place["tag"] == "select":
        _select_options(tab, id, (text,))
        return
    if place["type"] == "file":
        names = "" if strict else " | ".join(map(quote, uploads.names()))
        raise ActionFailed(
            f"choose a file with upload [{id}] [file]; the user allows: {names}"
            if names
            else "files cannot be uploaded"
        )
    if not strict:
        _require_text_field(place, id)
    if place["type"] in FORMATS:
        value = _filled(tab, id, text, secrets) if has_secret else text
        shown = text if has_secret else ""
        if not tab.script.call_on(id, "setValue", value, shown):
            example = FORMATS[place["type"]]
            raise ActionFailed(f"{_describe(place, id)} takes a {place['type']} such as {example}")
    else:
        tab.page.mouse.click(place["x"], place["y"])
        if has_secret:
            _write_secret(tab, id, text, secrets, all=not strict)
        elif strict:
            tab.page.keyboard.type(text)
        else:
            _replace(tab, id, text, place)
    if action.enter:
        with LAST_STEP:
            tab.page.keyboard.press("Enter")


def _require_secret_field(place: dict[str, Any], id: int) -> None:
    if place["editor"] or place["tag"] == "select" or place["type"] == "file":
        raise ActionFailed(f"{_describe(place, id)} takes no secret; type it into a text field")


def _filled(tab: Tab, id: int, text: str, secrets: NamedSecrets) -> str:
    """Return `text`, with secrets in place of their names, if the field may have them."""
    origins = tab.script.call_on(id, "origins")["origins"]
    return secrets.fill(text, origins)


def _write_secret(tab: Tab, id: int, text: str, secrets: NamedSecrets, *, all: bool) -> None:
    """Write text with secrets at the cursor, or with `all` in place of the field's text.

    A key press goes to whatever document has the focus by then, so our script in the field's own
    document writes the text.
    """
    value = _filled(tab, id, text, secrets)
    answer = tab.script.call_on(id, "insertSecret", value, text, all)
    if "error" in answer:
        raise ActionFailed(f"[{id}] takes no text")


def _pastes(key: str) -> bool:
    """Return whether a key pastes: what was copied from a page may hold a secret."""
    *held, last = key.lower().split("+")
    return (last in ("v", "keyv") and bool({"control", "meta", "controlormeta"} & {*held})) or (
        last == "insert" and "shift" in held
    )


def _require_text_field(place: dict[str, Any], id: int) -> None:
    if place["disabled"] or place["readonly"]:
        state = "disabled" if place["disabled"] else "read-only"
        raise ActionFailed(f"{_describe(place, id)} is {state}")
    if place["role"] not in ("textbox", "combobox", "slider"):
        raise ActionFailed(f"{_describe(place, id)} takes no text")


def _add(tab: Tab, id: int, action: Action, secrets: NamedSecrets) -> None:
    """Put text at the end of a field, at its cursor or before words of it; the rest stays."""
    place = _locate(tab, id, strict=False)
    _require_text_field(place, id)
    has_secret = bool(names_in(action.text))
    if has_secret:
        _require_secret_field(place, id)
    if place["type"] in FORMATS or place["tag"] == "select" or place["role"] == "slider":
        raise ActionFailed(f"{_describe(place, id)} is set as a whole: type [{id}] [value] [0]")
    if action.kind == "insert" and not action.before:
        if not tab.script.call_on(id, "focus", False):
            raise ActionFailed(f"there is no element [{id}] on this page")
    else:
        if place["editor"] and action.before:
            raise ActionFailed(f"text can only be put at the end of [{id}]: append [{id}] [text]")
        if place["editor"]:
            _press_editor(tab, place, "Control+End")
            _write(tab, action.text, place)
            return
        answer = tab.script.call_on(id, "placeCursor", action.before)
        if answer.get("error") == "unfound":
            raise ActionFailed(f"[{id}] does not have the words {action.before!r}")
        if answer.get("error") == "unplaced":
            raise ActionFailed(f"text can only be put at the end of [{id}]: append [{id}] [text]")
        if answer.get("error") == "end":
            tab.page.keyboard.press("End")
    if has_secret:
        _write_secret(tab, id, action.text, secrets, all=False)
    else:
        _write(tab, action.text, place)


def _select_text(tab: Tab, action: Action) -> None:
    arguments = (action.text, action.last)
    if action.element_id is None:
        answer = tab.script.call("selectText", None, *arguments)
    else:
        answer = tab.script.call_on(action.element_id, "selectText", *arguments)
    where = "the page" if action.element_id is None else f"[{action.element_id}]"
    if "missing" in answer:
        raise ActionFailed(f"{where} does not have the words {answer['missing']!r} there")
    if "error" in answer:
        raise ActionFailed(f"{where} has no text that can be selected")


def _choose(tab: Tab, id: int, labels: tuple[str, ...]) -> None:
    place = _locate(tab, id, strict=False)
    if place["disabled"]:
        raise ActionFailed(f"{_describe(place, id)} is disabled")
    if place["tag"] != "select":
        raise ActionFailed(f"{_describe(place, id)} is no list of options; click what is wanted")
    if not place["several"] and len(labels) != 1:
        raise ActionFailed(f"[{id}] takes exactly one option: choose [{id}] [option]")
    _select_options(tab, id, labels)


def _select_options(tab: Tab, id: int, labels: tuple[str, ...]) -> None:
    answer: dict[str, Any] = {}
    with LAST_STEP:
        answer = tab.script.call_on(id, "selectOptions", labels)
    if "missing" in answer:
        known = " | ".join(map(quote, answer["known"][:40]))
        raise ActionFailed(f"[{id}] has no option {answer['missing']!r}; it has: {known}")


def _upload(tab: Tab, id: int, action: Action, uploads: Uploads) -> None:
    """Give files to a file field, or to the field that a button opens."""
    files = uploads.find(action.items)
    place = _locate(tab, id, strict=False)
    if place["disabled"]:
        raise ActionFailed(f"{_describe(place, id)} is disabled")
    if place["type"] == "file":
        if len(files) > 1 and not place["several"]:
            raise ActionFailed(f"[{id}] takes one file: upload [{id}] [file]")
        tab.script.set_files(id, files)
    elif not tab.answer_file_chooser(lambda: tab.page.mouse.click(place["x"], place["y"]), files):
        raise ActionFailed(f"{_describe(place, id)} asks for no file")


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
        _replace(tab, id, "", place)


def _press(tab: Tab, key: str, *, strict: bool) -> None:
    try:
        with LAST_STEP:
            tab.page.keyboard.press(normalize(key, strict=strict))
    except Error as error:
        if "Unknown key" not in error.message:
            raise
        raise ActionFailed(f"unknown key {key!r}; such as Enter, Escape, Control+a") from error


def _scroll_area(tab: Tab, id: int, action: Action) -> None:
    answer = tab.script.call_on(id, "scrollArea", *_STEPS[action.direction or "down"])
    if answer.get("error") == "fixed":
        raise ActionFailed(f"nothing around [{id}] scrolls {action.direction}")
    if not answer["moved"]:
        raise ActionFailed(f"the area of [{id}] cannot be scrolled further {action.direction}")


def _replace(tab: Tab, id: int, text: str, place: dict[str, Any]) -> None:
    if place["editor"]:
        _press_editor(tab, place, "Control+a")
    elif not tab.script.call_on(id, "focus", True):
        raise ActionFailed(f"there is no element [{id}] on this page")
    if text:
        _write(tab, text, place)
    else:
        tab.page.keyboard.press("Backspace")


def _press_editor(tab: Tab, place: dict[str, Any], key: str) -> None:
    """Press a key in an editor of code; its hidden field has the focus and a part of the text."""
    tab.page.mouse.click(place["x"], place["y"])
    tab.page.keyboard.press(key)


def _write(tab: Tab, text: str, place: dict[str, Any]) -> None:
    """Write text at the cursor, in place of what is selected."""
    keyboard = tab.page.keyboard
    if place["editable"]:
        # Enter may send what is written; with Shift, it never does.
        first, *lines = text.split("\n")
        _write_line(tab, first)
        for line in lines:
            keyboard.press("Shift+Enter")
            _write_line(tab, line)
    elif place["editor"] or (place["tag"] == "textarea" and "\n" in text):
        keyboard.insert_text(text)
    else:
        _write_line(tab, text.replace("\n", " "))


def _write_line(tab: Tab, text: str) -> None:
    # All characters but the last are inserted at once, 20 times faster than key by key. The last
    # one is a real key press, for fields that search while the user types.
    if text[:-1]:
        tab.page.keyboard.insert_text(text[:-1])
    if text:
        tab.page.keyboard.type(text[-1])


def _locate(
    tab: Tab, id: int, *, strict: bool, point: Point | None = None, under: bool = False
) -> dict[str, Any]:
    """Scroll the element into view; return the point to press and the element's properties.

    With `under`, it does not matter what covers the point.
    """
    at = point and {"x": point.x, "y": point.y, "percent": point.unit == "%"}
    place: dict[str, Any] = tab.script.call_on(id, "locate", at, under)
    if "error" in place:
        raise ActionFailed(f"[{id}] is not visible")
    if strict:
        return place
    if place["outside"]:
        raise ActionFailed(f"the point is outside {_describe(place, id)}")
    if place["covered"]:
        raise ActionFailed(f"{_describe(place, id)} is covered by {quote(place['covered'])}")
    return place


def _reject_field(tab: Tab, id: int) -> None:
    place = _locate(tab, id, strict=True)
    if place["tag"] in ("input", "textarea") or place["editable"] or place["editor"]:
        raise ActionFailed(f"nothing is dragged from {_describe(place, id)}: it may hold a secret")


def _reject_select(place: dict[str, Any], id: int) -> None:
    if place["tag"] == "select":
        raise ActionFailed(f"[{id}] is a list: choose with type [{id}] [option] [0]")


def _describe(place: dict[str, Any], id: int) -> str:
    return f"{place['role'] or quote(place['tag'])} {quote(place['name'][:60])} [{id}]"
