"""Where pages said what an episode types and answers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agentkv.models.scripted import MOST_WORDS_BEFORE
from agentkv_env.actions import Action
from agentkv_env.page import Page
from agentkv_env.serialize import MAX_NAME, neutral

_MOST_LINES_ABOVE = 3
"""From what says what a line is of, such as `Coupon for Office`, to the line."""
_WORD = re.compile(r"[^\W_]{4,}")


@dataclass(frozen=True, slots=True)
class Passage:
    """Where a fact was read."""

    turn: int
    quote: str
    """The line up to the fact's end, behind what says what it is of where the line does not."""
    text: str
    """The fact."""


def needed(
    goal: str, actions: Sequence[Action], pages: Sequence[Page], reads: Sequence[int]
) -> list[list[Passage]]:
    """For each step, where what it types or answers was read; empty where the goal says it.

    Args:
        reads: how much each page was there to be read; the most of those that say it is taken.
    """
    lines = [_lines(page) for page in pages]
    found: list[list[Passage]] = []
    for index, action in enumerate(actions):
        text = neutral(action.answer if action.kind == "stop" else action.text)
        passages = [
            _passage(part, goal, lines[: index + 1], pages, reads)
            for part in _parts(text, goal, lines[: index + 1])
        ]
        found.append([passage for passage in passages if passage is not None])
    return found


def key_of(passage: Passage) -> str:
    """What stands before the fact on its line, without the bar."""
    line = passage.quote.rpartition("; ")[2]
    return line.removesuffix(passage.text).strip(" |:")


def _parts(text: str, goal: str, lines: Sequence[Sequence[str]]) -> list[str]:
    """What of `text` has to be read from pages: all of it, some of several things, some words."""

    def is_said(part: str) -> bool:
        return any(part in line for page in lines for line in page)

    if not text or text.lower() in goal.lower():
        return []
    if is_said(text):
        return [text]
    if ", " in text:
        return [part for part in text.split(", ") if part not in goal]
    words = text.split()
    for count in range(len(words) - 1, 0, -1):
        first, rest = " ".join(words[:count]), " ".join(words[count:])
        if is_said(first) and rest in goal:
            return [first]
    return []


def _lines(page: Page) -> list[str]:
    """What a page says, its texts before its elements' names."""
    texts = [neutral(node.name) for node in page.nodes if node.id is None]
    return [*texts, *(neutral(node.name) for node in page.nodes if node.id is not None)]


def _passage(
    text: str,
    goal: str,
    lines: Sequence[Sequence[str]],
    pages: Sequence[Page],
    reads: Sequence[int],
) -> Passage | None:
    """The page that was there to say `text`: the latest, and behind a key if some page has it so.

    Of pages in a row with one address, the first: what is of use is noted when it is seen.
    """
    whole = re.compile(rf"(?<!\w){re.escape(text)}(?!\w)")
    said = [_line(whole, page) for page in lines]
    index = len(lines) - 1
    if said[index] is None:
        ranked = [
            (reads[index], line != text, index)
            for index, line in enumerate(said)
            if line is not None
        ]
        if not ranked:
            return None
        index = max(ranked)[-1]
        while (
            index
            and reads[index - 1]
            and pages[index - 1].url == pages[index].url
            and said[index - 1] == said[index]
        ):
            index -= 1
    line = said[index] or ""
    return Passage(index, _headed(line, line.removesuffix(text), whole, goal, pages[index]), text)


def _line(whole: re.Pattern[str], lines: Sequence[str]) -> str | None:
    """The first of `lines` that has it behind other words, with those, else it alone."""
    alone = None
    for line in lines:
        match = whole.search(line)
        if match is not None and match.end() <= MAX_NAME:
            if match.start():
                return " ".join([*line[: match.start()].split()[-MOST_WORDS_BEFORE:], match[0]])
            alone = match[0]
    return alone


def _headed(line: str, key: str, whole: re.Pattern[str], goal: str, page: Page) -> str:
    """`line` behind a text shortly before it that has words of the goal, if it needs that.

    It does where it is the fact alone, or its words stand on other lines of the page too.
    """
    names = [neutral(node.name) for node in page.nodes]
    if key and sum(key in name for name in names) == 1:
        return line
    at = next((i for i, name in enumerate(names) if line in name and whole.search(name)), 0)
    above = said_above(page, at, goal)
    return f"{above}; {line}" if above else line


def said_above(page: Page, at: int, goal: str) -> str:
    """The text shortly before the node `at` that has most words of the goal; empty for none."""
    wanted = _words(goal)
    best, found = 0, ""
    for node in page.nodes[max(0, at - _MOST_LINES_ABOVE) : at]:
        name = neutral(node.name)
        shared = len(_words(name) & wanted)
        if (
            shared >= max(best, 1)
            and node.id is None
            and len(name) <= MAX_NAME
            and "; " not in name
        ):
            best, found = shared, name
    return found


def _words(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(text)}
