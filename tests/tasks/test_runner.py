"""Complete runs in separate processes: killed, continued, and with workers that die or hang."""

import json
import os
import resource
import signal
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from agentkv.trace import read_trace
from agentkv_env.browser import find_executable
from agentkv_tasks.results import Row
from tests.sampling import sampled
from tests.tasks.runs import (
    SMALL,
    browsers_of,
    complete_rows,
    finish,
    refused,
    run,
    start,
    wait_for_rows,
    wait_for_steps,
    wait_for_traces,
    wait_until_gone,
    worker_processes,
    workers_of,
)

pytestmark = pytest.mark.browser


@pytest.mark.slow
def test_a_killed_run_leaves_no_processes_and_can_be_continued(
    tmp_path: Path,
) -> None:
    options = ("--model", "solution", "--policies", "full,window", "--seeds", "0,1")
    process = start(tmp_path, *options)
    wait_for_rows(tmp_path, 3)
    family = workers_of(process.pid)
    assert len(family) > 4  # workers, drivers, browsers
    os.kill(process.pid, signal.SIGKILL)
    finish(process)
    wait_until_gone(family)
    before = complete_rows(tmp_path)
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"suite": "small", "torn')  # as after a power cut

    output = run(tmp_path, *options)

    assert f"{len(before)} of 16 episodes are done" in output
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    keys = Counter(Row(**json.loads(line)).key for line in lines)
    assert len(keys) == 16 and set(keys.values()) == {1}
    rows = complete_rows(tmp_path)
    assert rows[: len(before)] == before
    assert all(row.success and row.status == "stopped" for row in rows)
    assert all(row.rss_peak_bytes and row.versions["playwright"] for row in rows)
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize("retries", sampled([1, 0], every=2))
def test_the_episode_of_a_killed_worker_is_played_again(tmp_path: Path, retries: int) -> None:
    options = ("--model", "random", "--max-steps", "6", "--workers", "1", "--limit", "2")
    process = start(tmp_path, *options, "--retries", str(retries))
    wait_for_traces(tmp_path, 1)
    (worker,) = worker_processes(process.pid)
    os.kill(worker, signal.SIGKILL)
    output = finish(process)
    rows = sorted(complete_rows(tmp_path), key=lambda row: row.task_id)
    assert [row.task_id for row in rows] == [0, 1]
    assert [len(row.attempts) for row in rows] == [retries, 0]
    assert [row.status for row in rows].count("crash") == 1 - retries
    lost = rows[0].attempts[0] if retries else rows[0]
    assert lost.status == "crash" and "the worker was killed by SIGKILL" in lost.error
    assert ("full: 1 episode played again after 1 crash" in output) == bool(retries)
    if retries:
        first, last = (read_trace(tmp_path / each.trace) for each in (lost, rows[0]))
        assert first.head == last.head and first.end is None and last.end is not None


@pytest.mark.slow
def test_the_episode_of_a_killed_browser_is_played_again_in_another_one(tmp_path: Path) -> None:
    process = start(tmp_path, "--model", "random", "--workers", "1")
    wait_for_traces(tmp_path, 1)
    (browser,) = browsers_of(process.pid)
    wait_for_steps(tmp_path, 1)
    os.kill(browser, signal.SIGKILL)
    output = finish(process)
    again = [row for row in complete_rows(tmp_path) if row.attempts]
    assert [row.attempts[0].status for row in again] == ["env_error"], output
    assert not any(row.status == "env_error" for row in complete_rows(tmp_path))
    assert ": env_error, played again; " in output
    kept = read_trace(tmp_path / again[0].attempts[0].trace)
    assert len(kept.steps) == again[0].attempts[0].steps > 0
    page = (tmp_path / "traces" / Path(again[0].trace).with_suffix(".html").name).read_text()
    assert "Played again after env_error" in page and again[0].attempts[0].trace in page


def test_an_interrupted_run_leaves_complete_rows_a_table_and_a_report(tmp_path: Path) -> None:
    process = start(tmp_path, "--model", "stop", "--seeds", "0,1,2,3,4,5,6,7", "--workers", "1")
    wait_for_rows(tmp_path, 1)
    page, reload = tmp_path / "report.html", '<meta http-equiv="refresh"'
    assert reload in page.read_text()
    family = workers_of(process.pid)
    process.send_signal(signal.SIGINT)
    output = finish(process)
    assert process.returncode == 130
    assert "success" in output and "report.html" in output and "Traceback" not in output
    assert reload not in page.read_text() and "The run is not finished: " in page.read_text()
    assert "Where the time goes" not in page.read_text() and "mean of" not in output
    assert all(row.parts is None for row in complete_rows(tmp_path))  # it is not profiled
    assert 1 <= len(complete_rows(tmp_path)) < 32
    wait_until_gone(family)


@pytest.mark.slow
def test_a_page_that_hangs_or_does_not_load_is_a_failure_of_the_harness(tmp_path: Path) -> None:
    silent = socket.create_server(("127.0.0.1", 0))  # accepts connections and never answers
    task = json.loads(SMALL.read_text())[0]
    hanging = {**task, "start_url": f"http://127.0.0.1:{silent.getsockname()[1]}/"}
    refused = {**task, "task_id": 1, "start_url": "http://127.0.0.1:9/"}
    path = tmp_path / "outside.json"
    path.write_text(json.dumps([hanging, refused]))
    options = ("--model", "stop", "--tasks", str(path), "--step-timeout", "3", "--workers", "1")
    with silent:
        output = run(tmp_path / "out", *options)
    killed, unloaded = complete_rows(tmp_path / "out")
    assert killed.status == "timeout" and "no step was finished in 3 s" in killed.error
    assert unloaded.status == "env_error" and "127.0.0.1:9" in unloaded.error
    assert not killed.attempts  # another attempt would take as long
    (first,) = unloaded.attempts
    assert first.status == "env_error" and first.error == unloaded.error
    assert "1 env_error, 1 timeout (counted as failures)" in output


def test_a_profiled_run_splits_the_time_of_each_episode(tmp_path: Path) -> None:
    options = ("--model", "stop", "--limit", "2", "--workers", "1")
    output = run(tmp_path, *options, "--profile")
    rows = {row.task_id: row for row in complete_rows(tmp_path)}
    assert rows[0].success  # its goal is to stay on the first page
    assert not rows[1].success and "42" in rows[1].reason
    for row in rows.values():
        assert row.parts is not None
        assert {"browser", "walk", "scoring", "the rest"} <= set(row.parts)
        assert all(seconds >= 0 for seconds in row.parts.values())
        assert sum(row.parts.values()) <= row.seconds + 0.01  # rounding
        assert sum(row.parts.values()) > 0.9 * row.seconds
    assert "mean of 2 episodes" in output and "browser" in output
    assert "Where the time goes" in (tmp_path / "report.html").read_text()


def test_invalid_options_start_nothing(tmp_path: Path) -> None:
    output = refused(tmp_path, "--model", "stop", "--policies", "full,gatd")
    assert "unknown policy 'gatd'" in output
    assert not (tmp_path / "results.jsonl").exists()


@pytest.mark.slow
def test_a_browser_that_fails_to_start_is_started_again(tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f"""#!/bin/sh
        mkdir "{tmp_path}/tried" 2>/dev/null && exit 1
        exec "{find_executable()}" "$@"\n""")
    browser.chmod(0o755)
    options = ("--model", "stop", "--limit", "1", "--workers", "1", "--browser-path", str(browser))
    output = run(tmp_path / "out", *options)
    assert [row.status for row in complete_rows(tmp_path / "out")] == ["stopped"], output


@pytest.mark.slow
def test_a_row_that_cannot_be_written_ends_the_run_which_can_be_continued(
    tmp_path: Path,
) -> None:
    options = ("--model", "stop", "--seeds", "0,1", "--workers", "1")
    process = start(tmp_path, *options)
    wait_for_rows(tmp_path, 2)
    file = tmp_path / "results.jsonl"
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (file.stat().st_size + 20,) * 2)
    output = finish(process)
    assert process.returncode == 1 and "Traceback" not in output
    assert f"agentkv: {file}: could not be written: File too large; what was" in output
    before = complete_rows(tmp_path)
    assert file.read_bytes().count(b"\n") == len(before) and file.read_bytes().endswith(b"\n")
    assert not list(tmp_path.glob("**/*.part"))
    output = run(tmp_path, *options)
    assert f"{len(before)} of 8 episodes are done" in output
    assert len(complete_rows(tmp_path)) == 8


@pytest.mark.slow
def test_a_trace_that_cannot_be_written_ends_the_run_which_can_be_continued(
    tmp_path: Path,
) -> None:
    options = ("--model", "stop", "--seeds", "0,1", "--workers", "1")
    process = start(tmp_path, *options)
    wait_for_rows(tmp_path, 1)
    worker = next(pid for pid in workers_of(process.pid) if os.getpgid(pid) == pid)
    resource.prlimit(worker, resource.RLIMIT_FSIZE, (100, 100))
    output = finish(process)
    assert process.returncode == 1 and "Traceback" not in output
    assert f"agentkv: {tmp_path}/traces/" in output
    assert "could not be written: File too large; what was written before is intact" in output
    before = complete_rows(tmp_path)
    assert 1 <= len(before) < 8 and all(row.status == "stopped" for row in before)
    run(tmp_path, *options)
    rows = complete_rows(tmp_path)
    assert rows[: len(before)] == before
    assert len(rows) == 8 and all(row.status == "stopped" for row in rows)


@pytest.mark.slow
def test_a_second_run_in_the_same_folder_is_refused_and_disturbs_nothing(tmp_path: Path) -> None:
    options = ("--model", "stop", "--seeds", "0,1,2", "--workers", "1")
    first = start(tmp_path, *options)
    wait_for_rows(tmp_path, 1)
    first.send_signal(signal.SIGSTOP)  # it must not end before the second one begins
    second = start(tmp_path, *options, "--fresh")
    output = finish(second)
    first.send_signal(signal.SIGCONT)
    assert second.returncode == 2 and "another run is writing here; give another --out" in output
    finish(first)
    assert first.returncode == 0 and len(complete_rows(tmp_path)) == 12


@pytest.mark.parametrize("change", [{"schema": 2}, {"flavour": "sweet"}], ids=str)
def test_a_run_of_another_version_is_refused_before_the_first_episode(
    tmp_path: Path, change: dict[str, object], row: Callable[..., Row]
) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps({**json.loads(row().to_json()), **change}) + "\n")
    before = path.read_bytes()
    output = refused(tmp_path, "--model", "stop")
    assert f"{path}: line 1: " in output
    assert "another version of agentkv wrote it" in output and "--fresh" in output
    assert path.read_bytes() == before and not any((tmp_path / "traces").iterdir())
