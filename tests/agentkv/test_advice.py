"""What is said to people whose episode ended before the agent stopped."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

from agentkv.advice import ADVICE, advice_lines, advice_on_model
from agentkv.trace import Episode, Status
from agentkv_tasks.cli.app import cli
from agentkv_tasks.results import Results, Row
from agentkv_tasks.settings import RunSettings
from tests.tasks.conftest import row as row


def test_advice_is_about_statuses_and_names_settings_and_policies_that_exist() -> None:
    assert set(ADVICE) < set(get_args(Status))
    assert {"context_limit", "repetition"} < set(ADVICE)
    words = {word.strip("(),;") for text in ADVICE.values() for word in text.split()}
    named = {word for word in words if "_" in word}
    known = {*RunSettings.model_fields, "last_pages"}
    assert named and named <= known


def test_an_episode_says_what_to_try() -> None:
    ended = Episode("context_limit", "", (), 1.0, error="the model has 8192 positions")
    assert "observation_tokens" in ended.advice
    assert dataclasses.replace(ended, status="stopped").advice == ""


def test_lines_count_the_episodes_of_each_status() -> None:
    lines = advice_lines(["stopped", "repetition", "stopped", "context_limit", "repetition"])
    assert [line.partition(":")[0] for line in lines] == [
        "2 of 5 episodes ended with repetition",
        "1 of 5 episodes ended with context_limit",
    ]
    assert advice_lines(["stopped", "env_error"]) == []


@pytest.mark.browser
def test_act_says_what_to_try() -> None:
    given = ("act", "--url", "http://shop.localhost/", "--goal", "buy", "--model", "random")
    result = CliRunner().invoke(cli, [*given, "--max-steps", "1", "--json"])
    assert result.exit_code == 1
    assert json.loads(result.output.splitlines()[-1])["advice"] == ADVICE["step_limit"]


def test_a_page_that_nano_does_not_know_is_said_before_it_is_loaded(tmp_path: Path) -> None:
    assert advice_on_model("nano", "http://wiki.localhost/wiki/Elmere") == ""
    assert advice_on_model("nano", "http://shop.localhost:8075/") == ""
    assert advice_on_model("/models/chat", "http://orders.example/") == ""
    file = tmp_path / "file"
    file.touch()
    given = ("act", "--url", "http://orders.example/", "--goal", "buy", "--out", str(file))
    result = CliRunner().invoke(cli, given)
    assert result.exit_code == 2 and "--model FOLDER" in result.output.splitlines()[0]


def test_whether_an_episode_that_nothing_scored_succeeded_is_unknown() -> None:
    stopped = Episode("stopped", "blue", (), 1.0)
    assert stopped.success is None
    assert dataclasses.replace(stopped, success=True).success


def test_a_report_says_what_to_try(row: Callable[..., Row], tmp_path: Path) -> None:
    with Results(tmp_path / "results.jsonl") as results:
        results.append(row(status="repetition", success=False, score=0.0))
    result = CliRunner().invoke(cli, ["report", str(tmp_path)])
    assert "1 of 1 episode ended with repetition: the model repeats itself" in result.output
