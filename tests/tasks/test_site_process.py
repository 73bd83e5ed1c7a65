"""Commands of sites end with all that they started, whatever happens to us."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentkv_tasks.own_sites.process import SiteProcess
from tests.tasks.runs import REPOSITORY, is_running, wait_until_gone

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def start(*command: str, folder: Path) -> SiteProcess:
    return SiteProcess([sys.executable, "-c", *command], folder=folder, environment={"COLOR": "ed"})


def first_write(process: SiteProcess) -> str:
    while not process.output():
        assert process.exit_code is None
    return process.output()


def test_the_whole_process_group_is_ended(tmp_path: Path) -> None:
    with start(PARENT, folder=tmp_path) as process:
        child = int(first_write(process))
        assert is_running(child)
    wait_until_gone([child])
    assert process.exit_code is not None


def test_a_command_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    rooms = os.pathsep.join(str(REPOSITORY / room) for room in (".", "env", "kernels", "tasks"))
    code = (
        "import sys, time; from pathlib import Path;"
        "from agentkv_tasks.own_sites.process import SiteProcess;"
        f"site = SiteProcess([sys.executable, '-c', {PARENT!r}], folder=Path(), environment={{}})\n"
        "while not site.output(): time.sleep(0.02)\n"
        "print(site.output(), flush=True); time.sleep(600)"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": rooms},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert starter.stdout is not None
    child = int(starter.stdout.readline())
    starter.send_signal(signal.SIGKILL)
    starter.communicate()
    wait_until_gone([child])


@pytest.mark.skipif(sys.platform != "linux", reason="a signal of Linux")
def test_a_command_ends_with_the_guard_that_runs_it(tmp_path: Path) -> None:
    code = (
        "import os, time; print(f'{os.getppid()} {os.getpid()}', flush=True);"  # in one write
        "time.sleep(600)"
    )
    with start(code, folder=tmp_path) as process:
        guard, child = map(int, first_write(process).split())
        os.kill(guard, signal.SIGKILL)
        wait_until_gone([child])
        assert process.wait(30) == -signal.SIGKILL


def test_a_command_that_ends_leaves_its_exit_code_and_output(tmp_path: Path) -> None:
    code = "import os, sys; print(os.getcwd(), os.environ['COLOR'], sys.stdin.read()); sys.exit(7)"
    with start(code, folder=tmp_path) as process:
        assert process.wait(30) == 7
        assert process.output() == f"{tmp_path} ed"


def test_a_program_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with SiteProcess(["./no-such-program"], folder=tmp_path, environment={}) as process:
        assert process.wait(30) == 127
        assert process.output() == "./no-such-program cannot be started: No such file or directory"


@pytest.mark.slow
def test_a_command_that_ignores_the_request_to_end_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print(os.getpid(), flush=True); time.sleep(600)"
    )
    with start(code, folder=tmp_path) as process:
        pid = int(first_write(process))
    wait_until_gone([pid])
