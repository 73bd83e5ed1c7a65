"""Progress of a cache: at rest, in the middle of a forward, or left in the middle of one."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from agentkv.cache.misuse import Misuse

UNFINISHED = (
    "this cache is not between forwards: a forward or an eviction is going on or did not end. "
    "If it did not end, some layers have seen or dropped more than others: `restore` a snapshot, "
    "`reset` the cache, or make another one"
)


class ForwardGuard:
    """Lets one operation at a time change a cache, and remembers one that did not end.

    Threads may take turns; two threads at the same time are refused.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: threading.Thread | None = None
        """Thread of the present operation; None at rest."""
        self._is_unfinished = False
        self.has_changed = False
        """Set by the operation once it has changed the cache."""

    def require_rest(self) -> None:
        """Raise Misuse unless the cache is at rest and intact."""
        with self._lock:
            self._require_rest()

    def begin(self) -> None:
        """Start an operation that `end` or `leave` ends. Raises Misuse like `require_rest`."""
        with self._lock:
            self._require_rest()
            self._worker, self.has_changed = threading.current_thread(), False

    def end(self) -> None:
        """End the operation; the cache is intact."""
        self._worker = None

    def leave(self) -> None:
        """Give up the operation of this thread, if there is one."""
        if self._worker is threading.current_thread():
            self._is_unfinished = self._is_unfinished or self.has_changed
            self._worker = None

    def clear(self) -> None:
        """Declare an emptied cache intact. Raises Misuse if another thread is working."""
        with self._lock:
            self._require_no_other_thread()
            self._worker, self._is_unfinished = None, False

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Run an operation that changes the cache at once. Raises Misuse like `begin`."""
        self.begin()
        self.has_changed = True
        try:
            yield
        except BaseException:
            self.leave()
            raise
        self.end()

    def _require_rest(self) -> None:
        self._require_no_other_thread()
        # a thread that is still recorded either ended without notice or is this one
        if self._is_unfinished or (self._worker is not None and self.has_changed):
            raise Misuse(UNFINISHED)

    def _require_no_other_thread(self) -> None:
        worker = self._worker
        if worker is None or worker is threading.current_thread() or not worker.is_alive():
            return
        raise Misuse(
            f"thread {worker.name!r} is in the middle of a forward of this cache, or was "
            "interrupted in one: threads may take turns with a cache, but not use it at the same "
            "time. Give each thread its own cache, or `reset` it in that thread"
        )
