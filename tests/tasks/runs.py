"""Runs in this process, and as separate processes that are observed from outside."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from click.testing import Result
from typer.testing import CliRunner

from agentkv_tasks.cli.app import cli
from agentkv_tasks.provenance import commit, versions
from agentkv_tasks.results import Results, Row, read_rows
from agentkv_tasks.run.command import prepare
from agentkv_tasks.run.episode_runner import EpisodeRunner
from agentkv_tasks.run.plan import Job, Plan
from agentkv_tasks.settings import RunSettings

REPOSITORY = Path(__file__).parents[2]
SMALL = Path(__file__).parent / "data" / "small.json"


def arguments(out: Path, *more: str) -> list[str]:
    return [
        *("run", "--tasks", str(SMALL), "--out", str(out), "--no-screenshots", "--no-ocr", *more)
    ]


def run(out: Path, *more: str) -> str:
    """Run episodes in a worker, with the runner in this process, and return the output."""
    return _invoke(out, *more).output


def refused(out: Path, *more: str) -> str:
    """Return what a run says whose options are wrong."""
    result = _invoke(out, *more)
    assert result.exit_code == 2, result.output
    return result.output


def _invoke(out: Path, *more: str) -> Result:
    result = CliRunner().invoke(cli, arguments(out, "--workers", "1", *more))
    if not isinstance(result.exception, SystemExit | None):
        raise result.exception
    return result


def play(plan: Plan, jobs: Sequence[Job] | None = None) -> list[Row]:
    """Play episodes in this process, without a scheduler, and return their rows."""
    with EpisodeRunner(plan, None) as runner:
        return [runner.run(job, lambda step: None) for job in (plan.jobs if jobs is None else jobs)]


def play_all(settings: RunSettings) -> None:
    """Play a run's episodes in this process, so that the run itself finds them done."""
    plan = prepare(settings).plan
    assert settings.out is not None
    with Results(settings.out / "results.jsonl") as results:
        for row in play(plan):
            results.append(replace(row, versions=versions() | row.versions, commit=commit()))


def start(out: Path, *more: str) -> "subprocess.Popen[str]":
    path = os.pathsep.join(str(REPOSITORY / room) for room in (".", "env", "kernels", "tasks"))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "agentkv", *arguments(out, *more)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # a test's SIGINT must reach only the run
    )


def finish(process: "subprocess.Popen[str]", *, timeout_s: float = 120) -> str:
    output, _ = process.communicate(timeout=timeout_s)
    return output


def complete_rows(out: Path) -> list[Row]:
    path = out / "results.jsonl"
    return read_rows(path) if path.exists() else []


def wait_for_rows(out: Path, count: int, *, timeout_s: float = 90) -> None:
    end = time.monotonic() + timeout_s
    while len(complete_rows(out)) < count:
        assert time.monotonic() < end, f"{count} rows did not appear"
        time.sleep(0.05)


def wait_for_traces(out: Path, count: int) -> None:
    """Wait until `count` episodes have begun."""
    end = time.monotonic() + 60
    while len(list(out.glob("traces/*.jsonl"))) < count:
        assert time.monotonic() < end, f"{count} episodes did not begin"
        time.sleep(0.02)


def workers_of(pid: int) -> list[int]:
    """Return the process ids of all descendants of `pid`."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(entry.parent.name)] = int(fields[1])
    found = [child for child, parent in parents.items() if parent == pid]
    return found + [deeper for child in found for deeper in workers_of(child)]


def browsers_of(pid: int) -> list[int]:
    """Return the main processes of the browsers among the descendants of `pid`."""
    lines = {child: " ".join(command_of(child)) for child in workers_of(pid)}
    found = {
        child
        for child, line in lines.items()
        if "--remote-debugging" in line and "--type=" not in line
    }
    return [child for child in found if not found & set(workers_of(child))]  # not its shell script


def worker_processes(pid: int) -> list[int]:
    """Return the workers of a run: they write worker-N.log, and lead a process group."""
    found = []
    for child in workers_of(pid):
        try:
            log = Path(os.readlink(f"/proc/{child}/fd/1")).name
            if log.startswith("worker-") and os.getpgid(child) == child:
                found.append(child)
        except OSError:
            continue
    return found


def command_of(pid: int) -> list[str]:
    """Return the command line of a process; empty once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def zombies_of(pid: int) -> list[int]:
    """Return the descendants of `pid` that have ended and that nobody has waited for."""
    found = []
    for child in workers_of(pid):
        try:
            state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state == "Z":
            found.append(child)
    return found


def wait_until_gone(pids: list[int]) -> None:
    end = time.monotonic() + 30
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < end, "processes of a killed run are still alive"
        time.sleep(0.1)


NANO = (
    *("--model", "nano", "--device", "cpu", "--policies", "full,conf-kv-int8", "--budget", "128"),
    *("--limit", "2", "--max-steps", "4"),
)


"""Options of a run of four short episodes with the shipped model."""


def model_of(pid: int) -> int | None:
    """Return the process of a run that writes model.log."""
    for child in workers_of(pid):
        try:
            if os.readlink(f"/proc/{child}/fd/1").endswith("/model.log"):
                return child
        except OSError:
            continue
    return None


def wait_for_steps(out: Path, count: int) -> None:
    """Wait until `count` episodes have finished their first step."""
    end = time.monotonic() + 120
    while sum(path.read_text().count("\n") > 1 for path in out.glob("traces/*.jsonl")) < count:
        assert time.monotonic() < end, f"{count} episodes did not finish a step"
        time.sleep(0.02)
