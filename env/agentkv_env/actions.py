"""Conversion between text and actions, in the id grammar of VisualWebArena and beyond it.

Strict parsing accepts exactly what VisualWebArena's own parser accepts, quirks included, so that
scores are comparable. Lenient parsing also accepts common deviations of models: another case,
missing brackets, `Ctrl+v`, a language tag after the fence. And it accepts the actions that
VisualWebArena lacks, in the same form: a verb, then arguments in square brackets (`FORMS`).

Text to type may have several lines, which stand as they are. Other arguments are on one line. An
argument may have brackets, but for `] [`, which separates two arguments.
"""

import re
from dataclasses import dataclass
from typing import Literal, cast, get_args

from agentkv_env.keys import normalize
from agentkv_env.sanitize import original_brackets

VwaKind = Literal[
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
FurtherKind = Literal[
    "append",
    "insert",
    "select_text",
    "choose",
    "double_click",
    "right_click",
    "drag",
    "upload",
    "wait",
]
ActionKind = Literal[VwaKind, FurtherKind]
VWA_KINDS: tuple[VwaKind, ...] = get_args(VwaKind)
"""VisualWebArena's actions."""
FURTHER_KINDS: tuple[FurtherKind, ...] = get_args(FurtherKind)
"""Actions that only lenient parsing knows."""
KINDS: tuple[ActionKind, ...] = (*VWA_KINDS, *FURTHER_KINDS)

Direction = Literal["up", "down", "left", "right"]

FORMS: dict[FurtherKind, str] = {
    "append": "append [12] [text]",
    "insert": "insert [12] [words to put it before] [text]",
    "select_text": "select_text [12] [first words] [last words]",
    "choose": "choose [12] [option] [option]",
    "double_click": "double_click [12]",
    "right_click": "right_click [12]",
    "drag": "drag [12] [15]",
    "upload": "upload [12] [file]",
    "wait": "wait",
}
"""An example of each action that VisualWebArena lacks."""

MAX_DIGITS = 18
"""Maximum digits of an element id or tab index; Python refuses to convert thousands of digits."""


class ActionError(ValueError):
    """The text is not an action of the grammar; the message says why."""


@dataclass(frozen=True, slots=True)
class Point:
    """A point of an element, measured from its top left corner."""

    x: int
    y: int
    unit: Literal["px", "%"] = "px"
    """Pixels, or hundredths of the element's width and height."""


@dataclass(frozen=True, slots=True, repr=False)
class Action:
    """One browser action; only the fields that `kind` needs are set.

    `str` returns its canonical text, such as `click [8]`.
    """

    kind: ActionKind
    element_id: int | None = None
    """The id shown with the element. scroll: the area to scroll or an element in it, or None for
    the page. select_text: None for text that belongs to no element."""
    text: str = ""
    """type, append, insert: the text, which may have line breaks. select_text: the first of the
    words to select; empty selects all of the element."""
    enter: bool = True
    """type: whether to press Enter afterwards."""
    key: str = ""
    """press: a key or a key combination such as Control+a."""
    url: str = ""
    """goto: the address."""
    direction: Direction | Literal[""] = ""
    """scroll: up or down, and in lenient parsing left or right."""
    tab: int | None = None
    """tab_focus: the index of the tab, from 0."""
    answer: str = ""
    """stop: the answer to the task; empty if the task asks for none."""
    point: Point | None = None
    """click, double_click, right_click, hover, drag: where to press; None for the middle."""
    target_id: int | None = None
    """drag: the element to drop on, which may be the same."""
    target_point: Point | None = None
    """drag: where on it; None for the middle."""
    before: str = ""
    """insert: words of the field that the text is put before; empty for the cursor."""
    last: str = ""
    """select_text: the last of the words to select; empty selects just `text`."""
    items: tuple[str, ...] = ()
    """choose: the options; all others are deselected. upload: names of files."""

    @property
    def only_looks(self) -> bool:
        """True if the action shows more of the tabs and asks the page to change nothing."""
        return self.kind in _LOOKING

    def __str__(self) -> str:
        return render(self)

    def __repr__(self) -> str:
        text = render(self)
        return f"<Action {text if len(text) <= _LONGEST else text[:_LONGEST] + '...'}>"


_LONGEST = 80
"""Characters of an action that `repr` shows."""
_LOOKING = frozenset(
    ("scroll", "hover", "wait", "select_text", "new_tab", "tab_focus", "go_back", "go_forward")
)


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
    """Return the canonical text of `action`; parsing it returns the action.

    Strict parsing does so for VisualWebArena's actions, except an empty text to type, or one with
    line breaks. Elsewhere line breaks become spaces, and the brackets of an argument become
    round if they would separate two arguments.
    """
    first = f"{action.kind} [{action.element_id}]"
    match action.kind:
        case "click" | "hover" | "double_click" | "right_click":
            return first + _place(action.point)
        case "clear":
            return first
        case "type":
            return f"{first} [{action.text}] [{int(action.enter)}]"
        case "append":
            return f"{first} [{action.text}]"
        case "insert":
            return f"{first} [{_argument(action.before)}] [{action.text}]"
        case "select_text":
            area = "" if action.element_id is None else action.element_id
            words = [f" [{_argument(each)}]" for each in (action.text, action.last) if each]
            return "".join([f"select_text [{area}]", *words])
        case "choose" | "upload":
            return first + "".join(f" [{_argument(each)}]" for each in action.items or ("",))
        case "drag":
            target = f" [{action.target_id}]{_place(action.target_point)}"
            return first + _place(action.point) + target
        case "press":
            return f"press [{_one_line(action.key)}]"
        case "scroll":
            area = "" if action.element_id is None else f" [{action.element_id}]"
            return f"scroll [{action.direction}]{area}"
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


def _argument(text: str) -> str:
    text = _one_line(text)
    return text.translate(_ROUND) if _BETWEEN.search(text) else text


_BETWEEN = re.compile(r"\]\s*+(?:,\s*+)?\[")
"""Pattern of what stands between two arguments."""
_ROUND = str.maketrans("[]", "()")


def _place(point: Point | None) -> str:
    if point is None:
        return ""
    unit = "%" if point.unit == "%" else ""
    return f" [{point.x}{unit},{point.y}{unit}]"


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
            way = _first_group(r"scroll ?\[?(up|down)\]?", text)
            return Action("scroll", direction=cast(Direction, way))
        case "tab_focus":
            return Action("tab_focus", tab=_number(_first_group(r"tab_focus ?\[(\d+)\]", text)))
        case "goto":
            return Action("goto", url=_bracketed("goto", text))
        case "new_tab" | "close_tab" | "go_back" | "go_forward":
            return Action(verb)
        case "stop":
            found = _search_after(r"stop ?\[", r"(.+)\]", text)
            return Action("stop", answer=found[1][1] if found else "")
    raise ActionError(f"unknown action {verb[:60]!r}; known: {', '.join(VWA_KINDS)}")


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
    "dblclick": "double_click",
    "double click": "double_click",
    "right click": "right_click",
    "select text": "select_text",
    "drag_and_drop": "drag",
    "upload_file": "upload",
}
_VERB = "|".join(sorted([*KINDS, *_ALIASES], key=len, reverse=True))
_FURTHER_VERB = "|".join([*FURTHER_KINDS, *(k for k in _ALIASES if _ALIASES[k] in FURTHER_KINDS)])
# Words such as "wait" and "insert" also begin sentences.
_LEADING_VERB = re.compile(rf"(?i)(?!(?:{_FURTHER_VERB})\s*[^\s\[(<{{\d])({_VERB})(?![a-z_])")
_INNER_VERB = re.compile(rf"(?i)(?<![a-z_])({_VERB}) ?(?=\[)")
_BARE_ACTION = re.compile(
    rf"(?i)(click|hover|type|clear|press|goto|tab_focus|stop|{_FURTHER_VERB}) ?\[.*\]|"
    r"scroll ?\[?(up|down|left|right)\]?( ?\[\d+\])?$|(new_tab|close_tab|go_back|go_forward|wait)$"
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
        case "click" | "hover" | "double_click" | "right_click":
            element_id, rest = _lenient_id(kind, rest)
            return Action(kind, element_id=element_id, point=_lenient_point(rest)[0])
        case "clear":
            return Action(kind, element_id=_lenient_id(kind, rest)[0])
        case "type":
            return _lenient_type(rest)
        case "append" | "insert":
            return _lenient_addition(kind, rest)
        case "select_text":
            area_id = None
            if re.match(r"\s*+(?:\[\s*+)?\d++\s*+(?:\]|$)", rest):
                area_id, rest = _lenient_id(kind, rest)
            text, last, *_ = (*_lenient_list(rest), "", "")
            if area_id is None and not text:
                raise _expected(kind)
            return Action(kind, element_id=area_id, text=text, last=last)
        case "choose" | "upload":
            element_id, rest = _lenient_id(kind, rest)
            if kind == "upload" and rest.strip(" \t\n,")[:1] not in ("[", "(", '"', "'"):
                raise _expected(kind)  # a sentence may have the word
            items = _lenient_list(rest)
            if not items and (kind == "upload" or not rest.strip()):
                raise _expected(kind)
            return Action(kind, element_id=element_id, items=items)
        case "drag":
            return _lenient_drag(rest)
        case "press":
            key = normalize(_lenient_argument(rest))
            if not key:
                raise ActionError("press needs a key: press [Enter]")
            return Action("press", key=key)
        case "scroll":
            way = re.search(r"(?i)(up|down|left|right)", rest)
            if not way:
                raise ActionError("scroll needs a direction: scroll [down] or scroll [up]")
            area = re.match(r"[\])]?[\s,]*\[(\d+)\]", rest[way.end() :])
            return Action(
                "scroll",
                direction=cast(Direction, way[1].lower()),
                element_id=_number(area[1]) if area else None,
            )
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


_POINT = re.compile(
    r"[\s,]*+[\[(]\s*+(-?\d{1,5})(?:\.\d*+)?\s*+(%|px)?+\s*+[,;]\s*+"
    r"(-?\d{1,5})(?:\.\d*+)?\s*+(%|px)?+\s*+[\])]"
)


_LIKE_POINT = re.compile(r"[\s,]*+[\[(]\s*+-?[\d.][^\[\]()]*[,;]")


def _lenient_point(rest: str) -> tuple[Point | None, str]:
    """Return the point at the start of `rest`, if any, and the text after it."""
    found = _POINT.match(rest)
    if not found:
        if _LIKE_POINT.match(rest):
            raise ActionError(
                f"cannot read the point {rest.strip()[:40]!r}; expected one such as [30%,40%]"
            )
        return None, rest
    unit: Literal["px", "%"] = "%" if "%" in (found[2], found[4]) else "px"
    return Point(int(found[1]), int(found[3]), unit), rest[found.end() :]


def _lenient_drag(rest: str) -> Action:
    element_id, rest = _lenient_id("drag", rest)
    point, rest = _lenient_point(rest)
    rest = re.sub(r"^[\s,]*+(?:on)?(?:to\b)?", "", rest)
    target_point, after = _lenient_point(rest)
    if target_point is not None:  # `drag [12] [0,0] [9,9]` stays on the element
        target_id = element_id
    elif re.match(r"\s*+[\[(<{]?\s*+['\"#]?\d", rest):
        target_id, after = _lenient_id("drag", rest)
        target_point, after = _lenient_point(after)
    else:
        raise _expected("drag")
    return Action(
        "drag",
        element_id=element_id,
        point=point,
        target_id=target_id,
        target_point=target_point,
    )


def _lenient_addition(kind: Literal["append", "insert"], rest: str) -> Action:
    """Read the arguments of append or insert. An insert without words is at the cursor."""
    element_id, rest = _lenient_id(kind, rest)
    rest = rest.strip(" \t\n,")
    before = ""
    if kind == "insert" and (found := _BETWEEN.search(rest)) and rest[0] == "[":
        before, rest = rest[1 : found.start()], rest[found.end() - 1 :]
    text = _lenient_argument(rest, lines=True)
    if not text:
        raise _expected(kind)
    return Action(kind, element_id=element_id, text=text, before=_CONTROL.sub(" ", before))


def _lenient_list(rest: str) -> tuple[str, ...]:
    """Return the arguments in brackets, without empty ones; without brackets, the only one."""
    return tuple(part for part in _BETWEEN.split(_lenient_argument(rest)) if part)


def _expected(kind: FurtherKind) -> ActionError:
    return ActionError(f"{kind} lacks an argument; expected: {FORMS[kind]}")


_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")
_CONTROL_IN_LINE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]+")


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
    text = _lenient_argument(rest, lines=True)
    return Action("type", element_id=element_id, text=text, enter=enter)


def _lenient_argument(rest: str, *, lines: bool = False) -> str:
    """Return the argument: bracketed (up to the last bracket), quoted or bare.

    Line breaks become spaces, or with `lines`, only other control characters do.
    """
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
    return typeable(inside) if lines else _CONTROL.sub(" ", original_brackets(inside))


def typeable(text: str) -> str:
    """Return `text`, which may quote an observation, as it can be typed.

    The page's own brackets come back, line breaks stay, and other control characters, which no key
    types, become spaces.
    """
    return _CONTROL_IN_LINE.sub(" ", re.sub(r"\r\n?", "\n", original_brackets(text)))
