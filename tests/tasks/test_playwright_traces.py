"""Playwright's own traces of a run: beside ours, and never where a secret is known."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from agentkv_tasks.run.command import prepare
from agentkv_tasks.settings import RunSettings
from tests.local_site import Handler, served
from tests.tasks.runs import SMALL, complete_rows, play, refused, run

pytestmark = pytest.mark.browser

TASKS = "tasks.json"


class SignIn(Handler):
    """A form with one field, for a password."""

    def do_GET(self) -> None:
        self.send(b"<title>Sign in</title><label>Word <input type=password></label>")


def write_task(folder: Path, **changes: Any) -> str:
    path = folder / TASKS
    path.write_text(json.dumps([json.loads(SMALL.read_text())[0] | changes]))
    return str(path)


def test_a_playwright_trace_lies_beside_ours_and_changes_nothing(tmp_path: Path) -> None:
    options = ("--model", "solution", "--workers", "1", "--limit", "2")
    plainly = RunSettings.read(
        tasks=str(SMALL), model="solution", limit=2, out=tmp_path / "plain", ocr=False
    )
    untraced = play(prepare(plainly).plan)
    output = run(tmp_path / "traced", *options, "--playwright-traces")
    rows = complete_rows(tmp_path / "traced")
    assert len(rows) == 2 and all(row.success for row in rows), output
    for row, plain in zip(rows, untraced, strict=True):
        trace = tmp_path / "traced" / row.trace
        archive = trace.with_suffix(".zip")
        assert archive.stat().st_mode & 0o77 == 0
        with zipfile.ZipFile(archive) as opened:
            assert opened.testzip() is None and "trace.trace" in opened.namelist()
            assert b"resource-snapshot" in opened.read("trace.network")
        assert archive.name in trace.with_suffix(".html").read_text()
        assert not (tmp_path / "plain" / plain.trace).with_suffix(".zip").exists()
        assert (row.steps, row.reason) == (plain.steps, plain.reason)


def test_an_episode_that_typed_a_password_keeps_no_playwright_trace(tmp_path: Path) -> None:
    with served(SignIn) as origin:
        solution = ["type [textbox: Word] [hunter2] [0]", "stop []"]
        tasks = write_task(tmp_path, start_url=f"{origin}/", solution=solution)
        options = ("--tasks", tasks, "--model", "solution", "--workers", "1")
        output = run(tmp_path / "out", *options, "--playwright-traces")
    (row,) = complete_rows(tmp_path / "out")
    assert row.steps == 2, output
    assert not list((tmp_path / "out").rglob("*.zip"))
    for path in (tmp_path / "out").rglob("*"):
        assert path.is_dir() or b"hunter2" not in path.read_bytes(), path


def test_a_run_with_credentials_refuses_playwright_traces(tmp_path: Path) -> None:
    tasks = write_task(tmp_path, start_url="http://bo:k3y@127.0.0.1:9/")
    options = ("--tasks", tasks, "--model", "stop", "--playwright-traces")
    output = " ".join(refused(tmp_path / "out", *options).split())
    assert "an address holds credentials" in output
    assert "k3y" not in output and not (tmp_path / "out").exists()
