"""Playwright's driver process, one per thread, with temporary folders that survive no crash.

The driver process controls the browsers. It puts their profiles into the system's temporary folder
and removes them only when it ends normally, so each driver gets its own folder there. This process
holds a lock file beside that folder while it lives; the next start removes every folder whose lock
is not held.
"""

import fcntl
import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Self

from playwright.sync_api import Error, Playwright, sync_playwright

from agentkv_env.errors import BrowserGone
from agentkv_env.processes import find_child, is_running
from agentkv_env.watchdog import Watchdog

PREFIX = "agentkv-browser-"
"""Prefix of the names of the temporary folders."""
_LOCK = ".lock"
_STOP_S = 10.0

_per_thread = threading.local()  # .driver: the driver of this thread
_starting = threading.Lock()  # TMPDIR belongs to the whole process


class Driver:
    """A running Playwright, shared by the browsers of one thread; see `acquire` and `release`.

    Raises:
        BrowserGone: no temporary folder for profiles can be made.
    """

    def __init__(self) -> None:
        remove_stale()
        try:
            self._folder = _LockedFolder()
        except OSError as error:
            raise BrowserGone(
                f"no folder for a browser's profile can be made in {tempfile.gettempdir()}: "
                f"{error.strerror}; make room there, or name another place in TMPDIR"
            ) from error
        with _starting:
            before = os.environ.get("TMPDIR")
            os.environ["TMPDIR"] = str(self._folder.path)  # read by the driver and its browsers
            try:
                self.playwright: Playwright = sync_playwright().start()
            except BaseException:
                self._folder.remove()
                raise
            finally:
                if before is None:
                    del os.environ["TMPDIR"]
                else:
                    os.environ["TMPDIR"] = before
        self.pid = find_child("TMPDIR", str(self._folder.path))
        """Process id; None if it cannot be found, and then a hanging driver cannot be killed."""
        self._num_users = 0

    @property
    def has_exited(self) -> bool:
        """True if the driver process has ended."""
        return self.pid is not None and not is_running(self.pid)

    @classmethod
    def acquire(cls) -> Self:
        """Return the driver of this thread, started if necessary; release it once."""
        driver: Self | None = getattr(_per_thread, "driver", None)
        if driver is not None and driver.has_exited:
            driver._stop()  # Playwright allows one per thread
            driver = None
        if driver is None:
            driver = _per_thread.driver = cls()
        driver._num_users += 1
        return driver

    def release(self) -> None:
        """Release the driver; the last release ends it and removes its folder."""
        self._num_users -= 1
        if self._num_users > 0:
            return
        self._stop()
        if getattr(_per_thread, "driver", None) is self:
            del _per_thread.driver

    def _stop(self) -> None:
        watchdog = Watchdog(None, driver=self.pid)
        try:
            with watchdog.limit(_STOP_S):
                self.playwright.stop()
        except Error:
            pass  # the driver is already dead
        watchdog.stop()
        self._folder.remove()


class _LockedFolder:
    """A temporary folder with a lock file beside it that is held while the owner lives."""

    def __init__(self) -> None:
        while True:
            handle, name = tempfile.mkstemp(prefix=PREFIX, suffix=_LOCK)
            fcntl.flock(handle, fcntl.LOCK_EX)
            if os.fstat(handle).st_nlink:
                break
            os.close(handle)  # another process removed the file before it was locked
        self._handle: int | None = handle
        self._lock = Path(name)
        self.path = Path(name.removesuffix(_LOCK))
        self.path.mkdir(mode=0o700)

    def remove(self) -> None:
        if self._handle is None:
            return
        _remove(self._lock)
        os.close(self._handle)
        self._handle = None


def remove_stale() -> None:
    """Remove the temporary folders of drivers whose process was killed.

    Keeps folders whose lock is held, because their process lives, and files of other users.
    """
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*{_LOCK}"):
        try:
            handle = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # of another user, or removed meanwhile
        try:
            if os.fstat(handle).st_uid == os.getuid():
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(lock)
        except OSError:
            pass  # the owner lives
        finally:
            os.close(handle)


def _remove(lock: Path) -> None:
    # The folder first: the next start finds it by its lock.
    folder = lock.with_name(lock.name.removesuffix(_LOCK))
    shutil.rmtree(folder, ignore_errors=True)
    if not folder.exists():
        lock.unlink(missing_ok=True)
