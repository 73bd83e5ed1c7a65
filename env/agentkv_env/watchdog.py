"""A hard limit on calls that have none of their own.

Playwright's synchronous calls into a page wait for ever when the page's scripts loop, and when the
browser or Playwright's own driver is stopped. A thread of ours kills the browser's processes then,
and the call comes back as an error; if it still does not, the driver is killed too.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from agentkv_env.processes import Group

DRIVER_S = 2.0
"""What the driver may take to notice that its browser was killed."""


class Watchdog:
    """Kills a browser when a guarded block takes too long. One guard at a time; re-entrant."""

    def __init__(self, pid: int | None, *, driver: int | None = None) -> None:
        """`pid` is the browser's, `driver` that of the process we speak to it through; what is
        None is never killed."""
        self.pid = pid
        self.fired = False
        """The browser was killed."""
        self._driver = driver
        self._group = None if pid is None else Group.of(pid)
        self._deadline: float | None = None
        self._seconds = 0.0
        self._stopped = False
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None

    @contextmanager
    def limit(self, seconds: float) -> Iterator[None]:
        """Kill the browser if the block outlasts `seconds`; an outer limit stays in force."""
        if self._deadline is not None or (self.pid is None and self._driver is None):
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

    def restart(self) -> None:
        """What the guarded block talks to has answered: its time begins anew."""
        with self._wake:
            if self._deadline is not None:
                self._deadline = time.monotonic() + self._seconds

    def stop(self) -> None:
        """End the thread; nothing is killed any more."""
        with self._wake:
            self._stopped = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    def kill(self) -> None:
        """Kill the browser and all its helpers, as far as they live."""
        if self.pid is None:
            return
        self.fired = True
        if self._group is not None:
            self._group.kill()
        else:
            _kill(self.pid)

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
                    self._deadline = self._fire()

    def _fire(self) -> float | None:
        """Kill what is next to be killed; when to look again, if there is more."""
        if self.pid is not None and not self.fired:
            self.kill()
            return None if self._driver is None else time.monotonic() + DRIVER_S
        if self._driver is not None:
            _kill(self._driver)
        return None


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
