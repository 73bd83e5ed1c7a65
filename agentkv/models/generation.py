"""A reply in the making: what its model has to read next, and what becomes of what it chooses."""

import time
from collections import deque
from collections.abc import Sequence

from agentkv.cache.cache import Cache
from agentkv.models.model import ContextLimit
from agentkv.models.rules import Rule
from agentkv.models.sampling import Sampler


class Generation:
    """One reply, from the prompt that asks for it to its last token.

    Args:
        cache: of the episode; fed by whoever runs the model.
        prompt: ids that the cache has not seen.
        deadline: a `time.monotonic()` value, or None.
        max_positions: of the model.
    """

    def __init__(
        self,
        cache: Cache,
        prompt: Sequence[int],
        rule: Rule,
        *,
        sampler: Sampler,
        deadline: float | None,
        max_positions: int | None,
    ) -> None:
        self.cache, self.rule, self.sampler = cache, rule, sampler
        self.num_prompt = len(prompt)
        self.error: Exception | None = None
        """What ended it early."""
        self.began = time.monotonic()
        self.read: float | None = None
        """When the model had read the prompt."""
        self.ended: float | None = None
        self._deadline, self._max_positions = deadline, max_positions
        self._pieces: deque[list[int]] = deque()
        self._num_of_prompt = 0
        """Pieces of the prompt that wait."""
        self._line_up(prompt)
        self._num_of_prompt = len(self._pieces)
        if not rule.is_over:
            self._line_up(rule.unread)

    @property
    def is_over(self) -> bool:
        return self.ended is not None

    @property
    def piece(self) -> list[int]:
        """What the model has to read next, in one go."""
        return self._pieces[0]

    @property
    def chooses(self) -> bool:
        """Whether a token is to be chosen once `piece` is read."""
        return len(self._pieces) == 1 and not self.rule.is_over

    def has_read(self, chosen: int | None) -> None:
        """`piece` was read, the cache is settled, and `chosen` was chosen if it was to be."""
        self._pieces.popleft()
        if self._num_of_prompt:
            self._num_of_prompt -= 1
            if not self._num_of_prompt:
                self.read = time.monotonic()
        if chosen is not None:
            self.rule.take(chosen)
            if not self.rule.is_over:
                self._line_up(self.rule.unread)
        if self.rule.is_over and not self._pieces:
            self.ended = time.monotonic()

    def end_if_late(self) -> None:
        """Fail if the deadline has passed."""
        if self._deadline is not None and time.monotonic() > self._deadline:
            self.fail(TimeoutError("the deadline passed while the model was writing"))

    def fail(self, error: Exception) -> None:
        self.error, self.ended = error, time.monotonic()

    def _line_up(self, ids: Sequence[int]) -> None:
        cache, limit = self.cache, self._max_positions
        if limit is not None and cache.seen + len(ids) > limit:
            self.fail(no_room(limit, cache.seen, len(ids)))
            return
        step = cache.chunk if cache.prefill == "chunked" else max(1, len(ids))
        self._pieces += [list(ids[start : start + step]) for start in range(0, len(ids), step)]


def no_room(limit: int, used: int, needed: int) -> ContextLimit:
    """The error for tokens that find no positions left."""
    return ContextLimit(
        f"the model has {limit} positions; {used} are used, {needed} more are needed"
    )
