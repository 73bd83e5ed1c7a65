"""Our actions as calls of BrowserGym's high-level actions."""

from agentkv.adapters.browsergym_page import VIEWPORT, Bids
from agentkv_env.actions import Action, ActionError, Point, render
from agentkv_env.keys import normalize
from agentkv_env.page import Node, Page
from agentkv_env.serialize import neutralize

WAIT_MS = 1000
"""Time of a wait (BrowserGym's default)."""


def to_calls(action: Action, page: Page, bids: Bids, *, scroll_by: int = VIEWPORT[1]) -> str:
    """Return `action` as calls of BrowserGym's high-level actions, one per line.

    Args:
        action: an action on `page`.
        page: the page that the model was shown.
        bids: the numbers of its elements.
        scroll_by: pixels of a scroll.

    Raises:
        ActionError: the page has no such element, the list no such option, or BrowserGym no such
            action.
    """
    match action.kind:
        case "click" | "double_click" | "right_click" | "hover":
            return _point_at(action, page, bids)
        case "clear":
            return _call("fill", _bid(action, page, bids), "")
        case "type":
            return _type(action, page, bids)
        case "append":
            focus = _call("focus", _bid(action, page, bids))
            end = _call("keyboard_press", "Control+End")
            return "\n".join([focus, end, _call("keyboard_insert_text", action.text)])
        case "insert" if not action.before:
            focus = _call("focus", _bid(action, page, bids))
            return f"{focus}\n{_call('keyboard_insert_text', action.text)}"
        case "select_text" if not action.text:
            focus = _call("focus", _bid(action, page, bids))
            return f"{focus}\n{_call('keyboard_press', 'Control+a')}"
        case "choose":
            bid, node = _element(action.element_id, page, bids)
            return _call("select_option", bid, [_option(node, each) for each in action.items])
        case "drag":
            return _drag(action, page, bids)
        case "press":
            return _call("keyboard_press", normalize(action.key))
        case "scroll":
            return _scroll(action, page, bids, scroll_by)
        case "tab_focus":
            return _call("tab_focus", action.tab)
        case "close_tab":
            return _call("tab_close")
        case "goto":
            return _call("goto", action.url)
        case "stop":
            return _call("send_msg_to_user", action.answer)
        case "wait":
            return _call("noop", WAIT_MS)
        case "new_tab" | "go_back" | "go_forward":
            return _call(action.kind)
        # BrowserGym would upload any file of this machine that the model names.
        case "insert" | "select_text" | "upload":
            raise ActionError(f"{render(action)[:80]!r} cannot be done here; choose another action")


def _point_at(action: Action, page: Page, bids: Bids) -> str:
    bid, node = _element(action.element_id, page, bids)
    name = {"double_click": "dblclick", "hover": "hover"}.get(action.kind, "click")
    button = ("right",) if action.kind == "right_click" else ()
    if action.point is None:
        return _call(name, bid, *button)
    by_place = {"click": "mouse_click", "dblclick": "mouse_dblclick", "hover": "mouse_move"}
    return _call(by_place[name], *_place(node, action.point), *button)


def _drag(action: Action, page: Page, bids: Bids) -> str:
    (start, node), (end, target) = (
        _element(each, page, bids) for each in (action.element_id, action.target_id)
    )
    if action.point is None and action.target_point is None:
        return _call("drag_and_drop", start, end)
    places = _place(node, action.point), _place(target, action.target_point)
    return _call("mouse_drag_and_drop", *places[0], *places[1])


def _scroll(action: Action, page: Page, bids: Bids, scroll_by: int) -> str:
    by = scroll_by
    first = ""
    if action.element_id is not None:
        _, node = _element(action.element_id, page, bids)
        by = min(by, node.box.height)
        first = _call("mouse_move", *_place(node, None)) + "\n"
    by = -by if action.direction in ("up", "left") else by
    sideways = action.direction in ("left", "right")
    return first + _call("scroll", by if sideways else 0, 0 if sideways else by)


def _place(node: Node, point: Point | None) -> tuple[int, int]:
    """Return a point of `node` in pixels of the viewport."""
    box, point = node.box, point or Point(50, 50, "%")
    if point.unit == "%":
        return box.x + box.width * point.x // 100, box.y + box.height * point.y // 100
    return box.x + point.x, box.y + point.y


def _type(action: Action, page: Page, bids: Bids) -> str:
    bid, node = _element(action.element_id, page, bids)
    if node.options:
        return _call("select_option", bid, _option(node, action.text))
    enter = f"\n{_call('keyboard_press', 'Enter')}" if action.enter else ""
    return _call("fill", bid, action.text) + enter


def _option(node: Node, text: str) -> str:
    """Return the option of a list that the model read as `text`."""
    chosen = next((each for each in node.options if neutralize(each) == neutralize(text)), None)
    if chosen is None:
        raise ActionError(f"the list has no option {text!r}")
    return chosen


def _bid(action: Action, page: Page, bids: Bids) -> str:
    return _element(action.element_id, page, bids)[0]


def _element(number: int | None, page: Page, bids: Bids) -> tuple[str, Node]:
    """Return an element and its bid. Raises ActionError if the page has none such."""
    node = None if number is None else page.element(number)
    if number is None or node is None:
        raise ActionError(f"there is no element {number} on this page")
    return bids.bid(number), node


def _call(name: str, *args: object) -> str:
    return f"{name}({', '.join(map(repr, args))})"
