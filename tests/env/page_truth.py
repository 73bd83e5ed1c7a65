"""What a page shows, found in another way than by our reading.

Our reading walks down the tree and asks each element for its style. The truth goes through the text
nodes, asks where each word is drawn, and whether its element lies at that place.
"""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Page as PlaywrightPage

from agentkv_env.page import Page

_SCRIPT = Path(__file__).with_suffix(".js")
_WORD = re.compile(r"[^\W_]+")
_WORD_OR_BAR = re.compile(r"[^\W_]+|\|")


@dataclass(frozen=True)
class Control:
    """A control and the corner of its first rectangle."""

    tag: str
    text: str
    x: float
    y: float


@dataclass(frozen=True)
class Truth:
    """What the browser draws of a page."""

    words: list[str]
    """The words outside labels, in the order of the document."""
    labels: list[str]
    """The words of labels, which a reading may give with their controls."""
    headings: list[str]
    controls: list[Control]
    rows: list[list[str]]
    """The cells of each row of a table without controls, pictures and blocks."""
    lines: list[str]
    """The lines of preformatted blocks without controls."""


def truth_of(page: PlaywrightPage) -> Truth:
    """Return what `page` shows in its viewport."""
    found = page.evaluate(_SCRIPT.read_text(encoding="utf-8"))
    words = [(word["labels"], word["text"].casefold()) for word in found["words"]]
    return Truth(
        words=[word for labels, word in words if not labels],
        labels=[word for labels, word in words if labels],
        headings=found["headings"],
        controls=[Control(**each) for each in found["controls"]],
        rows=found["rows"],
        lines=found["lines"],
    )


def differences(truth: Truth, page: Page) -> list[str]:
    """Return each difference between what is shown and what `page` says, as a sentence."""
    return [
        *_of_order(truth, page),
        *_of_counts(truth, page),
        *_of_headings(truth, page),
        *_of_rows(truth, page),
        *_of_lines(truth, page),
        *_of_controls(truth, page),
    ]


def _words_of(text: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(text)]


def _of_order(truth: Truth, page: Page) -> list[str]:
    texts = [f"{node.name} {node.value}" for node in page.nodes if node.kind != "ocr"]
    said = [word for text in texts for word in _words_of(text)]
    found, position = [], 0
    for word in truth.words:
        try:
            position = said.index(word, position) + 1
        except ValueError:
            found.append(f"missing after {' '.join(said[max(0, position - 5) : position])}: {word}")
    if left := Counter(truth.labels) - Counter(said):
        found.append(f"missing of labels: {left}")
    return found


def _of_counts(truth: Truth, page: Page) -> list[str]:
    said = Counter(
        word
        for node in page.nodes
        if node.id is None and node.role in ("text", "heading") and node.kind == "text"
        for word in _words_of(node.name)
    )
    more = said - Counter(truth.words) - Counter(truth.labels)
    return [f"not drawn, or said too often: {more}"] if more else []


def _of_headings(truth: Truth, page: Page) -> list[str]:
    said = Counter(" ".join(_words_of(n.name)) for n in page.nodes if n.role == "heading")
    drawn = Counter(" ".join(_words_of(text)) for text in truth.headings)
    return [f"no heading: {text}" for text in drawn - said if text]


def _of_rows(truth: Truth, page: Page) -> list[str]:
    said = Counter(_row(node.name) for node in page.nodes)
    drawn = Counter(_row(" | ".join(cells)) for cells in truth.rows)
    return [f"no row: {' '.join(row)}" for row in drawn - said if set(row) - {"|"}]


def _row(text: str) -> tuple[str, ...]:
    """Return the words and bars of a row, without the bars of empty cells at its end."""
    parts = _WORD_OR_BAR.findall(text.casefold())
    while parts and parts[-1] == "|":
        parts.pop()
    return tuple(parts)


def _of_lines(truth: Truth, page: Page) -> list[str]:
    said = Counter(" ".join(node.name.split()) for node in page.nodes)
    drawn = Counter(" ".join(line.split()) for line in truth.lines)
    return [f"no line: {line}" for line in drawn - said if line]


def _of_controls(truth: Truth, page: Page) -> list[str]:
    boxes = [node.box for node in page.nodes if node.id is not None]
    return [
        f"no element: {each.tag} {each.text!r} at {each.x:.0f}, {each.y:.0f}"
        for each in truth.controls
        if not any(abs(each.x - box.x) < 3 and abs(each.y - box.y) < 3 for box in boxes)
    ]
