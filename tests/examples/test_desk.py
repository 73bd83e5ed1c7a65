"""The help desk of `docs/training.md`: `examples/desk` has five tasks to learn and five others."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentkv.recordings import read_recordings

ROOT = Path(__file__).parents[2]
DESK = ROOT / "examples/desk"
PAGE = (ROOT / "docs/training.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## A site of your own")[2].partition("\n## ")[0]


def agentkv(*arguments: str, folder: Path = DESK) -> "subprocess.CompletedProcess[str]":
    rooms = os.pathsep.join(str(ROOT / room) for room in (".", "env", "kernels", "tasks"))
    return subprocess.run(
        [sys.executable, "-m", "agentkv", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": rooms, "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )


@pytest.mark.browser
def test_the_command_of_the_page_records_five_episodes(tmp_path: Path) -> None:
    command = "tasks record desk.jsonl --tasks learned.toml"
    assert f"    agentkv {command}\n" in SECTION
    done = agentkv(*command.replace("desk.jsonl", str(tmp_path / "desk.jsonl")).split())
    assert "5 of 5 episodes" in done.stdout + done.stderr
    goals = {each.goal for each in read_recordings(tmp_path / "desk.jsonl")}
    assert goals == {task["intent"] for task in tasks("learned")}


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("name", ["learned", "desk"])
def test_every_task_is_solved_by_its_solution_alone(name: str) -> None:
    done = agentkv("tasks", "check", f"{name}.toml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("does not pass") == done.stdout.count("solution          passes") == 5


def test_the_other_tasks_are_of_the_same_kinds_and_about_other_tickets() -> None:
    learned, others = tasks("learned"), tasks("tasks")
    kinds = [sorted(task["intent_template"] for task in each) for each in (learned, others)]
    assert kinds[0] == kinds[1] and len(kinds[0]) == 5
    of_learned, of_others = (
        {task["instantiation_dict"]["ticket"] for task in each} for each in (learned, others)
    )
    assert len(of_learned | of_others) == 10


def test_the_page_shows_the_goals_and_the_site_file() -> None:
    (shown,) = re.findall(r"```toml\n(.*?)```", SECTION, re.S)
    assert shown == (DESK / "desk.toml").read_text(encoding="utf-8")
    goals = re.findall(r"\* `(.*)`", SECTION)
    assert len(goals) == 3 and set(goals) < {task["intent"] for task in tasks("learned")}


def test_the_training_of_the_page_has_options_that_there_are(tmp_path: Path) -> None:
    (command,) = re.findall(r"    agentkv (train .*)", SECTION)
    # nano, because the package of smollm2 is optional
    done = agentkv(*command.replace("smollm2", "nano").split(), folder=tmp_path)
    assert done.returncode == 2 and "desk.jsonl: cannot be read" in done.stderr + done.stdout


def tasks(name: str) -> list[dict[str, Any]]:
    return json.loads((DESK / f"{name}.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]
