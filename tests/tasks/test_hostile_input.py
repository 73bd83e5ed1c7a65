"""Samples of `make soak`: hostile input is accepted, or rejected with a one-line message."""

from pathlib import Path

import pytest

from tests.soak import actions, commands, model_folders, task_files, toml_files


def test_each_part_has_the_stated_number_of_cases() -> None:
    for part, cases in (
        (actions, list(actions.cases())),
        (commands, commands.cases()),
        (task_files, list(task_files.cases())),
        (model_folders, list(model_folders.cases())),
        (toml_files, list(toml_files.cases())),
    ):
        assert len(cases) == part.TOTAL, part.__name__  # type: ignore[attr-defined]


def test_hostile_actions_are_parsed_or_rejected() -> None:
    for name, text in list(actions.cases())[::24]:
        verdict = actions.check(name, text)
        assert verdict.outcome == "held", verdict


def test_hostile_commands_fail_with_one_line(tmp_path: Path) -> None:
    commands.prepare(tmp_path)
    quick = [case for case in commands.cases() if case[:1] not in (("bench",), ("doctor",))]
    for arguments in quick[::5]:
        verdict = commands.check(arguments, tmp_path)
        assert verdict.outcome == "held", verdict


def test_hostile_task_files_are_loaded_or_rejected(tmp_path: Path) -> None:
    for name, content, refused in list(task_files.cases())[::3]:
        verdict = task_files.check(name, content, refused, tmp_path)
        assert verdict.outcome == "held", verdict


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A valid model folder."""
    folder = tmp_path_factory.mktemp("tiny")
    model_folders.make_tiny(folder)
    return folder


@pytest.mark.parametrize("name", model_folders.cases())
def test_a_hostile_model_folder_loads_completely_or_is_rejected(
    name: str, tiny: Path, tmp_path: Path
) -> None:
    change, refused = model_folders.cases()[name]
    verdict = model_folders.check(name, change, refused, tiny, tmp_path)
    assert verdict.outcome == "held", verdict


def test_hostile_toml_files_are_loaded_or_rejected(tmp_path: Path) -> None:
    for name, content, refused in list(toml_files.cases())[::2]:
        verdict = toml_files.check(name, content, refused, tmp_path)
        assert verdict.outcome == "held", verdict
