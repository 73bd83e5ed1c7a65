"""Runs survive the deaths of workers and of the model's process."""

import contextlib
import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.tasks.runs import (
    NANO,
    SMALL,
    complete_rows,
    finish,
    model_of,
    start,
    wait_for_rows,
    wait_for_steps,
    wait_for_traces,
    wait_until_gone,
    worker_processes,
    workers_of,
    zombies_of,
)

pytestmark = pytest.mark.browser


@pytest.mark.slow
def test_a_killed_model_is_restarted_and_the_current_episodes_are_played_again(
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
    lost = [attempt for row in rows for attempt in row.attempts]
    assert 1 <= len(lost) <= 2 and "played again after" in output
    assert all("the model's process was killed by SIGKILL" in each.error for each in lost)
    assert not {"crash", "timeout"} & {row.status for row in rows}


@pytest.mark.slow
def test_a_killed_worker_disturbs_only_its_own_episode(tmp_path: Path) -> None:
    process = start(tmp_path, *NANO, "--workers", "2")
    wait_for_steps(tmp_path, 1)
    model = model_of(process.pid)
    worker = next(pid for pid in workers_of(process.pid) if os.getpgid(pid) == pid and pid != model)
    os.kill(worker, signal.SIGKILL)
    finish(process)
    rows = complete_rows(tmp_path)
    lost = [attempt for row in rows for attempt in row.attempts]
    assert len(rows) == 4 and len(lost) <= 1
    assert all("the worker was killed by SIGKILL" in each.error for each in lost)
    assert not any(row.status == "crash" for row in rows)


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


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["step", "episode"])
def test_an_episode_that_takes_too_long_leaves_no_process_behind(
    tmp_path: Path, limit: str
) -> None:
    task = json.loads(SMALL.read_text())[0]
    path = tmp_path / "tasks.json"
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections, never answers
        if limit == "step":
            slow = {**task, "start_url": f"http://127.0.0.1:{silent.getsockname()[1]}/"}
            options = ("--model", "stop", "--step-timeout", "3")
        else:
            slow = {**task, "max_steps": 1000}
            options = ("--model", "random", "--timeout", "1")
        others = [{**task, "task_id": number, "max_steps": 8} for number in range(1, 9)]
        path.write_text(json.dumps([slow, *others]))
        process = start(tmp_path / "out", "--tasks", str(path), "--workers", "1", *options)
        wait_for_traces(tmp_path / "out", 1)
        (worker,) = worker_processes(process.pid)
        family = workers_of(worker)
        assert len(family) > 2  # the driver, the browser and its helpers
        wait_for_rows(tmp_path / "out", 1)
        wait_until_gone(family if limit == "episode" else [worker, *family])
        assert process.poll() is None, "the run ended before its processes could be counted"
        assert not zombies_of(process.pid)
    output = finish(process)
    rows = complete_rows(tmp_path / "out")
    assert [row.status for row in rows].count("timeout") == 1 and len(rows) == 9, output
    assert rows[0].status == "timeout" and not rows[0].attempts
