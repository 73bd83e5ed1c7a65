"""Processes of a run: what is left once they were killed, as all of them are at the end."""

import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

from tqdm import tqdm

from agentkv_tasks.run.child_process import become_child

ROOT = Path(__file__).parents[2]
PARENT = """
import multiprocessing, sys
from pathlib import Path
from agentkv_tasks.run.child_process import ChildProcess
from tests.tasks.test_child_process import count

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    child = ChildProcess(context, count, what="it", log=Path(sys.argv[1]))
    assert child.connection.recv() == 3
    child.kill()
    print(child.exit_code)
"""


def count(connection: Connection, log: Path) -> None:
    """Count with a bar that is not shown, as libraries do, and wait to be killed."""
    become_child(log)
    connection.send(len(list(tqdm(range(3), disable=True))))
    time.sleep(600)


def test_a_process_that_was_killed_leaves_nothing_in_the_system(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PARENT, tmp_path / "log"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout == "-9\n" and "leaked" not in done.stderr, done.stderr
