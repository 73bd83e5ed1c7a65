"""Any one process of a run is killed at a random moment; every episode still gets its right row."""

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from agentkv_tasks.results import Row
from tests.tasks.runs import (
    NANO,
    browsers_of,
    command_of,
    complete_rows,
    finish,
    model_of,
    start,
    wait_for_traces,
    wait_until_gone,
    worker_processes,
    workers_of,
)

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SITES = """
tasks = "tasks.json"
[sites.diary]
address = "http://127.0.0.1:{port}"
start = ["{python}", "diary.py", "{port}"]
reset = { get = "/reset" }
"""
NUM_TASKS = 8
LONGEST_S = {"model": 8.0}
"""Seconds after the start of a process within which it is killed, 4 where it is not said; a whole
run takes longer."""
KINDS = {"browser": 4, "driver": 2, "site": 4, "worker": 4, "model": 3, "runner": 3}
"""Kind of process to the number of moments at which one is killed."""
OTHERWISE = {"model", "worker"}
"""Kinds of which CI kills one in test_runner_deaths.py alone; of the others it kills one here."""


def write_tasks(folder: Path) -> Path:
    """Write a file of sites with short tasks that fail if their site is lost on the way."""
    shutil.copy(Path(__file__).with_name("diary.py"), folder)
    tasks = [
        {
            "sites": ["diary"],
            "task_id": number,
            "start_url": "__DIARY__/",
            "intent_template": "Stay in the diary.",
            "intent_template_id": 0,
            "intent": "Stay in the diary.",
            "eval": {"eval_types": ["url_match"], "reference_url": "__DIARY__/login"},
            "solution": ["goto [http://diary.localhost/login]"] * 3 + ["stop []"],
        }
        for number in range(NUM_TASKS)
    ]
    (folder / "tasks.json").write_text(json.dumps(tasks))
    path = folder / "mine.toml"
    path.write_text(SITES)
    return path


def running(kind: str, runner: int) -> list[int]:
    """Return the processes of a kind in a run."""
    if kind == "runner":
        return [runner]
    if kind == "model":
        model = model_of(runner)
        return [] if model is None else [model]
    if kind == "browser":
        return browsers_of(runner)
    family = {pid: command_of(pid) for pid in workers_of(runner)}
    if kind == "site":
        return [pid for pid, words in family.items() if words[1:2] == ["diary.py"]]
    if kind == "driver":
        return [pid for pid, words in family.items() if "run-driver" in words]
    return worker_processes(runner)


def wait_for(kind: str, process: "subprocess.Popen[str]") -> list[int]:
    """Wait until the run has a process of a kind, and return all of them."""
    end = time.monotonic() + 60
    while not (found := running(kind, process.pid)):
        assert process.poll() is None, "the run ended before the moment came"
        assert time.monotonic() < end, f"no {kind} has started"
        time.sleep(0.01)
    return found


MOMENTS = [
    pytest.param(kind, number, marks=pytest.mark.exhaustive if number or kind in OTHERWISE else ())
    for kind, count in KINDS.items()
    for number in range(count)
]


@pytest.mark.parametrize(("kind", "moment"), MOMENTS)
def test_no_row_is_lost_when_a_process_is_killed(
    kind: str, moment: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIARY_PASSWORD", "none")
    seed = random.SystemRandom().randrange(10**9)
    print(f"seed {seed}")
    rng = random.Random(seed)
    out = tmp_path / "out"
    if kind == "model":
        options = (*NANO, "--workers", "2", "--seeds", "0,1")
    else:
        tasks = ("--tasks", str(write_tasks(tmp_path)))
        options = (*tasks, "--model", "solution", "--workers", "2", "--seeds", "0,1,2")
    process = start(out, *options)
    wait_for(kind, process)
    if kind == "site":  # a run whose sites do not start says so, and ends
        wait_for_traces(out, 1)
    time.sleep(rng.uniform(0, LONGEST_S.get(kind, 4.0)))
    killed = rng.choice(wait_for(kind, process))
    family = workers_of(process.pid)
    os.kill(killed, signal.SIGKILL)
    output = finish(process)
    wait_until_gone(family)
    if kind == "runner":
        output += finish(process := start(out, *options))
    assert process.returncode == 0, output

    lines = (out / "results.jsonl").read_text().splitlines()
    keys = Counter(Row(**json.loads(line)).key for line in lines)
    expected = 8 if kind == "model" else 3 * NUM_TASKS
    assert len(keys) == expected and set(keys.values()) == {1}, output
    rows = complete_rows(out)
    assert not {"crash", "env_error", "timeout"} & {row.status for row in rows}, output
    if kind != "model":
        assert all(row.success for row in rows), output
    assert sum(len(row.attempts) for row in rows) <= 2, output  # the model may serve two
