"""`Stopwatch`: splits the time of an episode into named parts."""

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

REST = "the rest"
"""The part of all time that belongs to no other part."""


class Stopwatch:
    """Splits the time since its creation into parts, which add up to that time.

    Parts are exclusive: an inner part interrupts the outer one. Use it in one thread, and not in
    handlers of browser events, which interleave with other code.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._open = [REST]
        self._since = time.monotonic()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Charge the time of a block to the part `name`, except for parts inside it."""
        self._charge()
        self._open.append(name)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def switch(self, name: str) -> None:
        """Charge the time from now on to `name` instead of the innermost part."""
        self._charge()
        self._open[-1] = name

    def read(self) -> dict[str, float]:
        """Return the seconds of each part until now."""
        self._charge()
        return dict(self._seconds)

    def attribute(self, since: Mapping[str, float], parts: Mapping[str, float]) -> None:
        """Attribute the time after the reading `since` to `parts`, which another process measured.

        Whatever this process did meanwhile keeps its share of the time that `parts` leave. It is
        charged nothing if they leave none: it did not prolong the episode. `parts` that exceed the
        time are reduced in proportion.
        """
        self._charge()
        mine = {name: now - since.get(name, 0.0) for name, now in self._seconds.items()}
        elapsed, measured = sum(mine.values()), sum(parts.values())
        left = max(0.0, elapsed - measured)
        for name, seconds in mine.items():
            kept = seconds * left / elapsed if elapsed else 0.0
            self._seconds[name] = since.get(name, 0.0) + kept
        for name, seconds in parts.items():
            share = seconds * (elapsed - left) / measured if measured else 0.0
            self._seconds[name] = self._seconds.get(name, 0.0) + share

    def _charge(self) -> None:
        now = time.monotonic()
        name = self._open[-1]
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._since
        self._since = now


def timed(stopwatch: Stopwatch | None, name: str) -> AbstractContextManager[None]:
    """Return `stopwatch.part(name)`, or a context that does nothing without a stopwatch."""
    return nullcontext() if stopwatch is None else stopwatch.part(name)
