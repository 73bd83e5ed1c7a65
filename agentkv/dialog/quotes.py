"""Grammar rules for the quotations in a reply, which copy goal and page word for word.

A reply may begin with lines such as these. The grammar admits only text that goal and page contain:

    read Bribury: Founded | 1241      words of the goal, then part of one line of the page
    for Bribury, Mirdal | , Elford    part of the goal, then the words that follow it there

Before the text that an action types or answers, the reply may name its source:

    from Founded | 1167; Bribury: Founded | 1241; Backpack

Each passage is part of a line of this page, words of the goal, or words of the goal followed by any
text. The last form refers to a note on an earlier page, which the grammar cannot check. The text
typed or answered must then consist of the ends of these passages, in order (`text_pattern`).

The reason: when a small model copies and two places continue alike (`, the `), it may jump from one
to the other and so omit an item of a list or merge two numbers. The grammar prevents such jumps.
"""

import json
import re
from collections.abc import Sequence
from itertools import islice, pairwise

from agentkv_env.page import Page
from agentkv_env.serialize import neutralize

# The limits below are our choice.
MAX_NOTES = 3
"""Maximum number of `read` lines in one reply."""
MAX_QUOTE = 400
"""Maximum number of characters in one quotation."""
ITEM_WORDS = 4
"""Maximum number of words of the goal before a quotation of the page."""
LEAD_WORDS = 6
"""Words of a line quoted before the wanted text; enough to identify the line."""
WORDS_AHEAD = 4
"""Words of the goal quoted after the part in progress; they show whether anything is left to do."""
MAX_GOAL = 20_000
"""Number of characters, from the beginning of the goal, that may be quoted."""
MAX_GOAL_WORDS = 512
"""Number of words and punctuation marks, from the beginning of the goal, that may be quoted. Each
is a level of the grammar, and llguidance overflows the process's stack at some 1,800 levels."""
MAX_QUOTABLE = 100_000
"""Number of characters of a page, in reading order, that may be quoted: many times more than the
default `observation_tokens` shows."""
SHOWN = r"[^`\x00-\x1f\x7f-\x9f]"
"""Pattern of one character that `neutralize` leaves unchanged."""
TEXT = r"[^\[\]`\x00-\x1f\x7f-\x9f]"
"""Pattern of one character of free text. It has no brackets, because a small model that may write
them in an argument does not close the argument."""

_REMEMBERED = TEXT.replace("[^", "[^;")
"""Pattern of one character of a remembered note; a semicolon separates passages."""
_MAX_PASSAGES = 24
_CHUNK = re.compile(r" \| (?:\w+|\S)|\w+|\W")
"""The units of a quotation. None ends at the bar between a key and its value."""
_WORD = re.compile(r"\w+|[^\w\s]")


def quotation_rules(goal: str, page: Page) -> str:
    """Return terminals of a Lark grammar (llguidance's dialect) for quotations of goal and page.

    `FIRST` matches what may precede any other thought: up to `MAX_NOTES` notes and the part of the
    goal in progress, each ended by a line break, or nothing. `FROM` matches a `from` line without
    its line break. All other terminals begin with `Q_`.
    """
    goal = _quotable_goal(neutralize(goal))
    rules = [*_line_rules(page), *_goal_rules(goal)]
    if goal:
        rules += [
            f"Q_GOAL: {_substring_regex([goal])} & /{SHOWN}{{1,{MAX_QUOTE}}}/",
            rf"Q_ITEM: Q_GOAL & /[^ ]+( [^ ]+){{0,{ITEM_WORDS - 1}}}/",
            f"Q_REMEMBERED: Q_GOAL (/: {_REMEMBERED}{{1,{MAX_QUOTE}}}/)?",
            'Q_READ: "read " (Q_ITEM ": ")? Q_LINE "\\n"',
            "Q_PASSAGE: Q_LINE | Q_REMEMBERED",
        ]
    else:
        rules += ['Q_READ: "read " Q_LINE "\\n"', "Q_PASSAGE: Q_LINE"]
    rules += [
        f"FIRST: Q_READ{{0,{MAX_NOTES}}} Q_FOR?",
        f'FROM: "from " Q_PASSAGE ("; " Q_PASSAGE){{0,{_MAX_PASSAGES - 1}}}',
    ]
    return "\n".join(rules)


def _quotable_goal(goal: str) -> str:
    """Return the beginning of `goal` within both limits; usually all of it."""
    goal = goal[:MAX_GOAL]
    beyond = next(islice(_WORD.finditer(goal), MAX_GOAL_WORDS, None), None)
    return goal.rstrip() if beyond is None else goal[: beyond.start()].rstrip()


def _line_rules(page: Page) -> list[str]:
    """Return the rules of `Q_LINE`: consecutive words of one node's text."""
    lines = dict.fromkeys(neutralize(node.name) for node in page.nodes)
    quotable, left = [], MAX_QUOTABLE
    for line in filter(None, lines):
        if left <= 0:
            break
        quotable.append(line[:left])
        left -= len(line)
    quotable = quotable or ["nothing"]
    return [f"Q_PAGE: {_substring_regex(quotable)}", f"Q_LINE: Q_PAGE & /{SHOWN}{{1,{MAX_QUOTE}}}/"]


def _substring_regex(lines: Sequence[str]) -> str:
    """Return a regex of any consecutive words of `lines`; a line break separates the lines."""
    chunks = [chunk for line in lines for chunk in [*_CHUNK.findall(line), "\n"]]
    return f'%regex {{ "substring_chunks": {json.dumps(chunks)} }}'


def _goal_rules(goal: str) -> list[str]:
    """Return the rules of `Q_FOR`: part of `goal`, a bar, and the words that follow the part.

    Each word has one terminal, which continues with the next word's terminal. The grammar therefore
    grows linearly with the goal rather than quadratically.
    """
    words = list(_WORD.finditer(goal))
    rules = []
    for index in reversed(range(len(words))):
        word, end = words[index][0], words[index].end()
        ahead = " ".join(goal[end:].split()[:WORDS_AHEAD])
        endings = json.dumps(f" | {ahead}".rstrip())
        if index + 1 < len(words):
            gap = goal[end : words[index + 1].start()]
            # Before a bar that ends the goal, both alternatives are the same text, and llguidance
            # panics on such a grammar.
            if (gap, goal[words[index + 1].start() :]) != (" ", "|"):
                endings = f"({endings} | {json.dumps(gap)} Q_FROM_{index + 1})"
        rules.append(f"Q_FROM_{index}: {json.dumps(word)} {endings}")
    starts = " | ".join(f"Q_FROM_{index}" for index in range(len(words)))
    rules.append(f'Q_FOR: "for " ({starts}) "\\n"' if words else 'Q_FOR: ""')
    return rules


def quote_up_to(line: str, start: int, end: int) -> str:
    """Return `line[start:end]` with up to `LEAD_WORDS` words before it.

    Adds further words if the quotation would otherwise begin at a bar.
    """
    words = list(re.finditer(r"\S+", line[:start]))
    first = max(0, len(words) - LEAD_WORDS)
    while first and "|" in (words[first][0], words[first - 1][0]):
        first -= 1
    return line[words[first].start() if words else start : end]


def text_pattern(quotation: str, goal: str, *, max_chars: int) -> str | None:
    """Return a regular expression for the texts that may follow a `from` line with `quotation`.

    A text consists of the ends of all passages in order, each from the beginning of any word,
    separated by commas, or by a space before words of the goal. A passage with a semicolon in it
    reads as two; a passage that the goal contains may therefore be omitted, unless it is the last.

    Returns:
        The pattern, or None if every such text is longer than `max_chars`.
    """
    goal = neutralize(goal)
    pattern, min_chars, separator = "", 0, ""
    for passage in reversed([part.strip() for part in quotation.split("; ")]):
        starts = [
            match.start()
            for match in re.finditer(r"(?<!\w)\S", passage)
            if len(passage) - match.start() <= max_chars
        ]
        if not starts:
            return None
        ending = _endings([passage[a:b] for a, b in pairwise([*starts, len(passage)])])
        if pattern and passage in goal:
            pattern = f"(?:{ending}{separator})?{pattern}"
        else:
            pattern = ending + separator + pattern
            min_chars += len(passage) - starts[-1] + (2 if separator else 0)
        separator = "[,;]? " if passage in goal else "[,;] "
    return pattern if min_chars <= max_chars else None


def _endings(parts: Sequence[str]) -> str:
    """Return a regular expression for the ends of a text, from the beginning of any of its parts.

    Halving keeps it flat: llguidance refuses an expression that nests as deeply as a long text has
    words.
    """
    if len(parts) == 1:
        return re.escape(parts[0])
    middle = len(parts) // 2
    first, second = parts[:middle], parts[middle:]
    return f"(?:{_endings(first)}{re.escape(''.join(second))}|{_endings(second)})"
