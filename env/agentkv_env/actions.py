"""Conversion between text and actions, in the id grammar of VisualWebArena.

Strict parsing accepts exactly what VisualWebArena's own parser accepts, quirks included, so that
scores are comparable. Lenient parsing also accepts common deviations of models: another case,
missing brackets, `Ctrl+v`, a language tag after the fence.
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
"""Maximum digits of an element id or tab index; Python refuses to convert thousands of digits."""


class ActionError(ValueError):
    """The text is not an action of the grammar; the message says why."""


@dataclass(frozen=True, slots=True)
class Action:
    """One browser action; only the fields that `kind` needs are set."""

    kind: ActionKind
    element_id: int | None = None
    """click, hover, type, clear: the id shown with the element."""
    text: str = ""
    """type: the text, one line."""
    enter: bool = True
    """type: whether to press Enter afterwards."""
    key: str = ""
    """press: a key or a key combination such as Control+a."""
    url: str = ""
    """goto: the address."""
    direction: str = ""
    """scroll: up or down."""
    tab: int | None = None
    """tab_focus: the index of the tab, from 0."""
    answer: str = ""
    """stop: the answer to the task; empty if the task asks for none."""


def parse(text: str, *, strict: bool = True) -> Action:
    """Parse one action, given without its fence.

    Args:
        text: for example `click [12]` or `type [3] [blue kayak] [1]`.
        strict: parse exactly as VisualWebArena does; False also accepts common deviations.

    Raises:
        ActionError: `text` is not an action.
    """
    return _parse_strict(text.strip()) if strict else _parse_lenient(text)


def extract(reply: str, *, strict: bool = True) -> str:
    """Return the text between the first pair of triple backticks in `reply`, stripped.

    With `strict=False`, a language tag after the opening fence is dropped and an unclosed fence
    ends at the end of the reply. Without a fence, the last line that parses as an action is used.

    Raises:
        ActionError: `reply` has no such text.
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
    """Return the canonical text of `action`; parsing it strictly returns the action.

    Line breaks cannot be written in this grammar and become spaces. Only the lenient parser reads
    back an empty text to type.
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
            # As in VisualWebArena, any flag other than 1 types without Enter.
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
    """Return the matches of `re.search(head + rest, text)`, in time linear in `text`.

    `rest` begins with `(.+)`, so a match stays on one line. If `rest` does not match after the
    first `head` of a line, it matches after no later one, so one attempt per line is enough.
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
    """Convert the id of an element or the index of a tab."""
    if len(digits) > MAX_DIGITS:
        raise ActionError(f"no element or tab has a number of {len(digits)} digits")
    return int(digits)


# Other names that models use for these actions.
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
    """Return the element id at the start of `rest` and the text after it."""
    found = re.match(
        # Possessive quantifiers: backtracking could never help here and would be quadratic.
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
    """Return the argument: bracketed (up to the last bracket), quoted or bare; on one line."""
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
    # Control characters cannot be typed as keys; VisualWebArena fails on them.
    return re.sub(r"[\x00-\x1f\x7f]+", " ", inside)
