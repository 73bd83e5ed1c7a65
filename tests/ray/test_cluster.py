"""Runs on a Ray cluster of two nodes: equal rows; workers, nodes and drivers that are killed."""

import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from agentkv.trace import read_trace
from agentkv_tasks.results import Row
from tests.ray.conftest import NODE
from tests.tasks.runs import (
    complete_rows,
    finish,
    start,
    wait_for_rows,
    wait_until_gone,
    workers_of,
)

# Ray leaves sockets and processes to the garbage collector
pytestmark = [
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

LONG = ("--model", "random", "--max-steps", "10", "--seeds", "0,1,2", "--workers", "1")
"""Options of 12 episodes that last for some seconds."""
MEASURED = ("seconds", "finished_at", "rss_peak_bytes", "parts")
"""Fields of a row that differ between equal episodes."""


PATIENCE_S = 300.0
"""Starting Ray, actors and workers takes a minute where the processors are busy."""


def finished(process: "subprocess.Popen[str]") -> str:
    return finish(process, timeout_s=PATIENCE_S)


def on(cluster: Any) -> tuple[str, ...]:
    return ("--executor", "ray", "--ray-address", cluster.address)


def players() -> list[int]:
    """Return the processes that runners have started on the nodes, and their descendants."""
    found = []
    for pid in workers_of(os.getpid()):
        try:
            if "/agentkv-node-" in os.readlink(f"/proc/{pid}/fd/1"):
                found.append(pid)
        except OSError:
            continue
    return sorted({*found, *(deeper for pid in found for deeper in workers_of(pid))})


def left() -> list[Path]:
    """Return the folders of runners, those of killed ones included."""
    return list(Path(tempfile.gettempdir()).glob("agentkv-node-*"))


def workers() -> list[int]:
    """Return the workers on all nodes."""
    return [pid for pid in players() if os.getpgid(pid) == pid and os.getsid(pid) == pid]


def wait_for_workers(count: int) -> None:
    end = time.monotonic() + PATIENCE_S
    while len(workers()) < count:
        assert time.monotonic() < end, f"{count} workers did not start"
        time.sleep(0.1)


def require_complete(out: Path, count: int) -> list[Row]:
    """Return the rows of a run, of which each key has one."""
    lines = (out / "results.jsonl").read_text().splitlines()
    keys = Counter(Row(**json.loads(line)).key for line in lines)
    assert len(keys) == count and set(keys.values()) == {1}
    rows = complete_rows(out)
    for row in rows:
        if row.status != "crash":
            trace = read_trace(out / row.trace)
            assert trace.end is not None and len(trace.steps) == row.steps
    return rows


def by_key(rows: list[Row]) -> dict[str, dict[str, Any]]:
    return {
        row.key: {name: value for name, value in asdict(row).items() if name not in MEASURED}
        for row in rows
    }


def test_two_nodes_write_the_rows_of_a_local_run(cluster: Any, tmp_path: Path) -> None:
    options = ("--model", "solution", "--seeds", "0,1", "--workers", "1")
    output = finished(start(tmp_path / "ray", *options, *on(cluster)))
    finished(start(tmp_path / "local", *options))
    rows = require_complete(tmp_path / "ray", 8)
    assert by_key(rows) == by_key(complete_rows(tmp_path / "local"))
    assert all(row.success for row in rows)
    (line,) = re.findall("episodes by node: (.*)", output)
    assert len(played := line.split(", ")) == 2, output
    assert sum(int(each.split()[-1]) for each in played) == 8
    assert len(list((tmp_path / "ray" / "logs").glob("*/worker-0.log"))) == 2
    assert "Traceback" not in output and "raylet" not in output
    assert not players()


def test_screenshots_come_with_the_rows(cluster: Any, tmp_path: Path) -> None:
    options = ("--model", "solution", "--limit", "2", "--workers", "1", "--screenshots")
    finished(start(tmp_path, *options, *on(cluster)))
    for row in require_complete(tmp_path, 2):
        trace = tmp_path / row.trace
        names = [step.screenshot for step in read_trace(trace).steps]
        assert names and all((trace.with_suffix("") / name).is_file() for name in names)


def test_the_episode_of_a_worker_that_is_killed_on_a_node_is_played_again(
    cluster: Any, tmp_path: Path
) -> None:
    process = start(tmp_path, *LONG, *on(cluster))
    wait_for_rows(tmp_path, 2, timeout_s=PATIENCE_S)
    os.kill(workers()[0], signal.SIGKILL)
    output = finished(process)
    rows = require_complete(tmp_path, 12)
    (again,) = (row for row in rows if row.attempts)
    assert "the worker was killed by SIGKILL" in again.attempts[0].error, output
    assert read_trace(tmp_path / again.attempts[0].trace).end is None
    assert not any(row.status == "crash" for row in rows), output


@pytest.mark.parametrize("retries", [0, 1])
def test_the_episodes_of_a_lost_node_are_played_elsewhere(
    cluster: Any, tmp_path: Path, retries: int
) -> None:
    node = cluster.add_node(**NODE)
    cluster.wait_for_nodes()
    process = start(tmp_path, *LONG, "--retries", str(retries), *on(cluster))
    wait_for_workers(3)
    wait_for_rows(tmp_path, 3, timeout_s=PATIENCE_S)
    cluster.remove_node(node, allow_graceful=False)
    output = finished(process)
    assert process.returncode == 0, output
    rows = require_complete(tmp_path, 12)
    lost = [attempt for row in rows for attempt in row.attempts] if retries else rows
    errors = [each.error for each in lost if each.status == "crash"]
    assert len(errors) == 1 and f"-{node.node_id[:8]} was lost" in errors[0], output
    assert not players()


def test_a_run_whose_driver_is_killed_leaves_no_processes_and_can_be_continued(
    cluster: Any, tmp_path: Path
) -> None:
    process = start(tmp_path, *LONG, *on(cluster))
    wait_for_rows(tmp_path, 2, timeout_s=PATIENCE_S)
    family = players()
    assert len(family) > 4  # workers, drivers, browsers
    os.kill(process.pid, signal.SIGKILL)
    finished(process)
    wait_until_gone(family)
    assert left()
    before = complete_rows(tmp_path)
    output = finished(start(tmp_path, *LONG, *on(cluster)))
    assert f"{len(before)} of 12 episodes are done" in output
    assert require_complete(tmp_path, 12)[: len(before)] == before
    assert not left()


def test_an_interrupted_run_leaves_complete_rows_and_no_processes(
    cluster: Any, tmp_path: Path
) -> None:
    process = start(tmp_path, *LONG, *on(cluster))
    wait_for_rows(tmp_path, 2, timeout_s=PATIENCE_S)
    family = players()
    process.send_signal(signal.SIGINT)
    output = finished(process)
    assert process.returncode == 130, output
    assert "report.html" in output and "Traceback" not in output
    rows = complete_rows(tmp_path)
    assert len(require_complete(tmp_path, len(rows))) < 12
    wait_until_gone(family)


def test_an_address_that_does_not_answer_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    process = start(tmp_path, "--model", "stop", "--executor", "ray", "--ray-address", address)
    output = finished(process)
    assert process.returncode == 2
    assert f"no Ray cluster answers at {address}" in output and "ray start --head" in output
    assert len(output.splitlines()) == 1, output


def test_a_browser_that_is_missing_on_the_nodes_is_named_with_the_node(
    cluster: Any, tmp_path: Path
) -> None:
    browser = tmp_path / "browser"
    browser.write_text("#!/bin/sh\nexit 1\n")
    browser.chmod(0o755)
    options = ("--model", "stop", "--workers", "1", "--browser-path", str(browser))
    process = start(tmp_path / "out", *options, *on(cluster))
    output = finished(process)
    assert process.returncode in (1, 2), output
    assert re.search(r"agentkv: \S+: ", output) and "Traceback" not in output
    assert not complete_rows(tmp_path / "out") and not players()
