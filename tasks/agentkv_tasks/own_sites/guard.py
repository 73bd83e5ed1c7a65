"""Run a command that ends with the process that started it, as a program of its own.

    python guard.py COMMAND...

The command gets a process group. The whole group is ended when standard input closes, which the
death of the starting process does as well, and when the command ends by itself.
"""

import os
import signal
import subprocess
import sys
import threading

GRACE_S = 5.0
"""Seconds between the request to end and the kill."""
NOT_STARTED = 127
"""Exit code if the command cannot be started."""


def main() -> int:
    """Run the command and return its exit code."""
    command = sys.argv[1:]
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        print(f"{command[0]} cannot be started: {error.strerror}", flush=True)
        return NOT_STARTED
    threading.Thread(target=_end_with_starter, args=(child,), daemon=True).start()
    code = child.wait()
    _signal(child, signal.SIGKILL)
    return code if code >= 0 else 128 - code


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
