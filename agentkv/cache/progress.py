"""Tells a cache at rest from one in the middle of a forward, or left in the middle of one."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from agentkv.cache.hf import Misuse

UNFINISHED = (
    "this cache is not between forwards: one of it, or an eviction, is going on or did not end. "
    "Where it did not end, some layers have seen or dropped more than others, and only `restore` "
    "of a snapshot, `reset` or another cache helps"
)


class Progress:
    """Lets one piece of work at a time change a cache, and remembers one that did not end.

    Work may go from thread to thread; two threads may not work at the same time.
    """

    __slots__ = ("_is_unfinished", "_lock", "_worker", "has_changed")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: threading.Thread | None = None
        """Whose work is going on; None at rest."""
        self._is_unfinished = False
        self.has_changed = False
        """For the work to set: from now on the cache is not what it was."""

    def require_rest(self) -> None:
        """Raise Misuse unless the cache is at rest and whole."""
        with self._lock:
            self._require_rest()

    def begin(self) -> None:
        """Start work that `end` or `leave` ends. Raises Misuse as `require_rest`."""
        with self._lock:
            self._require_rest()
            self._worker, self.has_changed = threading.current_thread(), False

    def end(self) -> None:
        """The work is done; the cache is whole."""
        self._worker = None

    def leave(self) -> None:
        """The work of this thread, if there is any, will not be done."""
        if self._worker is threading.current_thread():
            self._is_unfinished = self._is_unfinished or self.has_changed
            self._worker = None

    def clear(self) -> None:
        """The cache was emptied, and is whole again. Raises Misuse if another thread is at work."""
        with self._lock:
            self._wait_for_nobody()
            self._worker, self._is_unfinished = None, False

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Work that changes the cache from its start to its end. Raises Misuse as `begin`."""
        self.begin()
        self.has_changed = True
        try:
            yield
        except BaseException:
            self.leave()
            raise
        self.end()

    def _require_rest(self) -> None:
        self._wait_for_nobody()
        # a worker that is still there left without a word, or is asking
        if self._is_unfinished or (self._worker is not None and self.has_changed):
            raise Misuse(UNFINISHED)

    def _wait_for_nobody(self) -> None:
        worker = self._worker
        if worker is None or worker is threading.current_thread() or not worker.is_alive():
            return
        raise Misuse(
            f"thread {worker.name!r} is in the middle of a forward of this cache, or was "
            "interrupted in one: threads may take turns with a cache, and not use it at the same "
            "time. Give each its own, or `reset` it in that thread"
        )
