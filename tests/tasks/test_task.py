"""The schema loads official tasks unchanged and explains what is wrong with others."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentkv_tasks.suites import load_suite
from agentkv_tasks.task import Task, TaskError, read_tasks

DATA = Path(__file__).parent / "data"
# Official tasks (MIT, see LICENSE beside them), chosen so that every shape of field occurs.
OFFICIAL = sorted((DATA / "visualwebarena").glob("*.json"))


def written(tmp_path: Path, *tasks: dict[str, Any]) -> Path:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(list(tasks)))
    return path


def plain_task(**changes: Any) -> dict[str, Any]:
    task = {
        "sites": ["shopping"],
        "task_id": 7,
        "start_url": "__SHOPPING__",
        "intent_template": "Go",
        "intent_template_id": 0,
        "intent": "Go",
        "eval": {"eval_types": ["url_match"], "reference_url": "__SHOPPING__/"},
    }
    return {**task, **changes}


@pytest.mark.parametrize("path", OFFICIAL, ids=lambda path: path.stem)
def test_official_tasks_survive_a_round_trip(path: Path) -> None:
    tasks = read_tasks(path)
    written_back = [json.loads(task.model_dump_json(exclude_unset=True)) for task in tasks]
    assert written_back == json.loads(path.read_text())


def test_official_files_load_as_suites() -> None:
    suites = [load_suite(str(path), world_seed=0) for path in OFFICIAL]
    assert [suite.name for suite in suites] == ["classifieds", "reddit", "shopping"]
    assert all(suite.tasks for suite in suites)


def test_several_start_addresses_are_split() -> None:
    task = Task.model_validate(plain_task(start_url="__SHOPPING__ |AND| __REDDIT__/f/x"))
    assert task.start_urls == ("__SHOPPING__", "__REDDIT__/f/x")


def test_the_error_for_a_misspelled_field_names_file_task_and_field(tmp_path: Path) -> None:
    path = written(tmp_path, plain_task(intention="Go"))
    with pytest.raises(TaskError, match=r"mine\.json: task 7 \(number 0\): intention: "):
        read_tasks(path)


def test_a_misspelled_comparison_is_rejected(tmp_path: Path) -> None:
    check = {"url": "last", "locator": "", "required_contents": {"must_contain": ["x"]}}
    task = plain_task(eval={"eval_types": ["program_html"], "program_html": [check]})
    with pytest.raises(TaskError, match=r"eval\.program_html\.0\.required_contents\.must_contain"):
        read_tasks(written(tmp_path, task))


def test_an_evaluator_without_its_references_is_rejected(tmp_path: Path) -> None:
    task = plain_task(eval={"eval_types": ["string_match"]})
    with pytest.raises(TaskError, match="names string_match but reference_answers is empty"):
        read_tasks(written(tmp_path, task))


def test_a_repeated_task_id_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="task 7: task_id occurs twice"):
        read_tasks(written(tmp_path, plain_task(), plain_task()))


def test_a_task_that_reads_an_image_must_name_the_text(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="turns_on"):
        read_tasks(written(tmp_path, plain_task(reads_image=True)))


def test_a_needed_text_must_occur_in_the_solution(tmp_path: Path) -> None:
    known = plain_task(solution=["click [link: Blue]", "stop [42]"], needs=["Blue", "42"])
    assert Task.model_validate(known).needs == ("Blue", "42")
    known["needs"] = ["Green"]
    with pytest.raises(TaskError, match="needs 'Green', which occurs in no step of the solution"):
        read_tasks(written(tmp_path, known))


def test_the_error_for_broken_json_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text('[\n{"sites": }\n]')
    with pytest.raises(TaskError, match=r"broken\.json: line 2: not JSON"):
        read_tasks(path)


def test_an_unknown_helper_is_rejected_when_the_suite_loads(
    tmp_path: Path,
) -> None:
    check = {
        "url": "last",
        "locator": "func:__import__('os').system('true')",
        "required_contents": {"exact_match": "x"},
    }
    task = plain_task(eval={"eval_types": ["program_html"], "program_html": [check]})
    path = written(tmp_path, task)
    with pytest.raises(TaskError, match=r"task 7: eval\.program_html\.0\.locator"):
        load_suite(str(path), world_seed=0)


def test_a_folder_of_files_is_one_suite(tmp_path: Path) -> None:
    for number in (1, 2):
        one = tmp_path / f"{number}.json"
        one.write_text(json.dumps(plain_task(task_id=number)))
    suite = load_suite(str(tmp_path), world_seed=0)
    assert [task.task_id for task in suite.tasks] == [1, 2]


def test_equal_tasks_have_equal_digests_and_other_tasks_others(tmp_path: Path) -> None:
    path = written(tmp_path, plain_task())
    before = load_suite(str(path), world_seed=0).digest
    assert load_suite(str(path), world_seed=0).digest == before
    written(tmp_path, plain_task(intent="Stop"))
    assert load_suite(str(path), world_seed=0).digest != before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nested too deeply"),
        (f'[{{"task_id": {"9" * 5000}}}]', "not JSON: Exceeds the limit"),
        (json.dumps([plain_task(intent="\ud800")]), "task 7 .*: a text is not valid Unicode"),
        (json.dumps([plain_task(viewport_size={"width": -5})]), "viewport_size.width"),
        (json.dumps([plain_task(viewport_size={"height": 10**9})]), "viewport_size.height"),
    ],
    ids=lambda value: ascii(value)[:12],
)
def test_the_error_for_a_hostile_file_names_it(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(TaskError, match=rf"mine\.json: .*{message}"):
        read_tasks(path)


@pytest.mark.parametrize(
    ("check", "message"),
    [
        ({"eval_types": ["url_match"], "reference_url": "http://[bad"}, "Invalid IPv6"),
        (
            {
                "eval_types": ["string_match"],
                "reference_answers": {"required_values": [">= 3 |OR| many"]},
            },
            "cannot read 'many'; expected an inequality such as '>= 300'",
        ),
    ],
)
def test_malformed_references_are_rejected_when_the_file_loads(
    tmp_path: Path, check: dict[str, Any], message: str
) -> None:
    with pytest.raises(TaskError, match=message):
        read_tasks(written(tmp_path, plain_task(eval=check)))
