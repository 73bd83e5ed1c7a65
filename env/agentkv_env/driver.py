"""Playwright's driver, one per thread, with temporary folders that no crash leaves for ever.

The driver is a process between us and its browsers. It puts the browsers' profiles into the
system's folder for temporary files, and takes them away when it ends in peace. So it gets a folder
there of its own. A lock file beside the folder is held for as long as this process lives, and the
next start removes every folder whose lock nobody holds.
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
"""How the names of our temporary folders begin."""
_LOCK = ".lock"
_STOP_S = 10.0

_per_thread = threading.local()  # the driver of this thread
_starting = threading.Lock()  # the environment is the whole process's


class Driver:
    """A running Playwright, shared by the browsers of one thread. Use `acquire` and `release`.

    Raises:
        BrowserGone: there is no place for a profile.
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
        """None where it cannot be learned; then a driver that hangs is waited for."""
        self._num_users = 0

    @property
    def has_exited(self) -> bool:
        """It has ended: no browser can be started any more."""
        return self.pid is not None and not is_running(self.pid)

    @classmethod
    def acquire(cls) -> Self:
        """This thread's driver, started if there is none that works; to be released once."""
        driver: Self | None = getattr(_per_thread, "driver", None)
        if driver is not None and driver.has_exited:
            driver._stop()  # two cannot run in one thread
            driver = None
        if driver is None:
            driver = _per_thread.driver = cls()
        driver._num_users += 1
        return driver

    def release(self) -> None:
        """Give it back; the last user ends it and removes its folder."""
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
            pass  # it is dead, which is what was asked for
        watchdog.stop()
        self._folder.remove()


class _LockedFolder:
    """A temporary folder, and a locked file beside it that says its owner lives."""

    def __init__(self) -> None:
        while True:
            handle, name = tempfile.mkstemp(prefix=PREFIX, suffix=_LOCK)
            fcntl.flock(handle, fcntl.LOCK_EX)
            if os.fstat(handle).st_nlink:
                break
            os.close(handle)  # somebody cleaned up between the two lines above
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

    A folder whose lock is held belongs to a process that lives, and stays. So does everything that
    is not ours by name and owner.
    """
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*{_LOCK}"):
        try:
            handle = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # another's, or gone a moment ago
        try:
            if os.fstat(handle).st_uid == os.getuid():
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(lock)
        except OSError:
            pass  # its owner lives
        finally:
            os.close(handle)


def _remove(lock: Path) -> None:
    """The folder first: its lock is what the next start finds it by."""
    folder = lock.with_name(lock.name.removesuffix(_LOCK))
    shutil.rmtree(folder, ignore_errors=True)
    if not folder.exists():
        lock.unlink(missing_ok=True)
