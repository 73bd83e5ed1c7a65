"""Search for the source of each typed or answered text: a line of a page, or the goal."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agentkv.dialog.quotes import quote_up_to
from agentkv_env.actions import Action
from agentkv_env.page import Page
from agentkv_env.serialize import MAX_NAME, neutralize


@dataclass(frozen=True, slots=True)
class Passage:
    """Source of a fact: a line on the page of `turn`, or part of the goal if `turn` is None."""

    turn: int | None
    line: str


def find_passages(
    goal: str, actions: Sequence[Action], pages: Sequence[Page], reads: Sequence[int]
) -> list[list[Passage]]:
    """Find the sources of the text that each step types or answers.

    A step has no passages if the goal contains its whole text or if a part has no source.

    Args:
        reads: how likely each page was opened to be read. The highest rating decides between
            several pages with the same text.
    """
    lines = [_page_lines(page) for page in pages]
    needed: list[list[Passage]] = []
    for index, action in enumerate(actions):
        text = neutralize(action.answer if action.kind == "stop" else action.text)
        passages = [
            Passage(None, part)
            if part in goal
            else _find_passage(part, lines[: index + 1], pages, reads)
            for part in _split_text(text, goal, lines[: index + 1])
        ]
        found = [passage for passage in passages if passage is not None]
        needed.append(found if len(found) == len(passages) else [])
    return needed


def _split_text(text: str, goal: str, lines: Sequence[Sequence[str]]) -> list[str]:
    """Split `text` into parts with one source each; empty if the goal contains all of it.

    The parts are `text` itself, the items of a list, or a text of a page and a text of the goal.
    """

    def is_on_page(part: str) -> bool:
        return any(part in line for page in lines for line in page)

    if not text or text.lower() in goal.lower():
        return []
    if is_on_page(text):
        return [text]
    if ", " in text:
        return text.split(", ")
    words = text.split()
    for count in range(len(words) - 1, 0, -1):
        first, rest = " ".join(words[:count]), " ".join(words[count:])
        if is_on_page(first) and rest in goal:
            return [first, rest]
    return []


def _page_lines(page: Page) -> list[str]:
    """Return the texts of a page, followed by the names of its elements."""
    texts = [neutralize(node.name) for node in page.nodes if node.id is None]
    return [*texts, *(neutralize(node.name) for node in page.nodes if node.id is not None)]


def _find_passage(
    text: str, lines: Sequence[Sequence[str]], pages: Sequence[Page], reads: Sequence[int]
) -> Passage | None:
    """Find the page that was most likely opened to read `text`.

    The current page wins, then the highest rating, then a line that has a key before the text, then
    the latest page. Among consecutive visits to one address with the same line, the first wins,
    because a note is taken when a fact is first seen.
    """
    pattern = re.compile(rf"(?<!\w){re.escape(text)}(?!\w)")
    found = [_find_line(pattern, page) for page in lines]
    latest = len(lines) - 1
    if found[latest] is not None:
        return Passage(latest, found[latest] or "")
    ranked = [
        (reads[index], line != text, index) for index, line in enumerate(found) if line is not None
    ]
    if not ranked:
        return None
    index = max(ranked)[-1]
    while (
        index
        and reads[index - 1]
        and pages[index - 1].url == pages[index].url
        and found[index - 1] == found[index]
    ):
        index -= 1
    return Passage(index, found[index] or "")


def _find_line(pattern: re.Pattern[str], lines: Sequence[str]) -> str | None:
    """Quote the first line with a match after other words, else the match alone if there is one."""
    alone = None
    for line in lines:
        match = pattern.search(line)
        if match is not None and match.end() <= MAX_NAME:
            if match.start():
                return quote_up_to(line, *match.span())
            alone = match[0]
    return alone
