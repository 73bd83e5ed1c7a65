"""An independent parser of observations that finds every claim made in the harness's name.

It knows the grammar of `agentkv_env.serialize` but shares no code with it. Like a model, it
ignores white space, case and leading punctuation.
"""

import re
from dataclasses import dataclass, field, replace

STATES = (
    "checked|mixed|pressed|selected|current|disabled|readonly|required|password|invalid|expanded"
    "|collapsed|covered|faint|heading|draggable|hover|more above|more below"
)
_MARKED = re.compile(r"(?i)[\W_]*(tabs|notice|error|ocr|cut|same|gone)[\W_]*?:")
_BARE = re.compile(r"(?i)[\W_]*(url|title|goal|objective)(?!\w)")
_MORE = re.compile(r"(?i)[\W_]*more[\W_]+(above|below)(?!\w)")
_NUMBER = re.compile(r"\[\s*(\d+)\s*\]")
_BOX = re.compile(r" @-?\d+,-?\d+,\d+,\d+$")
_ROW = re.compile(r"(?:\[(\d+)\] )?(?:row|columns)(?: |$)")
_ROW_ROLES = "checkbox|radio|textbox|combobox|tab|option|treeitem|menuitem|switch"
_GROUP = rf"\((?:{STATES})(?:, (?:{STATES}))*\)"
_LISTED = re.compile(r' (options|hover shows): \(((?:"[^"]*"|[^"()])*)\)')
_ENTRY = r'(?:"[^"]*"|[^"|][^|]*?|)'
_ENTRIES = rf"({_ENTRY}(?: \| {_ENTRY})*?)"
_ROLE_AND_STATES = rf"(?:(?:{_ROW_ROLES})(?:; )?)?((?:(?:{STATES})(?:; )?)*)"
_DETAILS = re.compile(rf"\({_ROLE_AND_STATES}(?:hover shows: {_ENTRIES})?\)(?: |$)")


@dataclass(frozen=True, slots=True)
class Element:
    """The claims of a line about an element."""

    id: int
    role: str
    """`row` for a row that is an element; empty for a button or link of a row, which says none."""
    has_value: bool
    num_options: int
    """-1 for options that are those of an earlier row."""
    num_revealed: int
    states: tuple[str, ...]


@dataclass(slots=True)
class Claims:
    """All claims of a text in the harness's name."""

    lines: dict[str, list[str]] = field(default_factory=dict)
    """Marker to the texts after it, for lines that begin with a marker."""
    tabs: list[bool] = field(default_factory=list)
    """For each tab, whether it is the current tab."""
    elements: list[Element] = field(default_factory=list)
    num_unnumbered: int = 0
    """Parts of rows that have a role and no number, such as pictures."""
    stray: list[str] = field(default_factory=list)
    """Numbers in brackets outside of lines of elements."""
    fences: int = 0
    """Number of backticks."""


def read(text: str, layout: str) -> Claims:
    """Return the claims of the observation `text`."""
    claims = Claims(fences=text.count("`"))
    for line in text.splitlines():
        if found := _MARKED.match(line) or _BARE.match(line) or _MORE.match(line):
            claims.lines.setdefault(found[1].lower(), []).append(line[found.end() :].strip())
            if found[1].lower() == "tabs":
                tabs = _split(line[found.end() :])
                claims.tabs += [tab.endswith(" (current)") for tab in tabs]
        numbers = _NUMBER.findall(line)
        if layout == "before" and (row := _ROW.match(line)):
            elements, num_unnumbered = _in_row(line, row)
            claims.elements += elements
            claims.num_unnumbered += num_unnumbered
            for each in elements:
                numbers.remove(str(each.id))
            claims.stray += numbers
            continue
        element = _after(line) if layout == "after" else _before(_BOX.sub("", line))
        if element is not None:
            claims.elements.append(element)
            numbers.remove(str(element.id))
        claims.stray += numbers
    return claims


def _split(listed: str) -> list[str]:
    """Split a list at ` | `, where entries may be in double quotes."""
    entries = []
    while True:
        entry = re.match(r'\s*(?:"[^"]*"[^|"]*(?=$|\|)|[^|]*)', listed)
        assert entry is not None
        entries.append(entry[0].strip())
        if entry.end() == len(listed):
            return entries
        listed = listed[entry.end() + 1 :]


def _after(line: str) -> Element | None:
    found = re.fullmatch(r"(\w+)( .*)? \[(\d+)\]", line)
    if not found:
        return None
    role, rest, id = found[1], found[2] or "", int(found[3])
    _, rest = _token(rest, rf" = | \(options: | \(hover shows: | {_GROUP}$")
    has_value = rest.startswith(" = ")
    if has_value:
        _, rest = _token(rest[2:], rf" \(options: | \(hover shows: | {_GROUP}$")
    group = re.search(rf" ({_GROUP})$", rest)
    states = tuple(group[1][1:-1].split(", ")) if group else ()
    rest = rest[: group.start()] if group else rest
    lists = re.fullmatch(rf"(?: \(options: {_ENTRIES}\))?(?: \(hover shows: {_ENTRIES}\))?", rest)
    return Element(id, role, has_value, *_lengths(lists), states)


def _before(line: str) -> Element | None:
    found = re.fullmatch(r"\[(\d+)\] (\w+) (['\"].*)", line)
    if not found:
        return None
    id, role, rest = int(found[1]), found[2], found[3]
    if rest[0] == '"':
        rest = rest[rest.index('"', 1) + 1 :]
    else:
        end = re.search(rf"'(?=$| value: | options: | hover shows: | (?:{STATES})\b)", rest[1:])
        assert end is not None, f"a name without an end: {line!r}"
        rest = rest[1 + end.end() :]
    has_value = rest.startswith(" value: ")
    tail = rf"(?: (?:{STATES}))+$"
    if has_value:
        _, rest = _token(rest[7:], rf" options: | hover shows: |{tail}")
    group = re.search(tail, rest)
    states = tuple(re.findall(STATES, group[0])) if group else ()
    rest = rest[: group.start()] if group else rest
    lists = re.fullmatch(rf"(?: options: {_ENTRIES})?(?: hover shows: {_ENTRIES})?", rest)
    return Element(id, role, has_value, *_lengths(lists), states)


def _in_row(line: str, head: re.Match[str]) -> tuple[list[Element], int]:
    """Return the elements of a row, and the number of its parts with a role and no number."""
    elements, num_unnumbered = [], 0
    rest = line[head.end() :]
    if head[1]:
        details = re.match(_DETAILS, rest)
        states = tuple(re.findall(STATES, details[1])) if details else ()
        num_revealed = 0
        if details:
            num_revealed = 0 if details[2] is None else len(_split(details[2]))
            rest = rest[details.end() :]
        elements.append(Element(int(head[1]), "row", False, 0, num_revealed, states))
    for part in _parts(rest):
        numbered = re.match(r"\[(\d+)\] ", part)
        if not numbered:
            num_unnumbered += bool(re.match(r"\w+ ['\"]", part))
            continue
        if not re.match(r"\w+ ['\"]", part[numbered.end() :]):
            elements.append(Element(int(numbered[1]), "", False, 0, 0, ()))
            continue
        is_above = part.endswith(" options as above")
        listed = re.sub(_LISTED, r" \1: \2", part.removesuffix(" options as above"))
        element = _before(listed)
        assert element is not None, f"not an element: {part!r}"
        elements.append(replace(element, num_options=-1) if is_above else element)
    return elements, num_unnumbered


def _parts(rest: str) -> list[str]:
    """Split the cells of a row at bars and semicolons outside of quotes and of lists."""
    parts, start, at = [], 0, 0
    while at < len(rest):
        begins = at == start
        role = re.match(r"(?:\[\d+\] )?\w+ (?=['\"])", rest[at:]) if begins else None
        at += role.end() if role else 0
        if rest[at] == '"' and (begins or rest[at - 1] in " ("):
            at = rest.index('"', at + 1) + 1 if '"' in rest[at + 1 :] else len(rest)
        elif rest[at] == "'" and role:
            at = rest.index("'", at + 1) + 1
        elif rest[at] == "(" and re.search(r" (?:options|hover shows): $", rest[start:at]):
            at = re.compile(r'(?:"[^"]*"|[^")])*\)').match(rest, at).end()  # type: ignore[union-attr]
        elif found := re.compile(r" ?(?:\||;) ?").match(rest, at):
            parts.append(rest[start:at])
            start = at = found.end()
        else:
            at += 1
    return [*parts, rest[start:]]


def _lengths(lists: re.Match[str] | None) -> tuple[int, int]:
    """Return the lengths of the two lists of a line, 0 for one that is not there."""
    entries = lists.groups() if lists else (None, None)
    options, revealed = (0 if each is None else len(_split(each)) for each in entries)
    return options, revealed


def _token(rest: str, ends: str) -> tuple[str, str]:
    """Return the page's string at the start of `rest`, quoted or bare, and the text after it."""
    quoted = re.match(rf' "([^"]*)"(?=$|{ends})', rest)
    if quoted:
        return quoted[1], rest[quoted.end() :]
    end = re.search(ends, rest)
    cut = end.start() if end else len(rest)
    return rest[:cut], rest[cut:]
