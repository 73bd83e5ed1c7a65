"""Text <-> action: the id grammar of VisualWebArena, as it is and as one would wish it.

`strict` reads exactly what VisualWebArena's own parser reads, traps included, so that scores
compare. `lenient` also reads what models plainly meant: other case, missing brackets, `Ctrl+v`, a
language tag.
"""

import re
from dataclasses import dataclass
from typing import Literal, cast, get_args

from agentkv_env.keys import normalize

ActionKind = Literal[
    "click",
    "hover",
    "type",
    "clear",
    "press",
    "scroll",
    "new_tab",
    "tab_focus",
    "close_tab",
    "goto",
    "go_back",
    "go_forward",
    "stop",
]
KINDS: tuple[ActionKind, ...] = get_args(ActionKind)

MAX_DIGITS = 18
"""Digits of an element's or a tab's number; Python refuses to convert thousands of them."""


class ActionError(ValueError):
    """A text is no action of the grammar; the message says why."""


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do in the browser; only the fields that `kind` needs are set."""

    kind: ActionKind
    element_id: int | None = None
    """click, hover, type, clear: the number shown beside the element."""
    text: str = ""
    """type: what to type, one line."""
    enter: bool = True
    """type: whether Enter is pressed afterwards."""
    key: str = ""
    """press: a key or a combination such as Control+a."""
    url: str = ""
    """goto."""
    direction: str = ""
    """scroll: up or down."""
    tab: int | None = None
    """tab_focus: which tab, counted from 0."""
    answer: str = ""
    """stop: the answer to the task, empty if it asks for none."""


def parse(text: str, *, strict: bool = True) -> Action:
    """Read one action (the action alone, without its fence).

    Args:
        text: such as `click [12]` or `type [3] [blue kayak] [1]`.
        strict: read as VisualWebArena does, bit for bit; False mends its traps.

    Raises:
        ActionError: `text` is no action.
    """
    return _parse_strict(text.strip()) if strict else _parse_lenient(text)


def extract(reply: str, *, strict: bool = True) -> str:
    """The inside of the first pair of triple backticks in `reply`, stripped.

    With `strict=False` a language tag after the opening fence is dropped, an unclosed fence is
    closed at the end, and without any fence the last line that reads as an action is taken.

    Raises:
        ActionError: there is no such pair.
    """
    _, fence, inside = reply.partition("```")
    inside, closing, _ = inside.partition("```")
    if strict:
        if not closing:
            raise ActionError("no action found: put it between triple backticks, ```click [12]```")
        return inside.strip()
    if not closing:
        _, fence, inside = reply.rstrip("`").partition("```")
    if fence:
        return _without_language_tag(inside.strip())
    for line in reversed(reply.strip().splitlines()):
        line = line.strip().strip("`").strip()
        if _BARE_ACTION.match(line):
            return line
    raise ActionError("no action found: put it between triple backticks, ```click [12]```")


def render(action: Action) -> str:
    """The canonical text of `action`; reading it strictly gives the action back.

    Line breaks cannot be said in this grammar and become spaces; an empty text to type is read
    back by the lenient reading only.
    """
    match action.kind:
        case "click" | "hover" | "clear":
            return f"{action.kind} [{action.element_id}]"
        case "type":
            return f"type [{action.element_id}] [{_one_line(action.text)}] [{int(action.enter)}]"
        case "press":
            return f"press [{_one_line(action.key)}]"
        case "scroll":
            return f"scroll [{action.direction}]"
        case "tab_focus":
            return f"tab_focus [{action.tab}]"
        case "goto":
            return f"goto [{_one_line(action.url)}]"
        case "stop":
            return f"stop [{_one_line(action.answer)}]"
        case _:
            return action.kind


def _one_line(text: str) -> str:
    return text.replace("\n", " ")


def _parse_strict(text: str) -> Action:
    words = text.split()
    if not words:
        raise ActionError("the action is empty")
    verb = text.split("[")[0].strip() if "[" in text else words[0]
    match verb:
        case "click" | "hover" | "clear":
            return Action(verb, element_id=_number(_first_group(rf"{verb} ?\[(\d+)\]", text)))
        case "type":
            if not text.endswith(("[0]", "[1]")):
                text += " [1]"
            found = _search_after(r"type ?\[(\d+)\] ?\[", r"(.+)\] ?\[(\d+)\]", text)
            if not found:
                raise ActionError(f"cannot read {text[:80]!r}; expected: type [id] [text] [0|1]")
            head, rest = found
            # Only the flag 1 adds Enter; a stray other number therefore types without it.
            return Action("type", element_id=_number(head[1]), text=rest[1], enter=rest[2] == "1")
        case "press":
            return Action("press", key=_bracketed("press", text))
        case "scroll":
            return Action("scroll", direction=_first_group(r"scroll ?\[?(up|down)\]?", text))
        case "tab_focus":
            return Action("tab_focus", tab=_number(_first_group(r"tab_focus ?\[(\d+)\]", text)))
        case "goto":
            return Action("goto", url=_bracketed("goto", text))
        case "new_tab" | "close_tab" | "go_back" | "go_forward":
            return Action(verb)
        case "stop":
            found = _search_after(r"stop ?\[", r"(.+)\]", text)
            return Action("stop", answer=found[1][1] if found else "")
    raise ActionError(f"unknown action {verb[:60]!r}; known: {', '.join(KINDS)}")


def _first_group(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    if not found:
        raise _unreadable(text)
    return found[1]


def _bracketed(verb: str, text: str) -> str:
    found = _search_after(rf"{verb} ?\[", r"(.+)\]", text)
    if not found:
        raise _unreadable(text)
    return found[1][1]


def _search_after(head: str, rest: str, text: str) -> tuple[re.Match[str], re.Match[str]] | None:
    """What `re.search(head + rest, text)` would find, in time linear in `text`.

    `rest` begins with `(.+)`, so it stays on its line, and where it does not match behind the first
    head of a line it matches behind no later one: one try per line is enough.
    """
    for line in text.split("\n"):
        begin = re.search(head, line)
        end = begin and re.compile(rest).match(line, begin.end())
        if begin and end:
            return begin, end
    return None


def _unreadable(text: str) -> ActionError:
    return ActionError(f"cannot read the action {text[:80]!r}; expected such as `click [12]`")


def _number(digits: str) -> int:
    """The number of an element or a tab."""
    if len(digits) > MAX_DIGITS:
        raise ActionError(f"no element or tab has a number of {len(digits)} digits")
    return int(digits)


# The other names under which models know the same verbs.
_ALIASES: dict[str, ActionKind] = {
    "go back": "go_back",
    "goback": "go_back",
    "back": "go_back",
    "go forward": "go_forward",
    "goforward": "go_forward",
    "forward": "go_forward",
    "new tab": "new_tab",
    "newtab": "new_tab",
    "close tab": "close_tab",
    "page_close": "close_tab",
    "tab focus": "tab_focus",
    "go to": "goto",
    "go_to": "goto",
    "navigate": "goto",
    "fill": "type",
    "select": "type",
    "answer": "stop",
    "finish": "stop",
}
_VERB = "|".join(sorted([*KINDS, *_ALIASES], key=len, reverse=True))
_LEADING_VERB = re.compile(rf"(?i)({_VERB})(?![a-z_])")
_INNER_VERB = re.compile(rf"(?i)(?<![a-z_])({_VERB}) ?(?=\[)")
_BARE_ACTION = re.compile(
    r"(?i)(click|hover|type|clear|press|goto|tab_focus|stop) ?\[.*\]|"
    r"scroll ?\[?(up|down)\]?$|(new_tab|close_tab|go_back|go_forward)$"
)
_FLAG = re.compile(r"\[\s*+(?:[a-z_]++\s*+=\s*+)?([01])\s*+\]$")
_LANGUAGE_TAG = re.compile(
    r"(?i)(?:[a-z]+)?\s*\n\s*(?=\S)|(?:plaintext|text|action|bash|python)\s+"
)


def _without_language_tag(inside: str) -> str:
    if _LEADING_VERB.match(inside):
        return inside
    return _LANGUAGE_TAG.sub("", inside, count=1) if _LANGUAGE_TAG.match(inside) else inside


def _parse_lenient(text: str) -> Action:
    text = re.sub(r"^(?i:action)\s*:\s*", "", text.strip().strip("`").strip())
    found = _LEADING_VERB.match(text) or _INNER_VERB.search(text)
    if not found:
        raise ActionError(f"no known action in {text[:80]!r}; known: {', '.join(KINDS)}")
    verb = found[1].lower()
    kind = _ALIASES.get(verb) or cast(ActionKind, verb)
    rest = text[found.end() :]
    if rest.endswith("()"):
        rest = rest[:-2]
    match kind:
        case "click" | "hover" | "clear":
            return Action(kind, element_id=_lenient_id(kind, rest)[0])
        case "type":
            return _lenient_type(rest)
        case "press":
            key = normalize(_lenient_argument(rest))
            if not key:
                raise ActionError("press needs a key: press [Enter]")
            return Action("press", key=key)
        case "scroll":
            way = re.search(r"(?i)(up|down)", rest)
            if not way:
                raise ActionError("scroll needs a direction: scroll [down] or scroll [up]")
            return Action("scroll", direction=way[1].lower())
        case "tab_focus":
            return Action("tab_focus", tab=_lenient_id(kind, rest)[0])
        case "goto":
            url = _lenient_argument(rest)
            if not url:
                raise ActionError("goto needs an address: goto [http://...]")
            return Action("goto", url=url)
        case "stop":
            return Action("stop", answer=_lenient_argument(rest))
    return Action(kind)


def _lenient_id(kind: str, rest: str) -> tuple[int, str]:
    """The element's number at the start of `rest`, and what follows it."""
    found = re.match(
        # Possessive: nothing taken here could serve a later part, and giving it back is quadratic.
        r"\s*+[\[(<{]?+\s*+(?:[a-z_]++\s*+[=:]\s*+)?+['\"#]?+(\d++)['\"]?\s*[\])>}]?[,;:]?",
        rest,
    )
    if not found:
        raise ActionError(f"{kind} needs a number: {kind} [12]; found {rest.strip()[:40]!r}")
    return _number(found[1]), rest[found.end() :]


def _lenient_type(rest: str) -> Action:
    element_id, rest = _lenient_id("type", rest)
    rest = rest.strip(" \t\n,")
    if rest.startswith("[") and "]" in rest:
        rest = rest[: rest.rindex("]") + 1]  # words after the last bracket are ignored
    enter = True
    begin = max(0, rest.rfind("["))
    flag = _FLAG.match(rest, begin)
    before = rest[:begin].rstrip().removesuffix(",").rstrip()
    if flag and before:  # `type [5] [1]` types a 1
        enter = flag[1] == "1"
        rest = before
    return Action("type", element_id=element_id, text=_lenient_argument(rest), enter=enter)


def _lenient_argument(rest: str) -> str:
    """What stands in the brackets (greedy to the last one), in quotes, or bare; one line."""
    rest = rest.strip()
    if rest.startswith("["):
        end = rest.rfind("]")
        inside = rest[1:end] if end > 0 else rest[1:]
    elif len(rest) >= 2 and rest[0] in "\"'" and rest[0] == rest[-1]:
        inside = rest[1:-1]
    elif rest.startswith("(") and rest.endswith(")"):
        inside = rest[1:-1].strip("\"'")
    else:
        inside = rest
    # Control characters cannot be typed as keys; upstream breaks on them.
    return re.sub(r"[\x00-\x1f\x7f]+", " ", inside)
