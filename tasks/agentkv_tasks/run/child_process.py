"""Processes of a run, from both ends: how they are started and killed, and how they settle in."""

import multiprocessing
import multiprocessing.connection
import multiprocessing.context
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentkv.files import NotWritten, make_folder
from agentkv_env.processes import kill_descendants

_LOG_TAIL = 300  # characters of a dead process's last words that are passed on


class ChildProcess:
    """A process that leads a group of its own, with a connection to it.

    Args:
        what: what messages call it, such as "the worker".
        target: is called there with the other end of the connection, the log and `arguments`.
        log: what it prints is added here.
    """

    def __init__(
        self,
        context: multiprocessing.context.SpawnContext,
        target: Callable[..., None],
        *arguments: Any,
        what: str,
        log: Path,
    ) -> None:
        self.connection, theirs = context.Pipe()
        self.what, self.log = what, log
        self._log_start = log.stat().st_size if log.exists() else 0
        self.started = self.heard = time.monotonic()
        """Monotonic seconds of its start, and of its last message."""
        self._process = context.Process(target=target, args=(theirs, log, *arguments), daemon=False)
        self._process.start()
        theirs.close()  # so that the process's death closes the connection

    @property
    def pid(self) -> int:
        pid = self._process.pid
        assert pid is not None, "it was started"
        return pid

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    @property
    def exit_code(self) -> int | None:
        """None while it lives; below 0 the signal that killed it."""
        return self._process.exitcode

    def wait(self, seconds: float) -> None:
        """Until it has ended, or so long."""
        self._process.join(seconds)

    def kill(self) -> None:
        """End it and all it has started, a browser included, and wait for it."""
        if self.is_alive:
            kill_descendants(self.pid)  # a browser is in a group of its own, and may be stopped
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                self._process.kill()  # it had not yet come as far as its own group
            self.wait(10)
        self.connection.close()

    def cause(self) -> str:
        """Why it died: its signal or exit code, and the end of what it printed."""
        code = self.exit_code
        if code is not None and code < 0:
            how = f"{self.what} was killed by {signal.Signals(-code).name}"
        else:
            how = f"{self.what} ended with exit code {code}"
        try:
            said = self.log.read_bytes()[self._log_start :].decode(errors="replace").strip()
        except OSError:
            said = ""
        last = " ".join(said[-_LOG_TAIL:].split())
        return f"{how}; it last said: {last}" if last else how


def become_child(log: Path) -> None:
    """What a `ChildProcess` does first, on its own side.

    It leads a group of its own, so that Ctrl-C reaches only its parent and the parent can kill it
    together with what it starts; it ends as soon as its parent does; and it prints to `log`.
    """
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _write_to(log)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "a child has a parent"
    multiprocessing.connection.wait([parent.sentinel])
    kill_descendants(os.getpid())  # a browser is in a group of its own
    os.killpg(0, signal.SIGKILL)


def _write_to(log: Path) -> None:
    """Send what is printed here to a file: the terminal belongs to the parent."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        make_folder(log.parent)
        target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.fchmod(target, 0o600)
    except (OSError, NotWritten):
        target = os.open(os.devnull, os.O_WRONLY)  # its work counts, its words do not
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)
