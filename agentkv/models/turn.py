"""One turn of a conversation in ids, and what is left of it once its page is forgotten."""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Numbers = tuple[int, int]
"""Start and stop of a range."""


@dataclass(slots=True)
class StreamTurn:
    """One turn in the stream.

    Raises:
        ValueError: a range lies outside its ids.
    """

    shown: list[int]
    """Ids of the page, its note and what delimits them."""
    body: Numbers
    """Range of the ids in `shown` that are gone once the page is forgotten."""
    start: int = 0
    """Position of the first id of `shown` in the cache."""
    reply: list[int] = field(default_factory=list)
    """Ids after `shown`, up to the next turn."""
    action: Numbers = (0, 0)
    """Range of the ids in `reply` that are gone once the page is forgotten."""
    is_forgotten: bool = False
    goal: list[int] = field(default_factory=list)
    """Ids of the goal or question that was given before this page; empty if none was."""
    has_page: bool = True
    """False for a question without a page."""

    def __post_init__(self) -> None:
        for (start, stop), ids in ((self.body, self.shown), (self.action, self.reply)):
            if not 0 <= start <= stop <= len(ids):
                raise ValueError(f"found the range {start} to {stop} of {len(ids)} ids")

    @property
    def left(self) -> list[int]:
        """The ids of `shown` that are not forgotten."""
        return _without(self.shown, self.body) if self.is_forgotten else self.shown

    @property
    def left_reply(self) -> list[int]:
        """The ids of `reply` that are not forgotten."""
        return _without(self.reply, self.action) if self.is_forgotten else self.reply


def common_start(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return how many first items two sequences of one type share."""
    shorter = min(len(one), len(other))
    # comparing slices is far faster than comparing items
    return bisect.bisect_left(range(1, shorter + 1), True, key=lambda n: one[:n] != other[:n])


def _without(ids: list[int], gone: Numbers) -> list[int]:
    start, stop = gone
    return ids[:start] + ids[stop:]
