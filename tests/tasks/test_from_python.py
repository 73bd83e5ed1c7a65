"""Tests for `agentkv.run` and `agentkv.report`."""

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import agentkv
from agentkv_tasks.results import read_rows
from agentkv_tasks.run.display import RunDisplay
from tests.tasks.runs import REPOSITORY, SMALL

QUICK: dict[str, Any] = {"model": "solution", "ocr": False, "screenshots": False, "workers": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def done(folder: Path) -> Any:
    """The report of a run of a task under two policies."""
    out = folder / "one"
    return agentkv.run(SMALL, ["full", {"name": "window"}], out=out, limit=1, **QUICK)


@pytest.fixture(scope="module")
def by_script(folder: Path) -> "subprocess.CompletedProcess[str]":
    """A script without a guard that has run a task of another world."""
    script = folder / "script.py"
    given = {"out": str(folder / "other"), "world_seed": 12, "limit": 1, **QUICK}
    script.write_text(
        "import agentkv\n"
        f"report = agentkv.run({str(SMALL)!r}, **{given})\n"
        "print([row.success for row in report.rows])\n"
    )
    path = os.pathsep.join(str(REPOSITORY / room) for room in (".", "env", "kernels", "tasks"))
    return subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.browser
def test_a_run_returns_its_rows_and_its_report(done: Any, folder: Path) -> None:
    assert [(row.task_id, row.policy) for row in done.rows] == [
        (row.task_id, row.policy) for row in read_rows(folder / "one" / "results.jsonl")
    ]
    assert {row.policy for row in done.rows} == {"full", "window"}
    assert [row.success for row in done.rows] == [True] * 2
    assert done.path == folder / "one" / "report.html"
    assert "<html" in done.path.read_text()


@pytest.mark.browser
def test_an_equal_call_continues_the_run_and_returns_only_its_own_rows(
    done: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = agentkv.run(SMALL, ["full"], out=folder / "one", limit=1, **QUICK)
    assert again.rows == tuple(row for row in done.rows if row.policy == "full")
    assert capsys.readouterr().out == ""
    agentkv.run(SMALL, ["full"], out=folder / "one", limit=1, show_progress=True, **QUICK)
    assert "1 of 1 episodes are done" in capsys.readouterr().out


@pytest.mark.browser
def test_a_frame_has_a_row_for_each_episode_and_a_column_for_each_field(done: Any) -> None:
    frame = done.frame()
    assert len(frame) == 2
    assert frame.groupby("policy")["success"].mean().to_dict() == {"full": 1.0, "window": 1.0}
    assert {"task_id", "kv_peak_bytes", "settings"} <= set(frame.columns)


@pytest.mark.browser
def test_a_report_pools_runs(done: Any, by_script: object, folder: Path) -> None:
    other = read_rows(folder / "other" / "results.jsonl")
    assert [row.policy for row in other] == ["full"]  # a scripted model needs no other
    pooled = agentkv.report(folder / "one", str(folder / "other"), against=["window"])
    assert pooled.rows == (*done.rows, *other)
    assert pooled.path == folder / "report.html"
    assert "| window |" in pooled.markdown(against=["window"])
    alone = agentkv.report(folder / "one")
    assert (alone.rows, alone.path) == (done.rows, done.path)


def test_a_quiet_run_leaves_the_output_of_its_caller_alone() -> None:
    console = Console(quiet=True, force_terminal=True)
    before = sys.stdout
    with RunDisplay(console, title="x", totals={"full": 1}, rows=(), workers=1):
        assert sys.stdout is before


def test_without_a_terminal_a_run_says_what_it_prepares_and_how_long_it_takes() -> None:
    console = Console(file=io.StringIO(), width=80)
    with RunDisplay(console, title="x", totals={"full": 1}, rows=(), workers=1) as display:
        display.preparing("loading nano")
    assert console.file.getvalue().splitlines() == ["x", "loading nano (00:00)"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"policies": ["wndow"]}, "wndow"),
        ({"policies": "full, wndow"}, "wndow"),
        ({"scoring": "strict"}, "scoring: expected 'compat' or 'mended', found 'strict'"),
        ({"step_timeout_s": 0}, "step_timeout_s: expected greater than 0, found 0"),
        ({"executor": "slurm"}, "executor: expected 'local' or 'ray', found 'slurm'"),
        ({"ray_address": "auto"}, "ray_address needs executor ray"),
        ({"worlds": 3}, r"unknown setting 'worlds'; did you mean 'world_seed'\? known: model"),
        ({"limit": 0}, "limit: .* found 0"),
        ({"tasks": "vwa76"}, "vwa75"),
    ],
)
def test_a_wrong_argument_is_named_before_anything_runs(
    tmp_path: Path, arguments: dict[str, Any], problem: str
) -> None:
    given: dict[str, Any] = {"tasks": SMALL, "out": tmp_path / "out", **QUICK, **arguments}
    with pytest.raises(ValueError, match=problem):
        agentkv.run(**given)
    assert not (tmp_path / "out").exists()


def test_a_report_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one folder"):
        agentkv.report()
    with pytest.raises(ValueError, match=r"results\.jsonl"):
        agentkv.report(tmp_path)


@pytest.mark.browser
def test_a_script_needs_no_guard_because_workers_do_not_import_it(
    by_script: "subprocess.CompletedProcess[str]",
) -> None:
    assert (by_script.stdout, by_script.returncode) == ("[True]\n", 0), by_script.stderr
