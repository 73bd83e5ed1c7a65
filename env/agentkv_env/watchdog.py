"""A hard limit on calls that have none of their own.

Playwright's synchronous calls into a page wait for ever when the page's scripts loop. A thread of
ours kills the browser process then, and the call comes back as an error.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Watchdog:
    """Kills one process when a guarded block takes too long. One guard at a time; re-entrant."""

    def __init__(self, pid: int | None) -> None:
        """`pid` is the browser's; with None nothing is ever killed."""
        self.pid = pid
        self.fired = False
        self._deadline: float | None = None
        self._seconds = 0.0
        self._stopped = False
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None

    @contextmanager
    def limit(self, seconds: float) -> Iterator[None]:
        """Kill the process if the block outlasts `seconds`; an outer limit stays in force."""
        if self._deadline is not None or self.pid is None:
            yield
            return
        with self._wake:
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
                self._thread.start()
            self._seconds = seconds
            self._deadline = time.monotonic() + seconds
            self._wake.notify()
        try:
            yield
        finally:
            with self._wake:
                self._deadline = None

    def heard(self) -> None:
        """What the guarded block talks to has answered: its time begins anew."""
        with self._wake:
            if self._deadline is not None:
                self._deadline = time.monotonic() + self._seconds

    def fire(self) -> None:
        """Kill the process now."""
        if self.pid is not None:
            self.fired = True
            self._kill()

    def stop(self) -> None:
        """End the thread; nothing is killed any more."""
        with self._wake:
            self._stopped = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        with self._wake:
            while not self._stopped:
                deadline = self._deadline
                if deadline is None:
                    # Ending a guard does not wake this thread, so that guarding costs next to
                    # nothing; it looks again by itself.
                    self._wake.wait()
                elif (left := deadline - time.monotonic()) > 0:
                    self._wake.wait(left)
                elif self._deadline == deadline:
                    self.fired = True
                    self._deadline = None
                    self._kill()

    def _kill(self) -> None:
        assert self.pid is not None
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
