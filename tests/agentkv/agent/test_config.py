import json
from pathlib import Path

import pytest

from agentkv.build import (
    PARTS,
    SCRIPTED,
    budget_for,
    load_run_model,
    make_agent,
    make_policy,
    resolved_parameters,
)
from agentkv.defaults import BUDGET, CHUNK, POLICY
from agentkv.models.scripted import Solution
from agentkv.policies.registry import NAMED, parameters_of
from agentkv.settings import PolicySettings, SettingsError
from agentkv_env.page import Page
from agentkv_tasks.settings import RunSettings

ROOT = Path(__file__).parents[3]

FILE = """
tasks = "vwa75"
model = "solution"
seeds = [0, 1]
budget = "64MiB"
[[policies]]
name = "full"
[[policies]]
name = "snapkv"
label = "snapkv-32"
parameters = { window = 32 }
"""


def test_given_settings_override_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(FILE)
    run = RunSettings.read(path, seeds=(3,), limit=5)
    assert (run.seeds, run.limit, run.budget, run.max_steps) == ((3,), 5, "64MiB", None)
    assert [policy.row_name for policy in run.policies] == ["full", "snapkv-32"]
    assert run.policies[1].parameters == {"window": 32}


def test_a_policy_given_by_name_has_default_parameters() -> None:
    run = RunSettings.read(policies=["full", "window"])
    assert run.policies == (PolicySettings(name="full"), PolicySettings(name="window"))


def test_policies_with_fewer_pages_have_names_and_parameters_of_their_own() -> None:
    last = {"name": "int8", "last_pages": 3, "notes_only": True, "rebuild": True}
    run = RunSettings.read(policies=["int8", last])
    plain, fewer = run.policies
    assert plain.row_name == "int8"
    assert fewer.row_name == "int8 last_pages=3 notes_only=True rebuild=True"
    own = resolved_parameters(run, fewer)
    assert own == {
        **resolved_parameters(run, plain),
        "last_pages": 3,
        "notes_only": True,
        "rebuild": True,
    }
    with pytest.raises(ValueError, match="label 'full' belongs to"):
        resolved_parameters(run, PolicySettings(name="full", label="full", last_pages=1))


def test_settings_survive_a_round_trip_through_json() -> None:
    run = RunSettings.read(policies=["full", {"name": "window", "label": "w"}], timeout_s=5)
    assert RunSettings.model_validate_json(run.model_dump_json()) == run


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"polices": ["full"]},
            r"unknown setting 'polices'; did you mean 'policies'\? known: model, device, dtype",
        ),
        ({"decoding": "loose"}, r"decoding: .*'constrained' or 'free', found 'loose'"),
        ({"policies": []}, "at least one"),
        ({"policies": ["full", "full"]}, "full named twice; give each a `label`"),
        ({"max_steps": 0}, "max_steps: .*found 0"),
        ({"policies": [{"name": "full", "window": 3}]}, "policies.*window"),
    ],
)
def test_an_invalid_setting_is_rejected_with_what_was_expected(
    given: dict[str, object], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        RunSettings.read(**given)


def test_an_unreadable_settings_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot read .*absent\.toml"):
        RunSettings.read(tmp_path / "absent.toml")
    path = tmp_path / "broken.toml"
    path.write_text("tasks = ")
    with pytest.raises(SettingsError, match=r"broken\.toml is no TOML"):
        RunSettings.read(path)


@pytest.mark.parametrize("name", SCRIPTED)
def test_a_script_needs_no_language_model(name: str) -> None:
    run = RunSettings(model=name)
    model = load_run_model(run)
    agent = make_agent(run, model=None, solution=["stop [1]"])
    assert (model, agent.model.name) == (None, name)


def test_the_solution_model_replays_the_solution_of_the_task() -> None:
    run = RunSettings(model="solution")
    agent = make_agent(run, model=None, solution=["stop [7]"])
    assert isinstance(agent.model, Solution)
    assert "stop [7]" in agent.model.begin("goal").reply(Page("http://a/", "", ())).text


def test_a_policy_is_built_with_its_own_parameters() -> None:
    assert (
        make_policy(PolicySettings(name="streaming", parameters={"sinks": 2})).name == "streaming"
    )


@pytest.mark.parametrize(
    "settings",
    [PolicySettings(name="steaming"), PolicySettings(name="streaming", parameters={"sink": 2})],
)
def test_an_unknown_policy_or_parameter_is_an_error(settings: PolicySettings) -> None:
    with pytest.raises(ValueError, match="streaming|sinks"):
        make_policy(settings)


MINE = """
name = "mine"
base = { of = "conf-kv-int8", parameters = { threshold = 0.9 } }
selector = { of = "streaming", parameters = { sinks = 3 } }
"""


def test_a_composed_policy_takes_its_parts_from_named_policies(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MINE)
    settings = PolicySettings(name=str(path))
    made = make_policy(settings)
    base = make_policy(PolicySettings(name="conf-kv-int8", parameters={"threshold": 0.9}))
    other = make_policy(PolicySettings(name="streaming", parameters={"sinks": 3}))
    assert (settings.row_name, made.name) == ("mine", "mine")
    assert (made.gate, made.precision) == (base.gate, base.precision)
    assert made.selector == other.selector != base.selector
    assert made.parameters["threshold"] == 0.9
    assert made.parameters["selector"] == {"of": "streaming", **other.parameters}


def test_a_part_given_by_name_has_default_parameters(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\nbase = "ada-snapkv"\nprecision = "conf-kv-int8"\n')
    made = make_policy(PolicySettings(name=str(path)))
    assert made.allocator == make_policy(PolicySettings(name="ada-snapkv")).allocator
    assert made.precision == make_policy(PolicySettings(name="conf-kv-int8")).precision


@pytest.mark.parametrize("name", sorted(NAMED))
def test_every_parameter_of_every_policy_can_be_set_in_a_file(tmp_path: Path, name: str) -> None:
    set_ones = {key: value for key, value in parameters_of(name).items() if value is not None}
    pairs = ", ".join(
        f"{key} = {json.dumps(list(value) if isinstance(value, tuple) else value)}"
        for key, value in set_ones.items()
    )
    path = tmp_path / "mine.toml"
    path.write_text(f'name = "mine"\nbase = {{ of = "{name}", parameters = {{ {pairs} }} }}\n')
    made, plain = (
        make_policy(PolicySettings(name=str(path))),
        make_policy(PolicySettings(name=name)),
    )
    assert all(getattr(made, part) == getattr(plain, part) for part in PARTS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            MINE + 'allocator = "ada-snapkv"',
            r"mine\.toml: policy 'mine': AttentionAndRecency scores of different heads",
        ),
        (
            MINE + 'precision = "arkv"',
            r"mine\.toml: policy 'mine': QuantizeByRank stores entries by",
        ),
        (MINE.replace("= 3", "= -3"), r"mine\.toml: selector: sinks must be"),
        (MINE.replace("0.9", "'high'"), r"mine\.toml: base: threshold must be a number"),
        (MINE + "scorer = 3", "scorer: .*found 3"),
        (MINE + "selektor = 3", r"unknown setting 'selektor'; did you mean 'selector'\?"),
        (MINE.replace("streaming", "steaming"), "unknown policy 'steaming'"),
        (MINE.replace("sinks", "sink"), "no parameter 'sink'"),
        ("name = 'mine'", "base: "),
    ],
)
def test_an_invalid_composed_policy_is_rejected(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        make_policy(PolicySettings(name=str(path)))


def test_only_policies_that_need_a_budget_get_the_budget_of_the_run() -> None:
    run = RunSettings(budget=512)

    def budget(name: str, **parameters: object) -> int | str | None:
        return budget_for(run, make_policy(PolicySettings(name=name, parameters=parameters)))

    assert budget("full") is None
    assert budget("window") == budget("conf-kv-int8") == 512
    assert budget("conf-kv", loose=256) is None


def test_a_run_without_a_budget_keeps_a_share_of_the_context() -> None:
    run = RunSettings(model="solution")
    assert run.budget is None
    assert budget_for(run, make_policy(PolicySettings(name="h2o"))) == BUDGET
    assert budget_for(run, make_policy(PolicySettings(name="full"))) is None


def test_the_profile_of_nano_applies_to_nano_alone(tmp_path: Path) -> None:
    nano, other = RunSettings(), RunSettings(model=str(tmp_path))
    assert (nano.budget, nano.chunk) == ("3.1MiB", 32)
    assert (other.budget, other.chunk) == (None, CHUNK)
    for run in (nano, other):
        assert [policy.name for policy in run.policies] == ["full", "int4", POLICY]


def test_given_settings_override_the_profile(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("chunk = 64\n")
    run = RunSettings.read(path, budget=100)
    assert (run.chunk, run.budget) == (64, 100)


def test_policies_with_other_parameters_have_other_names_in_rows() -> None:
    plain = PolicySettings(name="streaming")
    other = PolicySettings(name="streaming", parameters={"sinks": 8})
    assert plain.row_name != other.row_name
    assert RunSettings(policies=(plain, other))


@pytest.mark.parametrize("label", ["streaming", "h2o"])
def test_a_label_of_a_named_policy_with_other_parameters_is_rejected(label: str) -> None:
    policy = PolicySettings(name="streaming", parameters={"sinks": 8}, label=label)
    with pytest.raises(ValueError, match=f"the label '{label}' belongs to"):
        resolved_parameters(RunSettings(model="solution"), policy)


def test_a_label_of_a_named_policy_with_its_own_defaults_is_accepted() -> None:
    policy = PolicySettings(name="streaming", parameters={"sinks": 4}, label="streaming")
    assert resolved_parameters(RunSettings(model="solution"), policy)["sinks"] == 4


def test_a_run_with_default_settings_is_part_of_the_committed_result() -> None:
    measured = RunSettings.read(ROOT / "lab/results/pressure_cpu-2-cores_2026-11-25/run.toml")
    run = RunSettings()
    assert all(policy in measured.policies for policy in run.policies)
    assert (run.budget, run.chunk, run.tasks) == (measured.budget, measured.chunk, measured.tasks)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", float("inf")),
        ("temperature", float("nan")),
        ("temperature", 1e-320),
        ("timeout_s", float("inf")),
        ("seeds", (2**64,)),
        ("budget", 0),
        ("budget", "9" * 400 + "MiB"),
        ("model", "a\0b"),
        ("tasks", "\udcff"),
    ],
    ids=lambda value: ascii(value)[:12],
)
def test_a_value_that_would_break_an_episode_is_rejected(name: str, value: object) -> None:
    with pytest.raises(SettingsError, match=name):
        RunSettings.read(**{name: value})


@pytest.mark.parametrize(
    "text",
    [
        "seeds = " + "[" * 50_000,
        "a." * 50_000 + "b = 1",
        "limit = " + "9" * 5000,
        "#" * 1_000_001,
    ],
    ids=lambda text: text[:12],
)
def test_a_hostile_settings_file_is_rejected_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=r"mine\.toml"):
        RunSettings.read(path)
