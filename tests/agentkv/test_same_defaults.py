"""The command line, settings files and Python begin with the same defaults."""

import ast
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import agentkv
from agentkv import cli
from agentkv.config import RunSettings, read_settings
from agentkv.defaults import POLICY
from agentkv.models.local import LocalModel
from agentkv.serve import command, front
from agentkv_tasks.run.command import read_run

ROOT = Path(__file__).parents[2]
OPTIONS = {name: each.default for name, each in inspect.signature(cli.run).parameters.items()}
OF_SETTINGS = {"timeout": "timeout_s", "checkpoint": "checkpoint_s"}
"""Options with another name than their setting."""


def test_an_option_of_a_run_has_the_default_of_its_setting() -> None:
    defaults = RunSettings()
    compared = 0
    for option, value in OPTIONS.items():
        name = OF_SETTINGS.get(option, option)
        if value is None or name not in RunSettings.model_fields:
            continue  # without the option, the setting's own default holds
        expected: Any = getattr(defaults, name)
        if name == "seeds":
            value = tuple(int(seed) for seed in value.split(","))
        assert value == expected, option
        compared += 1
    assert compared > 15


@pytest.mark.parametrize("text", ["", 'model = "random"\n'])
def test_an_empty_settings_file_changes_no_default(text: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    model = {"model": "random"} if text else {}
    assert read_run(path, None, {}) == read_run(None, None, model) == read_run(path, None, model)


def test_a_script_plays_under_one_policy_wherever_it_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('model = "stop"\n')
    for settings in (read_settings(path), read_settings(model="solution")):
        assert [policy.name for policy in settings.policies] == ["full"]
    assert len(read_settings(path, policies=("full", "window")).policies) == 2


def default_of(function: Callable[..., Any], name: str = "policy") -> Any:
    return inspect.signature(function).parameters[name].default


def test_every_door_has_the_one_default_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_of(agentkv.Agent) == POLICY
    assert default_of(agentkv.Cache.for_model) == POLICY
    assert default_of(LocalModel.with_cache) == POLICY
    assert default_of(cli.act) == POLICY
    served: list[Any] = []
    monkeypatch.setattr(front, "run_server", lambda run, *_, **__: served.append(run))
    monkeypatch.setattr(command, "check", lambda *_: None)
    assert CliRunner().invoke(cli.cli, ["serve"]).exit_code == 0
    assert [policy.name for policy in served[0].policies] == [POLICY]
    assert RunSettings().policies[-1].name == POLICY  # beside its baselines, full and int4
    for name in ("serve", "run", "plan"):
        shown = " ".join(CliRunner().invoke(cli.cli, [name, "--help"]).output.split())
        assert f"{POLICY}" in shown, name


def test_no_module_declares_the_default_policy_anew() -> None:
    """Those of adapters too, whose packages may be missing here."""
    naming = set()
    for package in ("agentkv", "env/agentkv_env", "tasks/agentkv_tasks"):
        for path in (ROOT / package).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            if any(
                isinstance(each, ast.Constant) and each.value == POLICY for each in ast.walk(tree)
            ):
                naming.add(str(path.relative_to(ROOT / "agentkv")))
    assert naming == {"defaults.py"}


def test_an_agent_gives_nano_the_cache_that_a_run_gives_it() -> None:
    run, nano = RunSettings(), agentkv.load_model("nano")
    acting = agentkv.Agent(nano).model
    cache = acting.new_cache()  # type: ignore[attr-defined]
    other = nano.with_cache("window", budget=512, chunk=64).new_cache()
    assert cache.chunk == run.chunk and other.chunk == 64 and other.budget == 512
    assert cache.budget == nano.with_cache(POLICY, budget=run.budget).new_cache().budget
    assert nano.with_cache("full").new_cache().budget is None
