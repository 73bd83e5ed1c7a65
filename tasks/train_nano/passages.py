"""Where the texts that an episode types and answers were read: page and line, or the goal."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agentkv.dialog.quotes import quote_up_to
from agentkv_env.actions import Action
from agentkv_env.page import Page
from agentkv_env.serialize import MAX_NAME, neutralize


@dataclass(frozen=True, slots=True)
class Passage:
    """Where a fact was read: on the page of `turn`, or in the goal, which is none."""

    turn: int | None
    line: str


def needed_by(
    goal: str, actions: Sequence[Action], pages: Sequence[Page], reads: Sequence[int]
) -> list[list[Passage]]:
    """For each step, where what it types or answers was read; empty where the goal says it all, or
    where some of it was not read.

    Args:
        reads: how much each page was there to be read; of several that say a thing, the most.
    """
    lines = [_lines(page) for page in pages]
    needed: list[list[Passage]] = []
    for index, action in enumerate(actions):
        text = neutralize(action.answer if action.kind == "stop" else action.text)
        passages = [
            Passage(None, part)
            if part in goal
            else _passage(part, lines[: index + 1], pages, reads)
            for part in _parts(text, goal, lines[: index + 1])
        ]
        found = [passage for passage in passages if passage is not None]
        needed.append(found if len(found) == len(passages) else [])
    return needed


def _parts(text: str, goal: str, lines: Sequence[Sequence[str]]) -> list[str]:
    """What `text` is made of: itself, several things, or what is read and what the goal says.

    Empty where the goal says all of it.
    """

    def is_said(part: str) -> bool:
        return any(part in line for page in lines for line in page)

    if not text or text.lower() in goal.lower():
        return []
    if is_said(text):
        return [text]
    if ", " in text:
        return text.split(", ")
    words = text.split()
    for count in range(len(words) - 1, 0, -1):
        first, rest = " ".join(words[:count]), " ".join(words[count:])
        if is_said(first) and rest in goal:
            return [first, rest]
    return []


def _lines(page: Page) -> list[str]:
    """What a page says, its texts before its elements' names."""
    texts = [neutralize(node.name) for node in page.nodes if node.id is None]
    return [*texts, *(neutralize(node.name) for node in page.nodes if node.id is not None)]


def _passage(
    text: str, lines: Sequence[Sequence[str]], pages: Sequence[Page], reads: Sequence[int]
) -> Passage | None:
    """The page that was there to say `text`: the latest, and behind a key if some page has it so.

    Of pages in a row with one address, the first: what is of use is noted when it is seen.
    """
    whole = re.compile(rf"(?<!\w){re.escape(text)}(?!\w)")
    said = [_line(whole, page) for page in lines]
    latest = len(lines) - 1
    if said[latest] is not None:
        return Passage(latest, said[latest] or "")
    ranked = [
        (reads[index], line != text, index) for index, line in enumerate(said) if line is not None
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
    return Passage(index, said[index] or "")


def _line(whole: re.Pattern[str], lines: Sequence[str]) -> str | None:
    """The first of `lines` that has it behind other words, with those, else it alone."""
    alone = None
    for line in lines:
        match = whole.search(line)
        if match is not None and match.end() <= MAX_NAME:
            if match.start():
                return quote_up_to(line, *match.span())
            alone = match[0]
    return alone
