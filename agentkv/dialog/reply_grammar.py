"""The grammar of the replies that a page allows, in llguidance's dialect of Lark.

A constrained reply has some lines of thought and one fenced action. It always parses, every element
number in it is on the page, and its quotations of page and goal are exact (`quotes`).
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from agentkv.dialog.further import WAIT, may_wait
from agentkv.dialog.further import patterns as further_patterns
from agentkv.dialog.prompt import Thoughts
from agentkv.dialog.quotes import SHOWN, TEXT, quotation_rules, text_pattern
from agentkv.dialog.reply import MAX_THOUGHT, described, label
from agentkv_env.page import Node, Page
from agentkv_env.serialize import MAX_NAME, MAX_OPTIONS, neutralize

MAX_TEXT = 120
"""Maximum number of characters in a free string. Without a limit, a small model never closes the
bracket."""
MAX_QUOTED_TEXT = 400
"""Maximum number of characters in a string that consists of quoted passages, such as a list of
eighteen facts. It is longer than `MAX_TEXT` because the passages determine where it ends."""
MAX_URL = 200
"""Maximum number of characters in an address after its scheme."""
MAX_ELEMENT_CHARS = 400_000
"""Characters of the patterns that pair elements with their names, enough for some two thousand
elements. Later elements, in reading order, are identified by number alone."""

TYPEABLE = frozenset(
    {"textbox", "searchbox", "combobox", "listbox", "textarea", "spinbutton", "slider"}
)
"""Roles that accept typed text or the name of an option."""

_UNREACHABLE = frozenset({"disabled", "covered"})
_KEYS = (
    "Enter Escape Tab Backspace Delete Space ArrowDown ArrowUp ArrowLeft ArrowRight "
    "PageDown PageUp Home End"
).split()


def reply_grammar(
    page: Page,
    goal: str,
    *,
    thoughts: Thoughts = "named",
    names_elements: bool = False,
    only_stop: bool = False,
) -> str:
    """Return a Lark grammar of exactly the replies allowed on `page`.

    Text may be typed only into typeable roles; an element with options accepts only these. Disabled
    and covered elements may only be hovered over. Scrolling is allowed only in directions where
    there is more of the page. `MAX_ELEMENT_CHARS`, `quotes.MAX_QUOTABLE` and `quotes.MAX_GOAL`
    bound the grammar's size for every page and goal.

    Args:
        names_elements: free thoughts name an element of the page and are followed by an action on
            it, or are the verb of an action without an element and are followed by that. After any
            other line comes the stop; none begins with a quotation mark, as names do. On a page
            whose elements take more than `MAX_ELEMENT_CHARS`, thoughts stay free.
        only_stop: the only action is the stop.
    """
    if thoughts == "free":
        actions = _STOP if only_stop else _actions(page, page.nodes)
        body = _regex(rf"{_FREE}{{0,{MAX_THOUGHT}}}" + _fenced(actions))
        if names_elements and not only_stop:
            body = _named_lines(page) or body
        return f"start: REPLY\nREPLY: {body}"
    patterns = [] if only_stop else [*_element_patterns(page.nodes), *_page_patterns(page)]
    unquoted = [pattern.thought + _fenced(pattern.action) for pattern in patterns]
    unquoted.append("done" + _fenced(_STOP))
    replies = [_regex("|".join(unquoted)), f"FROM {_regex(_fenced(_STOP))}"]
    replies += [
        f'{_regex(pattern.thought)} "\\n" FROM {_regex(_fenced(pattern.action))}'
        for pattern in patterns
        if pattern.may_quote
    ]
    return f"start: REPLY\nREPLY: FIRST ({' | '.join(replies)})\n{quotation_rules(goal, page)}"


def continuation_grammar(page: Page, goal: str, prefix: str) -> str | None:
    """Return the grammar of the replies that begin with `prefix`, which ends with a `from` line.

    The text typed or answered must consist of everything that the line quotes.

    Returns:
        A Lark grammar of whole replies, or None if every such text is longer than
        `MAX_QUOTED_TEXT`.
    """
    *thoughts, last = prefix.removesuffix("\n").split("\n")
    texts = text_pattern(last.removeprefix("from "), goal, max_chars=MAX_QUOTED_TEXT)
    if texts is None:
        return None
    ids = [
        str(node.id)
        for node in page.nodes
        if node.id is not None and _takes_text(node) and thoughts[-1:] == [f"at {label(node)}"]
    ]
    if ids:
        action = rf'"type [" /{"|".join(ids)}/ "] [" TEXTS "] [" /[01]/ "]"'
    else:
        action = '"stop [" TEXTS "]"'
    return (
        f'start: REPLY\nREPLY: {json.dumps(prefix)} "```" {action} "```"\n'
        f"TEXTS: {_regex(f' ?(?:{texts})')} & /{SHOWN}{{1,{MAX_QUOTED_TEXT}}}/"
    )


def named_grammar(page: Page, line: str, *, names_elements: bool = False) -> str | None:
    """Return the grammar of the replies with free thoughts that begin with `line`, which names an
    element: its name and its role, as `reply.write_free_reply` writes them.

    Their actions on elements begin with one of those that have this name and role.

    Args:
        names_elements: no action without an element follows.

    Returns:
        A Lark grammar of whole replies, or None if the line names no element of the page.
    """
    wanted = line.strip()
    named = [node for node in page.nodes if node.id is not None and described(node) == wanted]
    if not named:
        return None
    actions = "|".join(_actions_on(page, named)) if names_elements else _actions(page, named)
    return f"start: REPLY\nREPLY: {json.dumps(line)} {_regex(_fenced(actions))}"


@dataclass(frozen=True, slots=True)
class _ActionPattern:
    """One thought and the actions that may follow it, as regular expressions."""

    thought: str
    action: str
    may_quote: bool = False
    """True if a `from` line may separate thought and action."""


_STOP = rf"stop \[{TEXT}{{0,{MAX_TEXT}}}\]"
_FREE = r"[^`\x00-\x1f\x7f-\x9f]"
"""Pattern of a character of a free line of thought."""


def _named_lines(page: Page) -> str | None:
    """Return the body of the grammar whose lines name elements or verbs; None if it would be too
    large."""
    named, size = [], 0
    for node in page.nodes:
        if node.id is None:
            continue
        actions = "|".join([_element_action(node), *further_patterns(page, [node])])
        named.append(re.escape(described(node)[:MAX_THOUGHT]) + _fenced(actions))
        size += len(named[-1])
        if size > MAX_ELEMENT_CHARS:
            return None
    verbs = _page_patterns(page)
    if may_wait(page):
        verbs.append(_ActionPattern(WAIT, WAIT))
    named += [each.thought + _fenced(each.action) for each in verbs]
    taken = "|".join([*dict.fromkeys(each.thought for each in verbs), r"'[^\n]*"])
    # a first token may carry a space
    line = _regex(" ?(?:" + "|".join(named) + ")")
    other = f"{_regex(f'{_FREE}{{1,{MAX_THOUGHT}}}')} & ~{_regex(f' *(?:{taken})')}"
    return f"{line} | ({other}) {_regex(_fenced(_STOP))}"


def _actions(page: Page, nodes: Sequence[Node]) -> str:
    """Return a pattern of the actions of replies with free thoughts.

    Args:
        nodes: those of the page that an action on an element may begin with.
    """
    others = [pattern.action for pattern in _page_patterns(page)]
    return "|".join([*_actions_on(page, nodes), *others, *[WAIT] * may_wait(page), _STOP])


def _actions_on(page: Page, nodes: Sequence[Node]) -> list[str]:
    """Return patterns of the actions that begin with one of `nodes`, in replies with free
    thoughts."""
    own = [pattern.action for pattern in _element_patterns(nodes)]
    return [*own, *further_patterns(page, nodes)]


def _element_patterns(nodes: Sequence[Node]) -> list[_ActionPattern]:
    """Return one pattern per element, and up to three for all beyond `MAX_ELEMENT_CHARS`."""
    patterns: list[_ActionPattern] = []
    left = MAX_ELEMENT_CHARS
    numbered: dict[str, list[str]] = {"hover": [], "click|hover": [], "click|hover|clear": []}
    for node in nodes:
        if node.id is None:
            continue
        pattern = _ActionPattern(
            f"at {re.escape(label(node))}", _element_action(node), may_quote=_takes_text(node)
        )
        # A pattern that allows a quotation appears twice in the grammar.
        left -= (1 + pattern.may_quote) * (len(pattern.thought) + len(pattern.action))
        if left >= 0:
            patterns.append(pattern)
        elif not _UNREACHABLE.isdisjoint(node.states):
            numbered["hover"].append(str(node.id))
        elif _takes_text(node):
            numbered["click|hover|clear"].append(str(node.id))
        else:
            numbered["click|hover"].append(str(node.id))
    for verbs, ids in numbered.items():
        if ids:
            number = rf"\[(?:{'|'.join(ids)})\]"
            action = f"(?:{verbs}) {number}"
            if "clear" in verbs:
                action += rf"|type {number} \[{TEXT}{{1,{MAX_TEXT}}}\] \[[01]\]"
            patterns.append(_ActionPattern(rf"at {SHOWN}{{1,{MAX_NAME}}}", action))
    return patterns


def _fenced(action: str) -> str:
    return rf"\n```(?:{action})```"


def _regex(pattern: str) -> str:
    """Return `pattern` as a regex literal of a Lark grammar."""
    return "/" + pattern.replace("/", r"\/") + "/"


def _element_action(node: Node) -> str:
    """Return a pattern of the actions that `node` allows."""
    id = node.id
    if not _UNREACHABLE.isdisjoint(node.states):
        return rf"hover \[{id}\]"
    if node.role == "area":  # a press would hit whatever lies in its middle
        return rf"hover \[{id}\]"
    actions = [rf"(?:click|hover) \[{id}\]"]
    if _takes_text(node):
        text = rf"{TEXT}{{1,{MAX_TEXT}}}"
        actions.append(rf"clear \[{id}\]")
    else:
        text = "|".join(re.escape(neutralize(each)) for each in node.options[:MAX_OPTIONS])
    if text and _is_typeable(node):
        # learned replies begin typed text with a space: `prompt.spaced`
        actions.append(rf"type \[{id}\] \[ ?(?:{text})\] \[[01]\]")
    return "|".join(actions)


def _is_typeable(node: Node) -> bool:
    reachable = _UNREACHABLE.isdisjoint(node.states)
    return reachable and node.role in TYPEABLE and "readonly" not in node.states


def _takes_text(node: Node) -> bool:
    return _is_typeable(node) and not node.options


def _page_patterns(page: Page) -> list[_ActionPattern]:
    """Return the patterns of actions without an element, except the stop."""
    up = ["up"] if page.pixels_above > 0 else []
    down = ["down"] if page.pixels_below > 0 else []
    patterns = [_ActionPattern("scroll", rf"scroll \[{direction}\]") for direction in up + down]
    patterns += [
        _ActionPattern("goto", rf"goto \[https?://[^\[\]`\s\x00-\x1f\x7f-\x9f]{{1,{MAX_URL}}}\]"),
        _ActionPattern(
            "press", rf"press \[(?:(?:Control|Shift|Alt)\+)?(?:{'|'.join(_KEYS)}|[a-z])\]"
        ),
        _ActionPattern("go_back", "go_back"),
        _ActionPattern("go_forward", "go_forward"),
        _ActionPattern("new_tab", "new_tab"),
    ]
    if len(page.tabs) > 1:
        tabs = "|".join(str(tab) for tab in range(len(page.tabs)))
        patterns += [
            _ActionPattern("tab_focus", rf"tab_focus \[(?:{tabs})\]"),
            _ActionPattern("close_tab", "close_tab"),
        ]
    return patterns
