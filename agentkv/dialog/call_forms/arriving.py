"""Text that arrives in pieces, and generators that read it as if all of it were there."""

import re
from collections.abc import Generator, Sequence
from typing import TypeVar

T = TypeVar("T")
Waits = Generator[None, None, T]
"""A generator that yields where it needs more text, and returns what it has read."""


class Malformed(Exception):
    """Text is not in the form in which it is read.

    Args:
        at: where that shows.
    """

    def __init__(self, at: int) -> None:
        super().__init__(f"malformed text at {at}")
        self.at = at


class ArrivingText:
    """A text to which pieces are added.

    All that its methods return depends on the text alone, never on how it was cut: they wait until
    more text could change nothing.
    """

    def __init__(self) -> None:
        self.text = ""
        self.has_ended = False
        """True once no more text comes."""
        self.is_cut = False
        """True if the writer was stopped before the end."""

    def is_finished(self, at: int) -> bool:
        """True if the writer ended the text at `at`."""
        return self.has_ended and not self.is_cut and at == len(self.text)

    def char(self, at: int) -> Waits[str]:
        """Return the character at `at`; empty at the end."""
        while at >= len(self.text) and not self.has_ended:
            yield
        return self.text[at : at + 1]

    def skip(self, characters: re.Pattern[str], at: int) -> Waits[int]:
        """Return where the run of characters at `at` ends.

        Args:
            characters: a repeated set, such as `[a-z]*`.
        """
        while True:
            found = characters.match(self.text, at)
            at = found.end() if found else at
            if at < len(self.text) or self.has_ended:
                return at
            yield

    def skip_space(self, at: int) -> Waits[int]:
        """Return where the white space at `at` ends."""
        return (yield from self.skip(_SPACE, at))

    def starts(self, marks: Sequence[str], at: int) -> Waits[str]:
        """Return the longest of `marks` that stands at `at`; empty if none does."""
        longest = max(map(len, marks))
        while True:
            here = self.text[at : at + longest]
            may_grow = any(len(mark) > len(here) and mark.startswith(here) for mark in marks)
            if self.has_ended or not may_grow:
                return max((mark for mark in marks if here.startswith(mark)), key=len, default="")
            yield

    def find(self, marks: Sequence[str], at: int) -> Waits[tuple[int, str]]:
        """Return where the first of `marks` stands after `at`, and that mark.

        Raises:
            Malformed: there is none; it is at the end of the text.
        """
        first = at
        while True:
            found = [(self.text.find(mark, first), -len(mark), mark) for mark in marks]
            here = min((each for each in found if each[0] >= 0), default=None)
            held = max(overlap(self.text[first:], mark) for mark in marks)
            unsure = len(self.text) if self.has_ended else len(self.text) - held
            if here is not None and here[0] < unsure:
                return here[0], here[2]
            if self.has_ended:
                raise Malformed(len(self.text))
            first = unsure if here is None else first
            yield


def overlap(text: str, mark: str) -> int:
    """Return the length of the longest suffix of `text` that is a prefix of `mark`."""
    longest = min(len(text), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(mark[:n])), 0)


_SPACE = re.compile(r"\s*")
