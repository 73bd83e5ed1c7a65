"""Choose options of native lists."""

from functools import partial
from typing import Any

from agentkv_env.errors import ActionFailed
from agentkv_env.page_dialogs import LAST_STEP
from agentkv_env.place import UNTIL, Check, Place, describe, locate
from agentkv_env.sanitize import quote
from agentkv_env.tab import Tab

MAX_OPTIONS = 40
"""Options that an error lists."""


def choose(tab: Tab, id: int, labels: tuple[str, ...]) -> Check | None:
    """Select the options with these labels, and deselect all others of the list.

    Raises:
        ActionFailed: the element is no list, or has no such options.
    """
    place = locate(tab, id, strict=False)
    if place["tag"] != "select":
        raise ActionFailed(f"{describe(place, id)} is no list of options; click what is wanted")
    if not place["several"] and len(labels) != 1:
        raise ActionFailed(f"[{id}] takes exactly one option: choose [{id}] [option]")
    return select(tab, id, place, labels, strict=False)


def select(
    tab: Tab, id: int, place: Place, labels: tuple[str, ...], *, strict: bool
) -> Check | None:
    """Select options of the list at `place`; see `choose`."""
    if place["disabled"] and not strict:
        raise ActionFailed(f"{describe(place, id)} is disabled{UNTIL}")
    answer: dict[str, Any] = {}
    with LAST_STEP:
        answer = tab.script.call_on(id, "selectOptions", labels)
    if not answer:  # the page asks something first
        return None
    if "unclear" not in answer:
        return partial(_check, tab, id, place, answer["chosen"])
    known = " | ".join(map(quote, answer["known"][:MAX_OPTIONS]))
    if answer["several"]:
        raise ActionFailed(
            f"[{id}] has several options for {answer['unclear']!r}; write one of: {known}"
        )
    raise ActionFailed(f"[{id}] has no option {answer['unclear']!r}; it has: {known}")


def _check(tab: Tab, id: int, place: Place, chosen: list[str], reacts: bool) -> str:
    state = tab.script.ask_on(id, "selectedOptions", reacts)
    if state is None or sorted(state["names"]) == sorted(chosen):
        return ""
    shown = " | ".join(map(quote, state["names"][:MAX_OPTIONS])) or "none"
    raise ActionFailed(
        f"{describe(place, id)} does not keep the choice: the page has selected {shown} now"
    )
