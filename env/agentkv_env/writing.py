"""A text on its way into a field, and whether it has arrived there."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentkv_env import keyed
from agentkv_env.errors import ActionFailed
from agentkv_env.held import has_same_letters, is_formatted, is_same
from agentkv_env.place import Place, describe
from agentkv_env.sanitize import quote
from agentkv_env.tab import Tab

MAX_KEYS = 300
"""Characters that are typed key by key, at some 3 ms each, when inserting them was in vain."""
TAKING_BACK_MS = 150
"""Milliseconds until a page that has taken a text back once may have done so again."""
MAX_DRAWN = 20
"""Lines that every editor draws; of a longer text, some draw only the lines around the cursor."""
MAX_SHOWN = 80
"""Characters of a field's text in a message."""
MAX_WORDS = 20
"""Parts of a text that are looked for near a field that takes them out."""


@dataclass(frozen=True, slots=True)
class Writing:
    """A text on its way into a field."""

    text: str = field(repr=False)
    """The text, with the values of secrets."""
    shown: str
    """What stands for a text with secrets, else empty."""
    whole: str = field(repr=False)
    """What the field is to hold: the text, or with it what the field held before."""
    before: dict[str, Any] = field(repr=False)
    """State of the field before; see `held` of scripts/fields.js."""
    by_keys: Callable[[], object] | None
    """Writes the text once more, with a key press for each character; None for not at all."""


def arrived(tab: Tab, id: int, place: Place, writing: Writing, reacts: bool) -> str:
    """Compare what a field holds with what was written; a `Check` but for its first arguments.

    If the text is not there, it is typed key by key, once.

    Returns:
        A notice where the field writes the text in a form of its own, else an empty one.

    Raises:
        ActionFailed: the text is not there.
    """
    state = tab.script.ask_on(id, "held", words_of(writing.text), reacts)
    if state and state["selected"] and state["text"] == writing.text + state["selected"]:
        tab.page.keyboard.press("Delete")  # a completion of the page's, which typing goes over
        state = tab.script.ask_on(id, "held", words_of(writing.text), True)
    notice = _judge(state, place, writing)
    if notice is None and state is not None and not state["replaced"] and not state["locked"]:
        pieces = keyed.share(tab, id, writing.text) if state["moved"] else None
        if pieces is not None:
            return keyed.type_into_boxes(tab, id, pieces, place, secret=writing.shown)
        if writing.by_keys is not None and _restore(tab, state, place, writing):
            tab.begin_action(id, again=True)  # what these keys cause is the action's effect, too
            writing.by_keys()
            tab.page.wait_for_timeout(TAKING_BACK_MS)
            tab.wait_late()
            state = tab.script.ask_on(id, "held", words_of(writing.text), True)
            notice = _judge(state, place, writing)
    if notice is None:
        now = f"{describe(place, id)} holds {_shown(state, writing)} now"
        if state is not None and state["locked"]:
            raise ActionFailed(
                f"{now}: the page has disabled it; use what the page shows now first"
            )
        raise ActionFailed(
            f"{now}, not the text: the page rejects or changes what is typed there; type what it "
            "takes"
            if writing.text
            else f"{now} and is not to be emptied; type another value"
        )
    return notice


def _restore(tab: Tab, state: dict[str, Any], place: Place, writing: Writing) -> bool:
    """Prepare a field for the keys of a text; return False if it cannot have them."""
    if place["editor"] or len(writing.text) > MAX_KEYS:
        return False
    if writing.whole == writing.text or state["text"] == writing.before["text"]:
        return True
    # A field that takes no insertion still takes the last character, which is a key.
    head, tail = writing.before.get("head", ""), writing.before.get("tail", "")
    if state["text"] != head + writing.text[-1:] + tail:
        return False
    tab.page.keyboard.press("Backspace")
    return True


def _judge(state: dict[str, Any] | None, place: Place, writing: Writing) -> str | None:
    """Return a notice, empty for none, if a field holds what was written; None if it does not."""
    if state is None:
        return ""  # the page has gone on
    held, is_part = state["text"], writing.whole != writing.text
    if is_same(writing.whole, held) or _is_in_row(state["row"], writing.text):
        return ""
    if place["editor"] or (place["editable"] and is_part):
        return "" if _gained(writing, held) else None
    before = "" if is_part else writing.before.get("text", "")
    is_there = is_formatted(writing.whole, held, before=before)
    if not is_there and (is_part or not writing.text or place["editable"]):
        is_there = has_same_letters(writing.whole, held)  # an editor turns `**so**` into a bold so
    if not is_there and place["editable"] and writing.text.count("\n") > MAX_DRAWN:
        is_there = _gained(writing, held)
    took = not is_there and _is_taken(state, writing)
    if not is_there and not took:
        return None
    if writing.shown or state["hides"]:
        return ""
    now = f"holds {_shown(state, writing)} now"
    said = f"has taken {quote(writing.text[:MAX_SHOWN])} and {now}" if took else now
    return f"{place['role']} {quote(place['name'][:60])} {said}"


def _is_in_row(row: Sequence[str], text: str) -> bool:
    """Return whether a page has spread a text over fields in a row."""
    return any(
        has_same_letters("".join(row[:end]), text) and all(row[:end])
        for end in range(2, len(row) + 1)
    )


def _gained(writing: Writing, held: str) -> bool:
    """Return whether the last line of a text is in an editor, where it was not before.

    Editors draw a part of their text, around the cursor, and put numbers beside its lines.
    """
    *_, last = [line for line in ("", *writing.text.split("\n")) if line.strip()] or [""]
    wanted, now, before = (
        "".join(each.split()) for each in (last, held, writing.before.get("text", ""))
    )
    return now.count(wanted) > (before.count(wanted) if writing.whole != writing.text else 0)


def _is_taken(state: dict[str, Any], writing: Writing) -> bool:
    """Return whether a page has taken the parts of a text out of a field and shows them there."""
    words = words_of(writing.text)
    counts = zip(words, state["near"], writing.before.get("near", ()), strict=False)
    is_rest = not state["text"].strip() or writing.text.strip().endswith(state["text"].strip())
    return (
        bool(words)
        and is_rest
        and all(now > before or word in state["text"] for word, now, before in counts)
    )


def words_of(text: str) -> tuple[str, ...]:
    """Return the parts of a text that a field of tags takes out one by one."""
    parts = (part.strip() for part in re.split(r"[,;\n]", text))
    return tuple(part[:MAX_SHOWN] for part in parts if part)[:MAX_WORDS]


def _shown(state: dict[str, Any] | None, writing: Writing) -> str:
    if state is None or writing.shown or state["hides"]:
        return "something else"
    text = " ".join(state["text"].split())
    return quote(text[:MAX_SHOWN]) if text else "nothing"
