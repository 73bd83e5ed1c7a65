"""Every door to a setting opens on the one declaration: command line, files, Python, reference.

`docs/extending.md` adds a setting, and `tests/docs/test_extending.py` finds it at the doors.
"""

import ast
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import agentkv
from agentkv.defaults import POLICY
from agentkv.models.local import LocalModel
from agentkv.models.scripted import Stop
from agentkv.serve.settings import ServeSettings
from agentkv.settings import ActingSettings, PageSettings, PoliciesSettings, Settings, SettingsError
from agentkv_tasks.cli import act
from agentkv_tasks.cli.app import cli
from agentkv_tasks.settings import RunSettings

ROOT = Path(__file__).parents[2]
COMMANDS: dict[str, type[Settings]] = {
    "run": RunSettings,
    "serve": ServeSettings,
    "act": ActingSettings,
    "plan": PoliciesSettings,
}


def help_of(command: str) -> str:
    return " ".join(CliRunner().invoke(cli, [command, "--help"]).output.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_setting_is_an_option_with_the_words_of_its_declaration(command: str) -> None:
    shown = help_of(command)
    for name, field in COMMANDS[command].model_fields.items():
        if (command, name) == ("plan", "model"):
            continue  # an argument
        option = "site" if name == "sites" else name.removesuffix("_s").replace("_", "-")
        said = " ".join((field.description or "").replace("`", "").split())
        assert f"--{option}" in shown and said and said in shown, name


@pytest.mark.parametrize("schema", [RunSettings, ServeSettings, ActingSettings])
def test_the_reference_documents_every_class_of_settings(schema: type[Settings]) -> None:
    named = f"::: {schema.__module__}.{schema.__qualname__}"
    assert named in (ROOT / "docs/reference/settings.md").read_text()


def test_a_typed_option_a_key_of_a_file_and_a_keyword_give_equal_settings(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        'dtype = "float32"\nmax_repeats = 3\nscoring = "mended"\nstep_timeout_s = 60\n'
        'sites = { SHOPPING = "http://shop.example:7770/" }\n'
    )
    keywords = RunSettings.read(
        dtype="float32",
        max_repeats=3,
        scoring="mended",
        step_timeout_s=60,
        sites={"__SHOPPING__": "http://shop.example:7770"},
    )
    assert RunSettings.read(path) == keywords
    assert RunSettings.read(max_repeats="3", step_timeout_s="60").max_repeats == 3  # as typed
    assert RunSettings.read(path, max_repeats=4).max_repeats == 4


def test_an_agent_takes_settings_and_overrides_of_them() -> None:
    settings = ActingSettings(strict=True, max_repeats=7)
    agent = agentkv.Agent(Stop(), settings=settings, max_repeats=2)
    assert agent.settings.strict and agent.settings.max_repeats == 2
    assert agent.settings.max_parse_failures == ActingSettings().max_parse_failures


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            {"max_repeat": 3},
            "unknown setting 'max_repeat'; did you mean 'max_repeats'\\? known: model",
        ),
        ({"temperature": -1}, "temperature: expected greater than or equal to 0"),
        ({"device": "cpu"}, "Stop is loaded already"),
    ],
)
def test_an_agent_refuses_what_is_no_setting(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        agentkv.Agent(Stop(), **given)


def test_settings_for_nano_leave_another_model_its_own_budget_and_chunk() -> None:
    """nano is the default model, and its profile holds for it alone."""
    assert RunSettings().budget == "3.1MiB" and RunSettings().chunk == 32
    chosen = ActingSettings(decoding="free").chosen(ActingSettings)
    assert chosen == {"decoding": "free"}
    assert ActingSettings(chunk=32).chosen(ActingSettings) == {"chunk": 32}
    assert ActingSettings(budget=None, chunk=None).chosen(ActingSettings) == {}


def test_notes_replace_pages_that_are_forgotten() -> None:
    with pytest.raises(SettingsError, match="give last_pages=1 as well"):
        PageSettings.read(notes_only=True)


@pytest.mark.parametrize("text", ["", 'model = "random"\n'])
def test_an_empty_settings_file_changes_no_default(text: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    model = {"model": "random"} if text else {}
    assert RunSettings.read(path).with_folder() == RunSettings.read(**model).with_folder()
    assert RunSettings.read(path, **model) == RunSettings.read(path)


def test_a_script_plays_under_one_policy_wherever_it_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('model = "stop"\n')
    for settings in (RunSettings.read(path), RunSettings.read(model="solution")):
        assert [policy.name for policy in settings.policies] == ["full"]
    assert len(RunSettings.read(path, policies=("full", "window")).policies) == 2


def default_of(function: Callable[..., Any], name: str = "policy") -> Any:
    return inspect.signature(function).parameters[name].default


def test_every_door_has_the_one_default_policy() -> None:
    assert default_of(agentkv.Agent) == POLICY
    assert default_of(agentkv.Cache.for_model) == POLICY
    assert default_of(LocalModel.with_cache) == POLICY
    assert default_of(act.act) == POLICY
    assert [policy.name for policy in ServeSettings().policies] == [POLICY]
    assert RunSettings().policies[-1].name == POLICY  # beside its baselines, full and int4
    for name in ("serve", "run", "plan"):
        assert POLICY in help_of(name), name


def test_no_module_declares_the_default_policy_anew() -> None:
    """Those of adapters too, whose packages may be missing here."""
    naming = set()
    for package in ("agentkv", "env/agentkv_env", "tasks/agentkv_tasks"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            if POLICY in text and any(
                isinstance(each, ast.Constant) and each.value == POLICY
                for each in ast.walk(ast.parse(text))
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
