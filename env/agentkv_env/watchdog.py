"""A time limit for Playwright calls that have none.

Synchronous calls into a page never return when the page's scripts loop, or when the browser or
Playwright's driver is stopped. A thread then kills the browser's processes, and the call raises. If
the call still does not return, the thread kills the driver as well.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from agentkv_env.processes import Group

DRIVER_S = 2.0
"""Time for the driver to notice that its browser was killed."""


class Watchdog:
    """Kills a browser when a block takes too long; one block at a time, re-entrant."""

    def __init__(self, pid: int | None, *, driver: int | None = None) -> None:
        """Watch the browser process `pid` and the driver process `driver`; None is never killed."""
        self.pid = pid
        self.fired = False
        """True if the browser was killed."""
        self._driver = driver
        self._group = None if pid is None else Group.of(pid)
        self._deadline: float | None = None
        self._seconds = 0.0
        self._stopped = False
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None

    @contextmanager
    def limit(self, seconds: float) -> Iterator[None]:
        """Kill the browser if the block takes longer than `seconds`; an outer limit wins."""
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
        """Restart the time of the current block, because the browser has answered."""
        with self._wake:
            if self._deadline is not None:
                self._deadline = time.monotonic() + self._seconds

    def stop(self) -> None:
        """End the thread; it kills nothing any more."""
        with self._wake:
            self._stopped = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    def kill(self) -> None:
        """Kill the browser and all its helper processes that live."""
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
                    # The end of a block does not wake this thread, so that a block costs almost
                    # nothing.
                    self._wake.wait()
                elif (left := deadline - time.monotonic()) > 0:
                    self._wake.wait(left)
                elif self._deadline == deadline:
                    self._deadline = self._fire()

    def _fire(self) -> float | None:
        """Kill the browser, or else the driver; return the next deadline, if any."""
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
