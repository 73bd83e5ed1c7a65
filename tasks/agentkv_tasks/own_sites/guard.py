"""Run a command that ends with the process that started it, as a program of its own.

    python guard.py COMMAND...

The command gets a process group. The whole group is ended when standard input closes, which the
death of the starting process does as well, and when the command ends by itself. On Linux the death
of this program kills the command, which would otherwise keep its port.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading

GRACE_S = 5.0
"""Seconds between the request to end and the kill."""
_PR_SET_PDEATHSIG = 1  # prctl(2)
NOT_STARTED = 127
"""Exit code if the command cannot be started."""


def main() -> int:
    """Run the command and return its exit code."""
    command = sys.argv[1:]
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_die_with_this if sys.platform == "linux" else None,
        )
    except OSError as error:
        print(f"{command[0]} cannot be started: {error.strerror}", flush=True)
        return NOT_STARTED
    threading.Thread(target=_end_with_starter, args=(child,), daemon=True).start()
    code = child.wait()
    _signal(child, signal.SIGKILL)
    return code if code >= 0 else 128 - code


def _die_with_this() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end_with_starter(child: "subprocess.Popen[bytes]") -> None:
    while os.read(0, 1024):  # unbuffered: Python could not exit while a buffer is being filled
        pass
    _signal(child, signal.SIGTERM)
    try:
        child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        _signal(child, signal.SIGKILL)


def _signal(child: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    try:
        os.killpg(child.pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # no member is left


if __name__ == "__main__":
    sys.exit(main())
