"""Child processes of a run: start, death and setup."""

import contextlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.context
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agentkv.files import WriteError, make_folder
from agentkv_env.processes import kill_descendants

_LOG_TAIL = 300  # characters of a dead process's log that an error quotes


class ChildProcess:
    """A process that leads its own process group, and a connection to it.

    Args:
        what: name of the process in messages, such as "the worker".
        target: function to run there, with its end of the connection, the log and `arguments`.
        log: file that receives its output.
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
        self.started = self.last_message = time.monotonic()
        """Start and last message, in monotonic seconds."""
        self._process = context.Process(target=target, args=(theirs, log, *arguments), daemon=False)
        with _hiding_main():
            self._process.start()
        theirs.close()  # the death of the process now closes the connection

    @property
    def pid(self) -> int:
        """Process id."""
        pid = self._process.pid
        assert pid is not None, "the process was started"
        return pid

    @property
    def is_alive(self) -> bool:
        """True until the process has ended."""
        return self._process.is_alive()

    @property
    def exit_code(self) -> int | None:
        """Exit code; None while the process lives, negative for the signal that killed it."""
        return self._process.exitcode

    def wait(self, seconds: float) -> None:
        """Wait at most `seconds` for the process to end."""
        self._process.join(seconds)

    def kill(self) -> None:
        """Kill the process and its descendants, such as a browser, and wait for it."""
        if self.is_alive:
            kill_descendants(self.pid)  # a browser has its own group, and may be suspended
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                self._process.kill()  # it has no group of its own yet
            self.wait(10)
        self.connection.close()

    def cause(self) -> str:
        """Describe how the process ended: its signal or exit code, and the end of its output."""
        code = self.exit_code
        if code is not None and code < 0:
            how = f"{self.what} was killed by {signal.Signals(-code).name}"
        else:
            how = f"{self.what} ended with exit code {code}"
        try:
            output = self.log.read_bytes()[self._log_start :].decode(errors="replace").strip()
        except OSError:
            output = ""
        last = " ".join(output[-_LOG_TAIL:].split())
        return f"{how}; its last output: {last}" if last else how


@contextlib.contextmanager
def _hiding_main() -> Iterator[None]:
    """Keep a spawned process from importing the program's main module.

    Nothing there is needed, and a script that calls `agentkv.run` outside of
    `if __name__ == "__main__":` would call it again in every child.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def become_child(log: Path) -> None:
    """Set up the current process as a `ChildProcess`.

    It leads its own process group, so that Ctrl-C reaches only the parent and the parent can kill
    the whole group. It ends as soon as its parent does, and its output goes to `log`.
    """
    from tqdm import tqdm  # the parent needs none

    # bars of tqdm, which libraries make even where they show none, have a semaphore of the system
    # otherwise; a process that is killed would leave it, and Python would tell the user at the end
    tqdm.set_lock(threading.RLock())
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _redirect_output(log)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "a child has a parent"
    multiprocessing.connection.wait([parent.sentinel])
    kill_descendants(os.getpid())  # a browser has its own group
    os.killpg(0, signal.SIGKILL)


def _redirect_output(log: Path) -> None:
    """Redirect output to a file, because the terminal belongs to the parent."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        make_folder(log.parent)
        target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.fchmod(target, 0o600)
    except (OSError, WriteError):
        target = os.open(os.devnull, os.O_WRONLY)  # a lost log must not stop the work
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)
