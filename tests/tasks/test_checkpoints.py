"""An interrupted episode resumes where it stopped, with the same cache."""

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from agentkv.models.saved import INDEX
from agentkv.trace import Step, read_trace
from agentkv_tasks.results import Row
from agentkv_tasks.run.checkpoints import FOLDER
from tests.sampling import sampled
from tests.tasks.runs import complete_rows, finish, run, start, wait_until_gone, workers_of

pytestmark = [pytest.mark.browser, pytest.mark.slow]

LONG = (
    *("--tasks", "vwa-long", "--model", "nano", "--device", "cpu", "--limit", "1"),
    *("--workers", "1", "--max-steps", "7", "--budget", "1024"),
)
SAMPLED = ("--policies", "conf-kv-int8", "--temperature", "0.7")
NUM_BEFORE = 4
"""Steps after which a run is killed."""


def num_steps(out: Path) -> int:
    return sum(path.read_text().count('"piece_ends"') for path in out.glob("traces/*.jsonl"))


def kill_within_an_episode(out: Path, *options: str) -> None:
    """Start a run, and kill its processes once its episode has some steps."""
    process = start(out, *LONG, "--checkpoint", "0", *options)
    end = time.monotonic() + 100
    while num_steps(out) < NUM_BEFORE:
        assert process.poll() is None and time.monotonic() < end, "the episode did not begin"
        time.sleep(0.02)
    family = workers_of(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    finish(process)
    wait_until_gone(family)
    assert not complete_rows(out)


def named_cache(out: Path) -> Path:
    """Return the cache that the only checkpoint of a run names.

    A run that is killed while it saves leaves another one beside it.
    """
    (index,) = out.glob(f"{FOLDER}/*/{INDEX}")
    return index.with_name(json.loads(index.read_text())["cache"])


def go_on(out: Path, *options: str) -> tuple[Row, list[Step]]:
    """Start the run again, and return its only row and the steps of its trace."""
    output = run(out, *LONG, "--checkpoint", "0", *options)
    rows = complete_rows(out)
    assert len(rows) == 1, output
    assert ("resumed from a checkpoint" in output) == bool(rows[0].resumed_steps)
    page = (out / rows[0].trace).with_suffix(".html").read_text()
    assert ("Resumed from a checkpoint" in page) == bool(rows[0].resumed_steps)
    return rows[0], list(read_trace(out / rows[0].trace).steps)


def without_times(row: Row) -> dict[str, Any]:
    measured = ("seconds", "prefill_s", "decode_s", "finished_at", "rss_peak_bytes")
    return {name: value for name, value in asdict(row).items() if name not in measured}


def untimed(steps: list[Step]) -> list[Step]:
    return [replace(step, prefill_s=0.0, decode_s=0.0, seconds=0.0) for step in steps]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Row, list[Step]]:
    """The row and the steps of a run that nothing interrupted."""
    return go_on(tmp_path_factory.mktemp("whole"), *SAMPLED)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("killed")
    kill_within_an_episode(out, *SAMPLED)
    return out


@pytest.fixture
def copy(killed: Path, tmp_path: Path) -> Iterator[Path]:
    """A run that was killed in the middle of an episode."""
    out = tmp_path / "out"
    shutil.copytree(killed, out)
    yield out
    assert not (out / FOLDER).exists()  # a finished episode needs none


def test_an_interrupted_episode_resumes_with_the_same_cache(
    copy: Path, whole: tuple[Row, list[Step]]
) -> None:
    saved = list((copy / FOLDER).glob("*/*"))
    assert named_cache(copy) in saved and all(file.stat().st_mode & 0o77 == 0 for file in saved)
    row, steps = go_on(copy, *SAMPLED)
    assert row.resumed_steps >= NUM_BEFORE - 1
    assert without_times(replace(row, resumed_steps=0)) == without_times(whole[0])
    assert untimed(steps) == untimed(whole[1])
    assert row.seconds > sum(step.seconds for step in steps[: row.resumed_steps])


@pytest.mark.parametrize(
    "options",
    [
        ("--policies", "lookback-int8"),
        pytest.param(
            ("--policies", "window", "--observations", "changes"), marks=pytest.mark.exhaustive
        ),
        pytest.param(("--policies", "full", "--no-pins"), marks=pytest.mark.exhaustive),
    ],
)
def test_it_does_so_under_other_policies(options: tuple[str, ...], tmp_path: Path) -> None:
    expected, expected_steps = go_on(tmp_path / "whole", *options)
    kill_within_an_episode(tmp_path / "killed", *options)
    row, steps = go_on(tmp_path / "killed", *options)
    assert row.resumed_steps
    assert without_times(replace(row, resumed_steps=0)) == without_times(expected)
    assert untimed(steps) == untimed(expected_steps)


@pytest.mark.parametrize("what", sampled(["page", "cache", "trace", "settings"], every=4, first=1))
def test_an_episode_that_cannot_resume_starts_over(
    what: str, copy: Path, whole: tuple[Row, list[Step]]
) -> None:
    (trace,) = copy.glob("traces/*.jsonl")
    lines = [json.loads(line) for line in trace.read_text().splitlines() if line.endswith("}")]
    match what:
        case "page":
            first = next(line for line in lines if line["kind"] == "step")
            first["observation"] = f"heading: Another page\n{first['observation']}"
        case "cache":
            cache = named_cache(copy)
            cache.write_bytes(cache.read_bytes()[:-9])
        case "trace":
            del lines[-3:]
        case "settings":
            lines[0]["settings"]["max_new_tokens"] = 7
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    row, steps = go_on(copy, *SAMPLED)
    assert without_times(row) == without_times(whole[0])
    assert untimed(steps) == untimed(whole[1])
    assert "the episode starts over: " in (copy / "logs" / "worker-0.log").read_text()


@pytest.mark.exhaustive
def test_a_fresh_run_takes_no_checkpoint(copy: Path) -> None:
    row, _ = go_on(copy, *SAMPLED, "--fresh")
    assert not row.resumed_steps
