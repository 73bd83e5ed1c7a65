"""What a thought may quote of goal and page: word for word, so that nothing of it is made up.

A reply may begin with lines like these, which the terminals here admit:

    read Bribury: Founded | 1241      some words of the goal, and a part of one line of the page
    for Bribury, Mirdal | , Elford    a part of the goal, and the few words that follow it there

and before what it types or answers it may say where that was read:

    from Founded | 1167; Bribury: Founded | 1241; Backpack

A part of a line of this page; or, behind some words of the goal, anything: that was noted on
another page, and to remember it is the model's part, not the grammar's; or words of the goal alone.
What is typed or answered then is the ends of these, in this order (`texts_made_of`).

A small model that copies jumps to another place where both go on alike (`, the `): it leaves out a
thing of several, or makes a number of two. Held to goal and page it goes on where it is.
"""

import json
import re
from collections.abc import Sequence
from itertools import islice, pairwise

from agentkv_env.page import Page
from agentkv_env.serialize import neutralize

MAX_NOTES = 3
"""Lines that begin with `read`, of one reply."""
MAX_QUOTE = 400
"""Characters of a line that may be quoted."""
ITEM_WORDS = 4
"""Of the goal, in front of what was read of it."""
LEAD_WORDS = 6
"""Of a line, quoted in front of what is wanted of it; enough to tell which line it is."""
WORDS_AHEAD = 4
"""Of the goal, quoted behind the part that is begun: whether more is to do is seen there."""
MAX_GOAL = 20_000
"""Characters at the beginning of the goal that may be quoted."""
MAX_GOAL_WORDS = 512
"""Words and signs at the beginning of the goal that may be quoted: each is a level of the grammar,
and llguidance overflows the stack of a process at some 1,800 levels."""
MAX_QUOTABLE = 100_000
"""Characters of a page that may be quoted, those first in reading order: many times what the
default `observation_tokens` shows of one."""
TEXT = r"[^\[\]`\x00-\x1f\x7f-\x9f]"
"""A character that `neutralize` leaves as it is."""

_REMEMBERED = TEXT.replace("[^", "[^;")
"""What was noted ends where the next begins."""
_MAX_PASSAGES = 16
_PIECE = re.compile(r" \| (?:\w+|\S)|\w+|\W")
"""Where a quotation may begin or end; not at a bar, which tells what is behind it from its key."""
_WORD = re.compile(r"\w+|[^\w\s]")


def quotations(goal: str, page: Page) -> str:
    """Terminals of a Lark grammar (llguidance's dialect) for an agent with this `goal`.

    `FIRST` is what may stand before any other thought: up to `MAX_NOTES` notes and the part of the
    goal that is begun, each ended by a line break; it may be empty. `FROM` is one quotation or
    several, without a line break. Other terminals begin with `Q_`.
    """
    goal = _beginning(neutralize(goal))
    rules = [*_line_of(page), *_part_of(goal)]
    if goal:
        rules += [
            f"Q_GOAL: {_words_of([goal])} & /{TEXT}{{1,{MAX_QUOTE}}}/",
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


def _beginning(goal: str) -> str:
    """The part of `goal` that is short enough to be quoted; nearly always all of it."""
    goal = goal[:MAX_GOAL]
    beyond = next(islice(_WORD.finditer(goal), MAX_GOAL_WORDS, None), None)
    return goal.rstrip() if beyond is None else goal[: beyond.start()].rstrip()


def _line_of(page: Page) -> list[str]:
    """`Q_LINE`: some words that follow each other in what one node of `page` says."""
    lines = dict.fromkeys(neutralize(node.name) for node in page.nodes)
    said, left = [], MAX_QUOTABLE
    for line in filter(None, lines):
        if left <= 0:
            break
        said.append(line[:left])
        left -= len(line)
    said = said or ["nothing"]
    return [f"Q_PAGE: {_words_of(said)}", f"Q_LINE: Q_PAGE & /{TEXT}{{1,{MAX_QUOTE}}}/"]


def _words_of(lines: Sequence[str]) -> str:
    """Any words that follow each other in `lines`, with a line break between two of those."""
    pieces = [piece for line in lines for piece in [*_PIECE.findall(line), "\n"]]
    return f'%regex {{ "substring_chunks": {json.dumps(pieces)} }}'


def _part_of(goal: str) -> list[str]:
    """`Q_FOR`: from any word of `goal` to any later one, a bar, and what follows that one.

    One terminal for each word, which goes on with the next one's, so that the grammar grows with
    the goal and not with its square.
    """
    words = list(_WORD.finditer(goal))
    rules = []
    for index in reversed(range(len(words))):
        word, end = words[index][0], words[index].end()
        ahead = " ".join(goal[end:].split()[:WORDS_AHEAD])
        ways = json.dumps(f" | {ahead}".rstrip())
        if index + 1 < len(words):
            gap = goal[end : words[index + 1].start()]
            # Before a bar that ends the goal both ways read alike, and llguidance panics at that.
            if (gap, goal[words[index + 1].start() :]) != (" ", "|"):
                ways = f"({ways} | {json.dumps(gap)} Q_FROM_{index + 1})"
        rules.append(f"Q_FROM_{index}: {json.dumps(word)} {ways}")
    begins = " | ".join(f"Q_FROM_{index}" for index in range(len(words)))
    rules.append(f'Q_FOR: "for " ({begins}) "\\n"' if words else 'Q_FOR: ""')
    return rules


def quoted_to(line: str, start: int, end: int) -> str:
    """The part of `line` from `LEAD_WORDS` words before `start` to `end`, with a key or two more
    where it could not begin otherwise."""
    words = list(re.finditer(r"\S+", line[:start]))
    first = max(0, len(words) - LEAD_WORDS)
    while first and "|" in (words[first][0], words[first - 1][0]):
        first -= 1
    return line[words[first].start() if words else start : end]


def texts_made_of(quotation: str, goal: str, *, most: int) -> str | None:
    """A regular expression of the texts that may follow a `from` line with this `quotation`.

    The ends of all passages in their order, from the beginning of any word, with commas between, or
    a space before words of the goal. Where goal or page has a semicolon a passage looks like two:
    one that the goal says may be left out, unless it is the last. None where no text of at most
    `most` characters is of that kind.
    """
    goal = neutralize(goal)
    made, shortest, between = "", 0, ""
    for passage in reversed([part.strip() for part in quotation.split("; ")]):
        begins = [
            match.start()
            for match in re.finditer(r"(?<!\w)\S", passage)
            if len(passage) - match.start() <= most
        ]
        if not begins:
            return None
        end = ""
        for start, stop in pairwise([*begins, len(passage)]):
            end = (f"(?:{end})?" if end else "") + re.escape(passage[start:stop])
        if made and passage in goal:
            made = f"(?:{end}{between})?{made}"
        else:
            made = end + between + made
            shortest += len(passage) - begins[-1] + (2 if between else 0)
        between = "[,;]? " if passage in goal else "[,;] "
    return made if shortest <= most else None
