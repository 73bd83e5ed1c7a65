"""A command of a site in its own process group, which ends with this process at the latest."""

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from agentkv_env.processes import kill_descendants
from agentkv_tasks.own_sites.guard import GRACE_S

_GUARD = Path(__file__).with_name("guard.py")
_TAIL_BYTES = 8000


class SiteProcess:
    """A running command; a context manager that ends it.

    Its output is kept in memory and never written, because a site may print passwords.

    Args:
        command: a program and its arguments.
        folder: working directory.
        environment: variables in addition to those of this process.
    """

    def __init__(
        self, command: Sequence[str], *, folder: Path, environment: Mapping[str, str]
    ) -> None:
        self._guard = subprocess.Popen(
            [sys.executable, "-I", str(_GUARD), *command],
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches us alone, and we end the command
        )
        self._tail = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def exit_code(self) -> int | None:
        """Exit code of the command; None while it runs."""
        return self._guard.poll()

    def wait(self, seconds: float) -> int | None:
        """Wait at most `seconds` for the command to end, and return its exit code."""
        try:
            return self._guard.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def output(self) -> str:
        """Return the end of the output on one line; all of it has arrived if the command ended."""
        if self.exit_code is not None:
            self._reader.join(GRACE_S)
        return " ".join(self._tail.decode(errors="replace").split())

    def stop(self) -> None:
        """End the command and its process group; stopping twice does nothing."""
        assert self._guard.stdin is not None, "the guard was started with a pipe"
        self._guard.stdin.close()
        if self.wait(2 * GRACE_S) is None:
            kill_descendants(self._guard.pid)
            self._guard.kill()
            self._guard.wait()
        self._reader.join(GRACE_S)

    def _read(self) -> None:
        output: IO[bytes] | None = self._guard.stdout
        assert output is not None, "the guard was started with a pipe"
        with output:
            while chunk := os.read(output.fileno(), 1 << 16):
                self._tail = (self._tail + chunk)[-_TAIL_BYTES:]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
