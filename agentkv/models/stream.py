"""A conversation in ids: its turns, the cache that reads them, and what pages leave behind."""

import bisect
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentkv.cache.cache import Cache
from agentkv.models.model import CacheUse

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


@dataclass(slots=True, eq=False)
class TokenStream:
    """The ids of one conversation, and the cache that reads them.

    The cache has spans with the labels `goal`, `page 0`, `reply 0`, `page 1` and so on; a further
    goal that precedes page 3 is `goal 3`. Whoever has a model write a reply feeds `cache` the ids
    in `pending` and then those of the reply, and calls `end_reply`.

    Raises:
        PolicyError: a ValueError; the opening is pinned and does not fit into the budget.
    """

    new_cache: Callable[[], Cache]
    """Returns an empty cache."""
    opening: Sequence[int]
    """Ids of the instructions and the first goal."""
    separator: Sequence[int]
    """Ids that follow each reply."""
    pins: bool
    """True pins the opening and the latest further goal."""
    is_rebuilt: bool
    """True begins each turn with an empty cache, which reads the rest of the stream again."""
    turns: list[StreamTurn] = field(default_factory=list, init=False)
    cache: Cache = field(init=False)
    pending: list[int] = field(init=False)
    """Ids that the cache has not read."""
    earlier: CacheUse = field(default=CacheUse(), init=False)
    """Use of the caches before the present one."""

    def __post_init__(self) -> None:
        self._begin_cache()

    def _begin_cache(self) -> None:
        """Begin with an empty cache, which has to read the opening and all turns so far."""
        self.cache = self.new_cache()
        self.pending = [*self.opening]
        self.cache.label("goal", len(self.pending), pinned=self.pins)
        for number, turn in enumerate(self.turns):
            self._enqueue(number, turn)

    def _enqueue(self, number: int, turn: StreamTurn) -> None:
        """Put a turn after what the cache has to read, and label it."""
        if turn.goal:
            self._unpin_goal_before(number)
            start = self.cache.seen + len(self.pending)
            self.cache.label(f"goal {number}", len(turn.goal), start=start, pinned=self.pins)
            self.pending += turn.goal
        turn.start = self.cache.seen + len(self.pending)
        self.cache.label(f"page {number}", len(turn.left), start=turn.start)
        self.cache.label(f"reply {number}")
        self.pending += [*turn.left, *turn.left_reply]

    def _unpin_goal_before(self, number: int) -> None:
        """Let the policy evict the further goals that were given before turn `number`."""
        for n, turn in enumerate(self.turns[:number]):
            start = turn.start - len(turn.goal)
            if not turn.goal or start < self.cache.seen < turn.start:
                continue  # a goal that was cancelled halfway stays pinned until the next one
            if turn.start <= self.cache.seen:
                self.cache.unpin(f"goal {n}")
            else:
                self.cache.label(f"goal {n}", len(turn.goal), start=start)

    def prepare_turn(self, num_pages: int | None) -> None:
        """Forget all pages but the latest `num_pages`; None forgets none.

        Their entries leave `cache`. A stream that is rebuilt has another cache from here on.
        """
        if num_pages is not None:
            with_page = [turn for turn in self.turns if turn.has_page]
            for turn in with_page[: max(0, len(with_page) - num_pages)]:
                self._forget(turn)
        if self.is_rebuilt and self.turns:
            self.earlier = self.cache_use
            self._begin_cache()

    def _forget(self, turn: StreamTurn) -> None:
        """Forget the page of a turn.

        A page that the cache has yet to read, because its reply was cancelled, is forgotten a turn
        later: dropping unread ids would move what follows them.
        """
        end = turn.start + turn.body[1]
        if turn is not self.turns[-1]:
            end = turn.start + len(turn.shown) + len(turn.reply)
        if turn.is_forgotten or (end > self.cache.seen and not self.is_rebuilt):
            return
        turn.is_forgotten = True
        if not self.is_rebuilt:
            self._drop(turn.start, *turn.body)
            self._drop(turn.start + len(turn.shown), *turn.action)

    def _drop(self, first: int, start: int, stop: int) -> None:
        """Drop ids of the stream, given the position of the first: from the cache, and from what it
        has yet to read."""
        seen, start, stop = self.cache.seen, first + start, first + stop
        if start < min(stop, seen):
            self.cache.drop(range(start, min(stop, seen)))
        del self.pending[max(0, start - seen) : max(0, stop - seen)]

    def append(self, turn: StreamTurn) -> None:
        """Add a turn without a reply, which the cache has yet to read, and set its `start`.

        Raises:
            PolicyError: a ValueError; its goal is pinned and does not fit into the budget.
        """
        self._enqueue(len(self.turns), turn)
        self.turns.append(turn)

    def end_reply(self, ids: Sequence[int], unread: Sequence[int]) -> None:
        """Give the latest turn its reply, and set `pending`.

        Args:
            ids: the ids of the reply.
            unread: the ids of the stream up to the end of the reply that `cache` was not fed.
        """
        self.turns[-1].reply = [*ids, *self.separator]
        self.pending = [*unread, *self.separator]

    @property
    def cache_use(self) -> CacheUse:
        """Sizes of the cache, and counts of all caches so far."""
        cache, earlier = self.cache, self.earlier
        return CacheUse(
            seen_tokens=earlier.seen_tokens + cache.seen,
            live_bytes=cache.nbytes,
            peak_bytes=max(earlier.peak_bytes, cache.peak_nbytes),
            cold_bytes=cache.cold_nbytes,
            index_bytes=cache.index_nbytes,
            num_looks=earlier.num_looks + cache.num_looks,
            num_changing_looks=earlier.num_changing_looks + cache.num_changing_looks,
            look_bytes=earlier.look_bytes + cache.look_nbytes,
            fetched=dict(Counter(earlier.fetched) + Counter(cache.fetched)),
            num_renumberings=earlier.num_renumberings + cache.num_renumberings,
            num_evicted=earlier.num_evicted + cache.num_evicted,
        )


def common_start(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return how many first items two sequences of one type share."""
    shorter = min(len(one), len(other))
    # comparing slices is far faster than comparing items
    return bisect.bisect_left(range(1, shorter + 1), True, key=lambda n: one[:n] != other[:n])


def _without(ids: list[int], gone: Numbers) -> list[int]:
    start, stop = gone
    return ids[:start] + ids[stop:]
