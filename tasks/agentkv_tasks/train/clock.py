"""The time that a training runs, without the time that its process is stopped."""

import threading
import time
from typing import Self

PERIOD = 1.0
"""Seconds between two looks at the clock (our choice)."""
_LONGEST = 5.0
"""A look counts at most this many periods: a busy machine delays a thread, a stop by much more (our
choice)."""


class RunningClock:
    """Context manager for a thread that counts seconds while the process runs.

    The system's clocks go on while a process is stopped, by Ctrl-Z or by a scheduler of jobs.

    Args:
        period: seconds between two looks.
    """

    def __init__(self, period: float = PERIOD) -> None:
        self._period = period
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._seconds = 0.0
        self._last = time.monotonic()
        self._thread = threading.Thread(target=self._watch, name="running clock", daemon=True)

    @property
    def seconds(self) -> float:
        """Seconds since the start, without stops."""
        with self._lock:
            now = time.monotonic()
            self._seconds += min(now - self._last, _LONGEST * self._period)
            self._last = now
            return self._seconds

    def _watch(self) -> None:
        while not self._ended.wait(self._period):
            _ = self.seconds

    def __enter__(self) -> Self:
        self._last = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ended.set()
        self._thread.join()
