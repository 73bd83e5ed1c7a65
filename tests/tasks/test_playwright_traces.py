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


class SignIn(Handler):
    """A form with one field, for a password."""

    def do_GET(self) -> None:
        self.send(b"<title>Sign in</title><label>Word <input type=password></label>")


def task(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SMALL.read_text())[0]
    return found | changes


def test_a_trace_lies_beside_ours_and_changes_nothing_and_none_where_a_password_was_typed(
    tmp_path: Path,
) -> None:
    plain, traced, tasks = tmp_path / "plain", tmp_path / "traced", tmp_path / "tasks.json"
    typed = ["type [textbox: Word] [hunter2] [0]", "stop []"]
    with served(SignIn) as origin:
        secret = task(task_id=9, start_url=f"{origin}/", solution=typed)
        tasks.write_text(json.dumps([*json.loads(SMALL.read_text())[:2], secret]))
        plainly = RunSettings.read(
            tasks=str(SMALL), model="solution", limit=2, out=plain, ocr=False
        )
        untraced = play(prepare(plainly).plan)
        options = ("--tasks", str(tasks), "--model", "solution", "--playwright-traces")
        output = run(traced, *options)
    *rows, last = sorted(complete_rows(traced), key=lambda row: row.task_id)
    assert len(rows) == 2 and all(row.success for row in rows) and last.steps == 2, output
    for row, other in zip(rows, untraced, strict=True):
        trace = traced / row.trace
        archive = trace.with_suffix(".zip")
        assert archive.stat().st_mode & 0o77 == 0
        with zipfile.ZipFile(archive) as opened:
            assert opened.testzip() is None and "trace.trace" in opened.namelist()
            assert b"resource-snapshot" in opened.read("trace.network")
        assert archive.name in trace.with_suffix(".html").read_text()
        assert not (plain / other.trace).with_suffix(".zip").exists()
        assert (row.steps, row.reason) == (other.steps, other.reason)
    assert len(list(traced.rglob("*.zip"))) == 2
    for path in traced.rglob("*"):
        assert path.is_dir() or b"hunter2" not in path.read_bytes(), path


def test_a_run_with_credentials_refuses_playwright_traces(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.json"
    tasks.write_text(json.dumps([task(start_url="http://bo:k3y@127.0.0.1:9/")]))
    options = ("--tasks", str(tasks), "--model", "stop", "--playwright-traces")
    output = " ".join(refused(tmp_path / "out", *options).split())
    assert "an address holds credentials" in output
    assert "k3y" not in output and not (tmp_path / "out").exists()
