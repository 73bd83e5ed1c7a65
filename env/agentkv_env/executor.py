"""Execute actions on the page of one tab, with real mouse and keyboard events."""

from playwright.sync_api import Error

from agentkv_env import choices, fields
from agentkv_env.actions import Action, Point
from agentkv_env.errors import ActionFailed
from agentkv_env.keys import normalize
from agentkv_env.named_secrets import NamedSecrets
from agentkv_env.page_dialogs import LAST_STEP, DialogOpened
from agentkv_env.place import UNTIL, Check, Place, describe, locate
from agentkv_env.tab import Tab
from agentkv_env.uploads import Uploads

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
) -> Check | None:
    """Execute an action on the page or on an element of it.

    With `strict`, as in VisualWebArena, no action is refused in advance, text is inserted at the
    cursor, and nobody looks what a field holds then. `secrets` are typed where a text names them.

    Returns:
        What to check once the page has reacted; None for nothing.

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
            place = locate(tab, id, strict=strict, point=action.point)
            with LAST_STEP:
                tab.page.mouse.move(place["x"], place["y"])
                tab.script.call_on(id, "noteTooltip")
        case "drag", int(id):
            if secrets:  # what is selected in a field would be dropped elsewhere
                _reject_field(tab, id)
            _drag(tab, id, action, strict=strict)
        case "type", int(id):
            return fields.type_text(
                tab, id, action, strict=strict, uploads=uploads, secrets=secrets
            )
        case "append" | "insert", int(id):
            return fields.add_text(tab, id, action, secrets)
        case "clear", int(id):
            return fields.clear(tab, id, strict=strict)
        case "choose", int(id):
            return choices.choose(tab, id, action.items)
        case "upload", int(id):
            _upload(tab, id, action, uploads)
        case _:
            raise ActionFailed(f"{action.kind} needs the number of an element")
    return None


def _click(tab: Tab, id: int, action: Action, *, strict: bool) -> None:
    place = locate(tab, id, strict=strict, point=action.point)
    if not strict:
        fields.reject_select(place, id)
        if place["disabled"]:
            raise ActionFailed(f"{describe(place, id)} is disabled{UNTIL}")
        place = _hover(tab, id, place, action.point)
    with LAST_STEP:
        tab.page.mouse.click(
            place["x"],
            place["y"],
            button="right" if action.kind == "right_click" else "left",
            click_count=2 if action.kind == "double_click" else 1,
        )


def _hover(tab: Tab, id: int, place: Place, point: Point | None) -> Place:
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
    return locate(tab, id, strict=False, point=point)


def _drag(tab: Tab, id: int, action: Action, *, strict: bool) -> None:
    """Press the mouse on one element, move it in steps, and release it on another."""
    target_id, target_point = action.target_id, action.target_point
    if target_id is None:
        raise ActionFailed(f"drag needs an element to drop on: drag [{id}] [number]")
    # If the target were missed after the press, the release would be a click. A drag from an
    # element to itself may end beyond it, as the corner of a field does that grows.
    is_own = target_id == id
    end = locate(tab, target_id, strict=strict or is_own, point=target_point, under=True)
    if is_own and not _is_in_window(tab, end):
        raise ActionFailed(f"the point is outside the window of {describe(end, id)}")
    # A handle may lie over the point of an element that it moves.
    is_point = action.point is not None
    place = locate(tab, id, strict=strict, point=action.point, under=is_point)
    x, y = place["x"], place["y"]
    mouse = tab.page.mouse
    mouse.move(x, y)
    mouse.down()
    try:
        # Sortable items make room during the drag, so we aim at the place where the target was at
        # the start.
        end = locate(tab, target_id, strict=True, point=target_point, under=True)
        mouse.move(end["x"], end["y"], steps=DRAG_STEPS)
        tab.script.call("nextFrame")
    except DialogOpened:
        tab.holds_mouse = True  # the page takes no release now
        raise
    except BaseException:
        mouse.up()
        raise
    with LAST_STEP:
        mouse.up()


def _is_in_window(tab: Tab, place: Place) -> bool:
    size = tab.page.viewport_size
    return size is None or (0 <= place["x"] < size["width"] and 0 <= place["y"] < size["height"])


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


def _upload(tab: Tab, id: int, action: Action, uploads: Uploads) -> None:
    """Give files to a file field, or to the field that a button opens."""
    files = uploads.find(action.items)
    place = locate(tab, id, strict=False)
    if place["disabled"]:
        raise ActionFailed(f"{describe(place, id)} is disabled{UNTIL}")
    if place["type"] == "file":
        if len(files) > 1 and not place["several"]:
            raise ActionFailed(f"[{id}] takes one file: upload [{id}] [file]")
        tab.script.set_files(id, files)
        return

    def press() -> None:
        # Chromium may still be about to report choosers, and would open a dialog of its own; what
        # the page's script answers comes after that
        place = locate(tab, id, strict=False)
        tab.page.mouse.click(place["x"], place["y"])

    if not tab.answer_file_chooser(press, files):
        raise ActionFailed(f"{describe(place, id)} asks for no file")


def _pastes(key: str) -> bool:
    """Return whether a key pastes: what was copied from a page may hold a secret."""
    *held, last = key.lower().split("+")
    return (last in ("v", "keyv") and bool({"control", "meta", "controlormeta"} & {*held})) or (
        last == "insert" and "shift" in held
    )


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


def _reject_field(tab: Tab, id: int) -> None:
    place = locate(tab, id, strict=True)
    if place["tag"] in ("input", "textarea") or place["editable"] or place["editor"]:
        raise ActionFailed(f"nothing is dragged from {describe(place, id)}: it may hold a secret")
