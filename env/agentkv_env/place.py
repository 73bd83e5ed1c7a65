"""Ask the page where an element is and what it is, and refuse what can have no effect there."""

from collections.abc import Callable
from typing import Any

from agentkv_env.actions import Point
from agentkv_env.errors import ActionFailed
from agentkv_env.sanitize import quote
from agentkv_env.tab import Tab

Place = dict[str, Any]  # as `locate` of scripts/actions.js returns it
UNTIL = "; what it waits for must be filled in or chosen first"
"""What a message says after that an element is disabled."""
Check = Callable[[bool], str]
"""What an action leaves to be checked once the page has reacted to it.

Given whether the page is to get a frame for that first, it returns a notice for the agent, empty
for none, or raises ActionFailed: what the action was to set is not there."""


def locate(
    tab: Tab, id: int, *, strict: bool, point: Point | None = None, under: bool = False
) -> Place:
    """Scroll the element into view; return the point to press and the element's properties.

    With `under`, it does not matter what covers the point.

    Raises:
        ActionFailed: the element is not visible or, unless `strict`, takes no press there.
    """
    at = {"x": point.x, "y": point.y, "percent": point.unit == "%"} if point else None
    place: Place = tab.script.locate(id, at, under=under)
    if "error" in place:
        raise ActionFailed(f"[{id}] is not visible; open what hides it, or use another element")
    if strict:
        return place
    if place["outside"]:
        raise ActionFailed(f"the point is outside {describe(place, id)}")
    if place["inert"]:
        raise ActionFailed(
            f"{describe(place, id)} is in a part of the page that is inert now and takes no "
            "presses or keys; use another part first, such as an open dialog"
        )
    if place["bent"]:
        raise ActionFailed(
            f"{describe(place, id)} is in a frame drawn in perspective, where no point can be "
            "pressed; open the page of the frame instead"
        )
    if place["covered"]:
        cover = quote(place["covered"])
        raise ActionFailed(f"{describe(place, id)} is covered by {cover}; close or use that first")
    return place


def describe(place: Place, id: int) -> str:
    """Return role, name and number of an element for a message."""
    return f"{place['role'] or quote(place['tag'])} {quote(place['name'][:60])} [{id}]"
