"""Runs survive the deaths of workers and of the model's process."""

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from tests.tasks.runs import (
    NANO,
    complete_rows,
    finish,
    model_of,
    start,
    wait_for_steps,
    wait_until_gone,
    workers_of,
)

pytestmark = pytest.mark.browser


@pytest.mark.slow
def test_a_killed_model_is_restarted_and_costs_only_the_current_episodes(
    tmp_path: Path,
) -> None:
    process = start(tmp_path, *NANO, "--workers", "2")
    wait_for_steps(tmp_path, 2)
    model = model_of(process.pid)
    assert model is not None
    os.kill(model, signal.SIGKILL)
    output = finish(process)
    rows = complete_rows(tmp_path)
    assert len({row.key for row in rows}) == len(rows) == 4
    lost = [row for row in rows if row.status == "crash"]
    assert 1 <= len(lost) <= 2 and "crash (counted as failures)" in output
    assert all("the model's process was killed by SIGKILL" in row.error for row in lost)
    assert [row.status for row in rows].count("timeout") == 0


def test_a_killed_worker_costs_only_its_own_episode(tmp_path: Path) -> None:
    process = start(tmp_path, *NANO, "--workers", "2")
    wait_for_steps(tmp_path, 1)
    model = model_of(process.pid)
    worker = next(pid for pid in workers_of(process.pid) if os.getpgid(pid) == pid and pid != model)
    os.kill(worker, signal.SIGKILL)
    finish(process)
    rows = complete_rows(tmp_path)
    lost = [row for row in rows if row.status == "crash"]
    assert len(rows) == 4 and len(lost) <= 1
    assert all("the worker was killed by SIGKILL" in row.error for row in lost)


@pytest.mark.slow
def test_a_model_that_dies_repeatedly_ends_the_run_with_the_cause(tmp_path: Path) -> None:
    process = start(tmp_path / "out", *NANO, "--workers", "1")
    while process.poll() is None:
        model = model_of(process.pid)
        if model is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(model, signal.SIGKILL)
        time.sleep(0.02)
    output = finish(process)
    assert (
        process.returncode == 1
        and "the model's process died repeatedly: the model's process was killed" in output
    ), output
    assert "model.log" in output
    assert not complete_rows(tmp_path / "out")


@pytest.mark.slow
def test_a_killed_run_leaves_no_suspended_browser_behind(tmp_path: Path) -> None:
    process = start(tmp_path, "--model", "random", "--max-steps", "12", "--workers", "1")
    wait_for_steps(tmp_path, 1)
    family = workers_of(process.pid)
    browsers = [pid for pid in family if os.getpgid(pid) == pid and os.getsid(pid) == pid]
    for leader in browsers[1:]:  # the first is the worker
        os.killpg(leader, signal.SIGSTOP)
    os.kill(process.pid, signal.SIGKILL)
    finish(process)
    wait_until_gone(family)
