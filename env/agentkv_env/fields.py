"""Put text into fields, and compare what they hold afterwards.

Text is inserted at once, which is 20 times faster than key by key. A field that then holds
something else gets the text again, key by key, and if it still does not hold it, the action fails.
Fields that ask for single keys from the start are in `keyed.py`.
"""

import re
from collections.abc import Iterator
from functools import partial

from agentkv_env import choices, keyed
from agentkv_env.actions import Action
from agentkv_env.errors import ActionFailed
from agentkv_env.held import to_number
from agentkv_env.named_secrets import NamedSecrets, names_in
from agentkv_env.page_dialogs import LAST_STEP
from agentkv_env.place import UNTIL, Check, Place, describe, locate
from agentkv_env.sanitize import quote
from agentkv_env.tab import Tab
from agentkv_env.uploads import Uploads
from agentkv_env.writing import MAX_SHOWN, Writing, arrived, words_of

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
_NUMBER = re.compile(r"-?(\d+(\.\d+)?|\.\d+)([eE][+-]?\d+)?")


def type_text(
    tab: Tab, id: int, action: Action, *, strict: bool, uploads: Uploads, secrets: NamedSecrets
) -> Check | None:
    """Type into a field or select an option.

    Unless `strict`, the text replaces the old value (our choice; VisualWebArena inserts), and Enter
    is pressed only if the field holds the text.

    Raises:
        ActionFailed: the element takes no such text, or does not hold it.
    """
    text = action.text
    place = locate(tab, id, strict=strict)
    has_secret = bool(names_in(text))
    if has_secret:
        _require_secret_field(place, id)
    if place["tag"] == "select":
        return choices.select(tab, id, place, (text,), strict=strict)
    if place["type"] == "file":
        names = "" if strict else " | ".join(map(quote, uploads.names()))
        raise ActionFailed(
            f"choose a file with upload [{id}] [file]; the user allows: {names}"
            if names
            else "files cannot be uploaded"
        )
    if not strict:
        _require_text_field(place, id)
    value = _filled(tab, id, text, secrets) if has_secret else text
    shown = text if has_secret else ""
    check = None
    if strict:
        _type_strictly(tab, id, value, shown, place)
    else:
        check = _replace(tab, id, value, shown, place)
    if not action.enter:
        return check
    notice = ""
    if check:
        notice = check(True)
        tab.begin_action(id, again=True)  # the check may have waited for its end
    with LAST_STEP:
        tab.page.keyboard.press("Enter")
    return lambda _: notice


def _type_strictly(tab: Tab, id: int, value: str, shown: str, place: Place) -> None:
    if place["type"] in FORMATS:
        if tab.script.call_on(id, "setValue", value, shown, False) is None:
            raise _unset(place, id)
        return
    tab.page.mouse.click(place["x"], place["y"])
    if shown:
        _insert_secret(tab, id, value, shown, all=False)
    else:
        tab.page.keyboard.type(value)


def _replace(tab: Tab, id: int, value: str, shown: str, place: Place) -> Check:
    """Put a value in place of what a field holds."""
    if place["type"] in FORMATS:
        return _set_whole(tab, id, value.strip(), shown, place)
    if place["role"] == "slider":
        keyed.move_slider(tab, id, value, place)
        return partial(keyed.check_slider, tab, id, value, place)
    _require_number(place, id, value, shown)
    pieces = None
    if place["room"] is not None and _length(value) > place["room"]:
        pieces = keyed.share(tab, id, value)
        if pieces is None:
            raise _too_long(tab, place, id, _length(value), shown)
    tab.page.mouse.click(place["x"], place["y"])
    if pieces is not None:
        keyed.type_into_boxes(tab, id, pieces, place, secret=shown)
        return partial(keyed.check_boxes, tab, id, pieces, place, secret=shown)
    if place["segment"]:
        words = keyed.type_into_segments(tab, id, value, place)
        return partial(keyed.check_segments, tab, id, words, place)
    before = tab.script.ask_on(id, "held", words_of(value), False)
    if shown:
        _insert_secret(tab, id, value, shown, all=True)
    else:
        _select_all(tab, id, place)
        if value:
            _write(tab, value, place)
        else:
            tab.page.keyboard.press("Backspace")
    by_keys = None if shown else partial(_type_keys, tab, id, value, place)
    writing = Writing(value, shown, value, before or {}, by_keys)
    return partial(arrived, tab, id, place, writing)


def add_text(tab: Tab, id: int, action: Action, secrets: NamedSecrets) -> Check:
    """Put text at the end of a field, at its cursor or before words of it; the rest stays.

    Raises:
        ActionFailed: the element takes no such text, or does not hold it.
    """
    place = locate(tab, id, strict=False)
    _require_text_field(place, id)
    has_secret = bool(names_in(action.text))
    if has_secret:
        _require_secret_field(place, id)
    is_set_whole = place["type"] in FORMATS or place["tag"] == "select" or place["segment"]
    if is_set_whole or place["role"] == "slider":
        raise ActionFailed(f"{describe(place, id)} is set as a whole: type [{id}] [value] [0]")
    value = _filled(tab, id, action.text, secrets) if has_secret else action.text
    shown = action.text if has_secret else ""
    _place_cursor(tab, id, action, place)
    before = tab.script.ask_on(id, "held", words_of(value), False) or {"text": "", "near": []}
    whole = before.get("head", "") + value + before.get("tail", "")
    if place["room"] is not None and _length(whole) > place["room"]:
        raise _too_long(tab, place, id, _length(whole), shown)
    _require_number(place, id, whole, shown)

    def write_by_keys() -> None:
        _place_cursor(tab, id, action, place)
        _press_keys(tab, value, place)

    if shown:
        _insert_secret(tab, id, value, shown, all=False)
    else:
        _write(tab, value, place)
    # at the cursor, only the first try knows where that was
    again = None if shown or (action.kind == "insert" and not action.before) else write_by_keys
    return partial(arrived, tab, id, place, Writing(value, shown, whole, before, again))


def clear(tab: Tab, id: int, *, strict: bool) -> Check | None:
    """Empty a field.

    Raises:
        ActionFailed: the element holds no text, or keeps it.
    """
    place = locate(tab, id, strict=strict)
    if not strict:
        if place["role"] not in ("textbox", "combobox"):
            raise ActionFailed(f"{describe(place, id)} holds no text to clear; a field does")
        _require_text_field(place, id)
    reject_select(place, id)
    if place["type"] in FORMATS:
        if strict:
            tab.script.call_on(id, "setValue", "", "", False)
            return None
        return _set_whole(tab, id, "", "", place)
    if not strict:
        return _replace(tab, id, "", "", place)
    tab.page.mouse.click(place["x"], place["y"])
    tab.page.keyboard.press("Control+a")
    tab.page.keyboard.press("Backspace")
    return None


def reject_select(place: Place, id: int) -> None:
    """Raise ActionFailed for a native list."""
    if place["tag"] == "select":
        raise ActionFailed(f"[{id}] is a list: choose with type [{id}] [option] [0]")


# ---- what a field takes


def _require_secret_field(place: Place, id: int) -> None:
    is_text_field = place["role"] != "slider" and not place["segment"] and not place["editor"]
    if not is_text_field or place["tag"] == "select" or place["type"] == "file":
        raise ActionFailed(f"{describe(place, id)} takes no secret; type it into a text field")


def _require_text_field(place: Place, id: int) -> None:
    if place["disabled"]:
        raise ActionFailed(f"{describe(place, id)} is disabled{UNTIL}")
    if place["readonly"]:
        raise ActionFailed(
            f"{describe(place, id)} is read-only; click it, or what is beside it, to choose a value"
        )
    if place["role"] not in ("textbox", "combobox", "slider"):
        raise ActionFailed(f"{describe(place, id)} takes no text: click [{id}]")
    if place["role"] == "combobox" and place["tag"] != "select" and not place["writable"]:
        raise ActionFailed(
            f"{describe(place, id)} takes no text: click [{id}], and then the option that opens"
        )


def _require_number(place: Place, id: int, value: str, shown: str) -> None:
    if place["type"] == "number" and value.strip() and not _NUMBER.fullmatch(value.strip()):
        raise ActionFailed(
            f"{describe(place, id)} takes a number such as 1250 or 12.5, without separators and "
            f"units; found {shown or quote(value[:MAX_SHOWN])}"
        )


def _too_long(tab: Tab, place: Place, id: int, length: int, shown: str) -> ActionFailed:
    found = f"with {shown} it would be longer" if shown else f"the text has {length}; shorten it"
    rooms = keyed.rooms(tab, id)
    is_row = len(rooms) > 1 and len({*rooms}) == 1
    row = f", and with the boxes after it {sum(rooms)}" if is_row else ""
    unit = "character" if place["room"] == 1 else "characters"
    return ActionFailed(f"{describe(place, id)} takes at most {place['room']} {unit}{row}; {found}")


def _length(text: str) -> int:
    """Return the length of a text as browsers count it."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _filled(tab: Tab, id: int, text: str, secrets: NamedSecrets) -> str:
    """Return `text`, with secrets in place of their names, if the field may have them."""
    origins = tab.script.call_on(id, "origins")["origins"]
    return secrets.fill(text, origins)


# ---- writing


def _insert_secret(tab: Tab, id: int, value: str, shown: str, *, all: bool) -> None:
    """Write text with secrets at the cursor, or with `all` in place of the field's text.

    A key press goes to whatever document has the focus by then, so our script in the field's own
    document writes the text.
    """
    answer = tab.script.call_on(id, "insertSecret", value, shown, all)
    if "error" in answer:
        raise ActionFailed(f"[{id}] takes no text")


def _select_all(tab: Tab, id: int, place: Place) -> None:
    if place["editor"]:
        _press_editor(tab, place, "Control+a")
    elif not tab.script.call_on(id, "focus", True):
        raise ActionFailed(f"there is no element [{id}] on this page")


def _place_cursor(tab: Tab, id: int, action: Action, place: Place) -> None:
    """Put the cursor where `append` or `insert` put their text."""
    if action.kind == "insert" and not action.before:
        if not tab.script.call_on(id, "focus", False):
            raise ActionFailed(f"there is no element [{id}] on this page")
        return
    if place["editor"]:
        if action.before:
            raise ActionFailed(f"text can only be put at the end of [{id}]: append [{id}] [text]")
        _press_editor(tab, place, "Control+End")
        return
    answer = tab.script.call_on(id, "placeCursor", action.before)
    if answer.get("error") == "unfound":
        shown = f"; it holds {quote(text[:MAX_SHOWN])}" if (text := answer["text"]) else ""
        raise ActionFailed(f"[{id}] does not have the words {action.before!r}{shown}")
    if answer.get("error") == "unplaced":
        raise ActionFailed(f"text can only be put at the end of [{id}]: append [{id}] [text]")
    if answer.get("error") == "end":
        tab.page.keyboard.press("End")


def _press_editor(tab: Tab, place: Place, key: str) -> None:
    """Press a key in an editor of code; its hidden field has the focus and a part of the text."""
    tab.page.mouse.click(place["x"], place["y"])
    tab.page.keyboard.press(key)


def _write(tab: Tab, text: str, place: Place) -> None:
    """Insert text at the cursor, in place of what is selected."""
    if place["editor"] or (place["tag"] == "textarea" and "\n" in text):
        tab.page.keyboard.insert_text(text)
        return
    for line in _lines(tab, text, place):
        # All characters but the last are inserted at once, 20 times faster than key by key. The
        # last one is a real key press, for fields that search while the user types.
        if line[:-1]:
            tab.page.keyboard.insert_text(line[:-1])
        if line:
            tab.page.keyboard.type(line[-1])


def _press_keys(tab: Tab, text: str, place: Place) -> None:
    """Type text at the cursor, a key press for each character."""
    for line in _lines(tab, text, place):
        tab.page.keyboard.type(line)


def _lines(tab: Tab, text: str, place: Place) -> Iterator[str]:
    """Yield the lines of a text, and break the line in the field between two of them."""
    if place["tag"] == "textarea":
        yield text
        return
    if not place["editable"]:
        yield text.replace("\n", " ")
        return
    first, *lines = text.split("\n")
    yield first
    for line in lines:
        tab.page.keyboard.press("Shift+Enter")  # Enter may send what is written
        yield line


def _type_keys(tab: Tab, id: int, text: str, place: Place) -> None:
    """Empty a field and type a text, a key press for each character."""
    _select_all(tab, id, place)
    tab.page.keyboard.press("Backspace")
    _press_keys(tab, text, place)


# ---- fields whose value is set whole


def _set_whole(tab: Tab, id: int, value: str, shown: str, place: Place) -> Check:
    """Set the value of a field of one of the types in `FORMATS`."""
    refusal = _unset(place, id)
    if place["type"] == "range":
        state, number = tab.script.ask_on(id, "slider", False), to_number(value)
        refusal = keyed.refused_value(value, state or {}, place, id)
        if number is None:
            raise refusal
        value = f"{number:.12g}"
    became = tab.script.call_on(id, "setValue", value, shown, True)
    if became is None:
        raise refusal

    def check(reacts: bool) -> str:
        state = tab.script.ask_on(id, "held", (), reacts)
        if state is None or state["text"] == became:
            return ""
        if place["type"] == "range":
            return keyed.move_slider(tab, id, value, place)
        now = "something else" if shown else quote(state["text"]) if state["text"] else "nothing"
        raise ActionFailed(
            f"{describe(place, id)} holds {now} now: the page rejects or changes what is set there"
        )

    return check


def _unset(place: Place, id: int) -> ActionFailed:
    kind, example = place["type"], FORMATS[place["type"]]
    return ActionFailed(f"{describe(place, id)} takes a {kind} such as {example}")
