"""Tests for the vwa-unseen suite: new flows, its solutions, and scores without a solution."""

import re
from collections import Counter
from pathlib import Path

import pytest

from agentkv_env.sites.names import FIRST_TRAINING_SEED
from agentkv_env.sites.server import Server
from agentkv_env.sites.world import DEFAULT_SEED, World
from agentkv_tasks.suites import SUITES, Suite, load_suite
from tests.sampling import sampled
from tests.tasks.flows import Flow, contains, flow_of
from tests.tasks.suite_checks import not_only_in_images, unsolved_by_solutions

OTHER_SEED = 4711


@pytest.fixture(scope="module")
def suite() -> Suite:
    return load_suite("vwa-unseen", world_seed=DEFAULT_SEED)


def test_the_suite_has_one_task_of_each_of_25_templates(suite: Suite) -> None:
    assert [task.task_id for task in suite.tasks] == list(range(25))
    assert [task.intent_template_id for task in suite.tasks] == list(range(25))
    assert Counter(task.category for task in suite.tasks) == {
        "shopping": 7,
        "navigation": 6,
        "information": 6,
        "form": 6,
    }


def test_solutions_have_three_to_fifteen_steps_and_end_with_stop(suite: Suite) -> None:
    assert all(3 <= len(task.solution) <= 15 for task in suite.tasks)
    assert all(task.solution[-1].startswith("stop [") for task in suite.tasks)
    assert {task.overall_difficulty for task in suite.tasks} == {"easy", "medium", "hard"}


@pytest.mark.parametrize("seed", [DEFAULT_SEED, 31, 76, OTHER_SEED, FIRST_TRAINING_SEED + 4])
def test_needed_facts_are_neither_in_a_goal_nor_short_numbers(seed: int) -> None:
    for task in load_suite("vwa-unseen", world_seed=seed).tasks:
        for goal in (task.intent, *task.paraphrases):
            assert [text for text in task.needs if text.lower() in goal.lower()] == [], goal
        assert not [text for text in task.needs if re.fullmatch(r"\d?\d", text)], task.intent


def test_another_world_has_other_goals(suite: Suite) -> None:
    other = load_suite("vwa-unseen", world_seed=OTHER_SEED)
    assert not {task.intent for task in suite.tasks} & {task.intent for task in other.tasks}


def test_a_flow_has_kinds_of_pages_and_the_actions_between_them(suite: Suite) -> None:
    task = next(task for task in suite.tasks if task.solution[-2] == "click [link: Talk]")
    with Server(World(DEFAULT_SEED)) as server:
        assert flow_of(task, server) == (
            ("wiki", "/"),
            ("type", "textbox", "Search the wiki"),
            ("wiki", "/wiki/{slug}"),
            ("click", "link", ""),
            ("wiki", "/wiki/{slug}"),
            ("click", "link", ""),
            ("wiki", "/talk/{slug}"),
        )


def test_a_flow_contains_its_contiguous_parts_and_no_other_flow() -> None:
    assert contains("abcde", "abcde") and contains("abcde", "cd") and contains("abcde", "e")
    assert not contains("abcde", "ac") and not contains("abcde", "ed") and not contains("ab", "abc")


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", sampled([DEFAULT_SEED, FIRST_TRAINING_SEED, FIRST_TRAINING_SEED + 5], every=3)
)
def test_no_other_suite_has_the_flow_of_a_task_or_a_flow_that_contains_it(seed: int) -> None:
    world = World(seed)
    with Server(world) as server:
        known: dict[Flow, str] = {
            flow_of(task, server): task.intent
            for task in (*SUITES["vwa75"].tasks(world), *SUITES["vwa-long"].tasks(world))
        }
        unseen = {task.intent: flow_of(task, server) for task in SUITES["vwa-unseen"].tasks(world)}
    assert [
        (intent, goal)
        for intent, part in unseen.items()
        for flow, goal in known.items()
        if contains(flow, part)
    ] == []


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("seed", sampled([DEFAULT_SEED, OTHER_SEED], every=2))
def test_every_task_is_solved_by_its_solution(seed: int, tmp_path: Path) -> None:
    assert unsolved_by_solutions(load_suite("vwa-unseen", world_seed=seed), tmp_path) == {}


@pytest.mark.slow
@pytest.mark.browser
def test_the_text_of_an_image_task_is_read_by_ocr_and_appears_nowhere_before(suite: Suite) -> None:
    assert not_only_in_images(suite) == []
