"""Official tasks: their numbers, their kinds, their sites, and the suites drawn from them."""

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentkv_tasks.evaluate import string_match, url_match
from agentkv_tasks.suites import SuiteError, load_suite, load_tasks
from agentkv_tasks.task import Category, References, Task, TaskError
from agentkv_tasks.visualwebarena import SUITES
from agentkv_tasks.visualwebarena.classify import classify
from agentkv_tasks.visualwebarena.draws import QUOTAS, draw, drawn, scored_as_text, written
from agentkv_tasks.visualwebarena.official import FIRST, OfficialTask, digest_of, read_official

SAMPLE = Path(__file__).parent / "data" / "visualwebarena"
ALL = os.environ.get("VISUALWEBARENA", "")
"""Folder of the official files, for whoever has them."""
ADDRESSES = ("CLASSIFIEDS", "REDDIT", "SHOPPING", "WIKIPEDIA", "HOMEPAGE")
SECRETS = (
    "CLASSIFIEDS_RESET_TOKEN",
    "CLASSIFIEDS_PASSWORD",
    "REDDIT_PASSWORD",
    "SHOPPING_PASSWORD",
    "SHOPPING_ADMIN_PASSWORD",
)
needs_all = pytest.mark.skipif(not ALL, reason="VISUALWEBARENA names no folder of official tasks")


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual environment variables of VisualWebArena's sites."""
    for number, name in enumerate(ADDRESSES):
        monkeypatch.setenv(name, f"http://127.0.0.1:{7770 + number}")
    for name in SECRETS:
        monkeypatch.setenv(name, f"{name.lower()}-value")


def concatenated(path: Path) -> Path:
    """Write the sample as one file, numbered throughout, with images elsewhere."""
    tasks = []
    for site, first in FIRST.items():
        for task in json.loads((SAMPLE / f"{site}.json").read_text()):
            task["task_id"] += first
            if task.get("image"):
                task["image"] = "http://homepage/image.png"
            tasks.append(task)
    path.write_text(json.dumps(tasks))
    return path


def test_files_of_sites_are_numbered_as_one_after_the_other() -> None:
    tasks = {each.task.task_id: each for each in read_official(SAMPLE)}
    assert list(tasks) == sorted(tasks)
    assert (tasks[0].site, tasks[0].number) == ("classifieds", 0)
    assert (tasks[234 + 158].site, tasks[234 + 158].number) == ("reddit", 158)
    assert (tasks[444 + 40].site, tasks[444 + 40].number) == ("shopping", 40)


def test_one_file_of_all_sites_holds_the_same_tasks(tmp_path: Path) -> None:
    apart, together = read_official(SAMPLE), read_official(concatenated(tmp_path / "all.json"))
    assert [(each.site, each.number) for each in apart] == [
        (each.site, each.number) for each in together
    ]
    assert digest_of(apart) == digest_of(together)


def test_another_answer_changes_the_digest(tmp_path: Path) -> None:
    shutil.copytree(SAMPLE, tmp_path / "changed")
    path = tmp_path / "changed" / "classifieds.json"
    path.write_text(path.read_text().replace("id=4799", "id=4800"))
    assert digest_of(read_official(path.parent)) != digest_of(read_official(SAMPLE))


def test_a_task_in_two_files_is_refused(tmp_path: Path) -> None:
    for name in ("one.json", "two.json"):
        shutil.copy(SAMPLE / "reddit.json", tmp_path / name)
    with pytest.raises(TaskError, match=r"two\.json: task \d+: another file has it too"):
        read_official(tmp_path)


def test_tasks_of_other_sites_are_refused(tmp_path: Path) -> None:
    (task, *_) = json.loads((SAMPLE / "classifieds.json").read_text())
    path = tmp_path / "own.json"
    path.write_text(json.dumps([{**task, "sites": ["wiki"], "storage_state": None}]))
    with pytest.raises(TaskError, match="site 'wiki' has no official tasks; expected one of class"):
        read_official(path)


def test_a_cut_from_the_file_of_all_sites_is_refused(tmp_path: Path) -> None:
    tasks = json.loads(concatenated(tmp_path / "all.json").read_text())
    cut = tmp_path / "cut.json"
    cut.write_text(json.dumps([task for task in tasks if task["task_id"] >= 444]))
    with pytest.raises(TaskError, match="shopping has the numbers 0 to 465; give whole files"):
        read_official(cut)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"no tasks; expected VisualWebArena's test_\*\.raw\.json"):
        read_official(tmp_path)


@pytest.mark.parametrize(
    ("site", "number", "category"),
    [
        ("classifieds", 0, "navigation"),  # reach a page
        ("classifieds", 96, "information"),  # an answer, and the page where it is
        ("reddit", 58, "information"),
        ("reddit", 72, "form"),  # a comment
        ("reddit", 158, "form"),  # subscriptions
        ("shopping", 234, "shopping"),  # a cart
        ("shopping", 255, "shopping"),  # an order, and an answer
        ("shopping", 390, "form"),  # a review
        ("shopping", 158, "navigation"),  # a product's page, checked by what it shows
    ],
)
def test_tasks_are_classified_by_what_is_checked(
    site: str, number: int, category: Category
) -> None:
    official = read_official(SAMPLE)
    assert classify(official)[FIRST[site] + number] == category


def official(site: str, number: int, template: int, **changes: Any) -> OfficialTask:
    (task, *_) = json.loads((SAMPLE / "classifieds.json").read_text())
    kinds: dict[str, Any] = {
        "navigation": {
            "eval_types": ["url_match"],
            "reference_url": f"__{site.upper()}__/{number}",
        },
        "information": {
            "eval_types": ["string_match"],
            "reference_answers": {"exact_match": str(number)},
        },
    }
    kind = changes.pop("kind", "navigation")
    made = {
        "sites": [site],
        "task_id": FIRST[site] + number,
        "intent_template_id": template,
        "storage_state": f"./.auth/{site}_state.json",
        "image": None,
        "eval": kinds[kind],
    }
    return OfficialTask(site, number, Task.model_validate({**task, **made, **changes}))


def test_a_template_has_the_category_of_most_of_its_tasks_but_for_impossible_ones() -> None:
    impossible = {"eval_types": ["string_match"], "reference_answers": {"fuzzy_match": "N/A"}}
    tasks = [
        official("reddit", 0, 7),
        official("reddit", 1, 7, eval=impossible),
        official("reddit", 2, 7, eval=impossible),
        official("reddit", 3, 8, eval=impossible),
    ]
    first = FIRST["reddit"]
    assert classify(tasks) == {
        first: "navigation",
        first + 1: "navigation",
        first + 2: "navigation",
        first + 3: "information",
    }


def test_a_draw_takes_no_template_twice_and_lets_sites_take_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quotas = {"shopping": 0, "navigation": 6, "information": 5, "form": 0}
    monkeypatch.setattr("agentkv_tasks.visualwebarena.draws.QUOTAS", quotas)
    pool = [
        official(
            site,
            3 * template + i,
            template,
            kind="information" if template >= 6 else "navigation",
            overall_difficulty=("easy", "medium", "hard")[i],
        )
        for site in FIRST
        for template in range(10)
        for i in range(3)
    ]
    found = draw(pool)
    assert found == draw(pool)
    assert len({each.template for each in found}) == len(found) == 11
    of = Counter((classify(pool)[each.task.task_id], each.site) for each in found)
    assert all(of["navigation", site] == 2 for site in FIRST)
    assert sorted(of["information", site] for site in FIRST) == [1, 2, 2]
    assert min(Counter(each.task.overall_difficulty for each in found).values()) >= 3


def test_committed_draws_name_each_task_once() -> None:
    suites = drawn().suites
    assert {name: len(places) for name, places in suites.items()} == {
        "vwa75-live": 75,
        "vwa541": 541,
    }
    assert all(len(set(places)) == len(places) for places in suites.values())
    assert set(suites["vwa75-live"]) <= set(suites["vwa541"])
    assert sum(QUOTAS.values()) == 75


@pytest.mark.usefixtures("elsewhere")
def test_a_drawn_suite_refuses_other_tasks_than_those_it_was_drawn_from() -> None:
    with pytest.raises(TaskError, match="these 22 tasks have the digest .*, and vwa75-live was"):
        load_suite(f"vwa75-live:{SAMPLE}", world_seed=75)


@pytest.mark.usefixtures("elsewhere")
def test_official_tasks_are_a_suite_on_the_sites_of_the_environment() -> None:
    suite = load_suite(f"visualwebarena:{SAMPLE}", world_seed=75)
    assert suite.name == "visualwebarena" and len(suite.tasks) == 22
    assert all(task.category for task in suite.tasks)
    assert suite.sites is not None
    assert suite.sites.placeholders == {
        "__CLASSIFIEDS__": "http://127.0.0.1:7770",
        "__REDDIT__": "http://127.0.0.1:7771",
        "__SHOPPING__": "http://127.0.0.1:7772",
        "__WIKIPEDIA__": "http://127.0.0.1:7773",
    }
    assert suite.sites.unreset(suite.tasks) == ["reddit", "shopping"]


def test_official_tasks_are_listed_without_their_sites(tmp_path: Path) -> None:
    tasks, name = load_tasks(f"visualwebarena:{SAMPLE}", world_seed=75)
    assert (len(tasks), name) == (22, "visualwebarena")
    file = tmp_path / "visualwebarena.json"
    shutil.copy(SAMPLE / "reddit.json", file)
    assert load_suite(str(file), world_seed=75).sites is None  # a file of that name is a file


def test_a_missing_address_names_its_variable(
    elsewhere: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("REDDIT")
    with pytest.raises(
        ValueError, match=r"sites\.reddit\.address: the environment variable REDDIT"
    ):
        load_suite(f"visualwebarena:{SAMPLE}", world_seed=75)
    shutil.copy(SAMPLE / "classifieds.json", tmp_path)
    assert load_suite(f"visualwebarena:{tmp_path}", world_seed=75).tasks


@pytest.mark.usefixtures("elsewhere")
def test_a_file_of_sites_may_name_official_tasks(tmp_path: Path) -> None:
    shutil.copytree(SAMPLE, tmp_path / "official")
    sites = tmp_path / "mine.toml"
    sites.write_text(
        'tasks = "visualwebarena:official"\n[sites.reddit]\naddress = "http://127.0.0.1:1"\n'
    )
    suite = load_suite(str(sites), world_seed=75)
    assert suite.name == "mine" and len(suite.tasks) == 22
    assert suite.sites is not None and list(suite.sites.sites) == ["reddit"]


@pytest.mark.parametrize("name", ["visualwebarena:nowhere.json", "vwa541:nowhere", "vwa541"])
def test_an_unknown_source_is_named_with_the_suites(name: str) -> None:
    with pytest.raises(SuiteError, match=rf"unknown suite or file '{name}'; .*vwa75-live:FILE"):
        load_suite(name, world_seed=75)


# ---- with the official files


@pytest.fixture(scope="module")
def everything() -> list[OfficialTask]:
    return read_official(Path(ALL))


@needs_all
def test_all_official_tasks_load_and_the_draws_can_be_repeated(
    everything: list[OfficialTask],
) -> None:
    assert len(everything) == 910
    assert len(scored_as_text(everything)) == 541
    assert json.loads(written(everything)) == json.loads(drawn().model_dump_json())


@needs_all
@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("name", SUITES)
def test_all_official_tasks_are_a_suite(name: str) -> None:
    suite = load_suite(f"{name}:{ALL}", world_seed=75)
    assert len(suite.tasks) == {"visualwebarena": 910, "vwa75-live": 75, "vwa541": 541}[name]


def right_answer(references: References) -> str:
    """An answer that says what the references ask for."""
    if references.exact_match is not None:
        return references.exact_match
    if references.fuzzy_match is not None:
        return str(references.fuzzy_match)
    said = [each.split(" |OR| ")[0] for each in references.must_include or ()]
    said += list(references.one_of or ())[:1]
    said += [each.split("=")[-1].strip() for each in references.required_values or ()]
    return ", ".join(said)


Scored = Callable[[OfficialTask, str], float]


def scored_text(each: OfficialTask, answer: str) -> float:
    references = each.task.eval.reference_answers
    assert references is not None
    return string_match(references, answer, scoring="mended")


def scored_url(each: OfficialTask, url: str) -> float:
    check = each.task.eval
    assert check.reference_url is not None
    return url_match(check.reference_url, check.url_note, url)


@pytest.mark.parametrize(
    "source", [SAMPLE, pytest.param(ALL, marks=needs_all)], ids=["sample", "all"]
)
def test_every_reference_scores_itself_and_no_other_answer(source: Path) -> None:
    texts = addresses = 0
    for each in read_official(Path(source)):
        check = each.task.eval
        if "string_match" in check.eval_types:
            assert check.reference_answers is not None
            texts += 1
            assert scored_text(each, right_answer(check.reference_answers)) == 1.0, each
            assert scored_text(each, "nothing of this") == 0.0, each
        if "url_match" in check.eval_types:
            assert check.reference_url is not None
            addresses += 1
            for option in check.reference_url.split(" |OR| "):
                assert scored_url(each, option) == 1.0, each
            assert scored_url(each, "__SHOPPING__/elsewhere") == 0.0, each
    assert texts and addresses
    if source == ALL:
        assert (texts, addresses) == (280, 224)
