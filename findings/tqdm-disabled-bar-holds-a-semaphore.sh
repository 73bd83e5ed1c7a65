#!/usr/bin/env bash
# tqdm 4.70.1: a bar that is disabled holds a semaphore of the system, and a process that is killed leaves it.
#
# `tqdm(..., disable=True)` shows nothing, but makes the lock that bars of several processes share, which takes a named
# semaphore of multiprocessing. In a process that was spawned, not forked, it has a name until the process ends. Libraries
# count loops with disabled bars: peft 0.21 does in `merge_and_unload()` although `progressbar` is False. Whoever ends such
# processes by SIGKILL gets "leaked semaphore objects" from Python's resource tracker, and looks for it in code of their own.
# With `tqdm.set_lock(threading.RLock())` before the first bar there is none.
#
# Seen with tqdm 4.70.1, Python 3.11, on 30 November 2026:
#   no bar: nothing left
#   disabled bar: 1 leaked semaphore
#   disabled bar after set_lock: nothing left
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check 'tqdm==4.70.1'
cat > "$folder/try.py" <<'PY'
import re
import subprocess
import sys

BEGIN = """
import multiprocessing, os, signal, threading
from multiprocessing import resource_tracker
from tqdm import tqdm
multiprocessing.set_start_method("spawn")  # as it is in a process that was spawned
resource_tracker.ensure_running()
"""
KILLED = "os.kill(os.getpid(), signal.SIGKILL)\n"
CASES = {
    "no bar": "",
    "disabled bar": "list(tqdm(range(3), disable=True))\n",
    "disabled bar after set_lock": (
        "tqdm.set_lock(threading.RLock())\nlist(tqdm(range(3), disable=True))\n"
    ),
}


def left(code: str) -> int:
    """Return the number of semaphores that a killed process leaves, as the resource tracker says."""
    done = subprocess.run([sys.executable, "-c", BEGIN + code + KILLED], capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    found = re.search(r"appear to be (\d+) leaked semaphore", done.stderr)
    return int(found[1]) if found else 0


seen = {name: left(code) for name, code in CASES.items()}
for name, count in seen.items():
    print(f"{name}: {f'{count} leaked semaphore' if count else 'nothing left'}")
assert list(seen.values()) == [0, 1, 0], seen
PY
"$folder/env/bin/python" "$folder/try.py"
