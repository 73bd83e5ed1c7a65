"""Tests for the vwa75 suite: its composition, its solutions, and scores without a solution."""

import re
from collections import Counter
from pathlib import Path
from statistics import median

import pytest

from agentkv_env.sites.world import DEFAULT_SEED
from agentkv_tasks.suites import Suite, load_suite
from tests.tasks.suite_checks import not_only_in_images, unsolved_by_solutions

OTHER_SEED = 4711

QUOTAS = {"shopping": 19, "navigation": 19, "information": 19, "form": 18}


@pytest.fixture(scope="module")
def suite() -> Suite:
    return load_suite("vwa75", world_seed=DEFAULT_SEED)


def test_the_suite_has_75_tasks_in_four_categories(suite: Suite) -> None:
    assert [task.task_id for task in suite.tasks] == list(range(75))
    assert Counter(task.category for task in suite.tasks) == QUOTAS


def test_at_least_twelve_tasks_depend_on_text_in_an_image(suite: Suite) -> None:
    assert sum(task.reads_image for task in suite.tasks) >= 12


def test_solutions_have_three_steps_to_over_twenty(suite: Suite) -> None:
    lengths = [len(task.solution) for task in suite.tasks]
    assert min(lengths) <= 3 and sum(length > 20 for length in lengths) >= 4
    assert median(lengths) >= 8
    assert all(len(task.solution) <= task.max_steps for task in suite.tasks)


def test_needed_facts_are_neither_in_the_goal_nor_short_numbers(suite: Suite) -> None:
    for task in suite.tasks:
        for goal in (task.intent, *task.paraphrases):
            assert [text for text in task.needs if text.lower() in goal.lower()] == [], goal
        assert not [text for text in task.needs if re.fullmatch(r"\d?\d", text)], task.intent


def test_eight_tasks_are_impossible_and_ask_for_n_a(suite: Suite) -> None:
    impossible = [task for task in suite.tasks if task.solution[-1] == "stop [N/A]"]
    assert len(impossible) == 8
    for task in impossible:
        assert "Answer N/A if " in task.intent or "answer N/A if " in task.intent
        wanted = task.eval.reference_answers
        assert wanted is not None and wanted.exact_match == "N/A"
        assert len(task.eval.eval_types) == 2, "giving up on any page would score"


def test_all_intents_differ_and_all_solutions_end_with_stop(suite: Suite) -> None:
    assert len({task.intent for task in suite.tasks}) == 75
    assert all(task.solution[-1].startswith("stop [") for task in suite.tasks)


def test_equal_seeds_give_equal_suites_and_different_seeds_different_ones(suite: Suite) -> None:
    assert load_suite("vwa75", world_seed=DEFAULT_SEED).digest == suite.digest
    other = load_suite("vwa75", world_seed=OTHER_SEED)
    assert Counter(task.category for task in other.tasks) == QUOTAS
    shared = {task.intent for task in suite.tasks} & {task.intent for task in other.tasks}
    assert len(shared) < 15


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("every", [2, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_every_task_is_solved_by_its_solution(suite: Suite, tmp_path: Path, every: int) -> None:
    """The text browser plays all of them in test_solutions.py."""
    assert unsolved_by_solutions(suite, tmp_path, every) == {}


@pytest.mark.slow
@pytest.mark.browser
def test_the_text_of_an_image_task_is_read_by_ocr_and_appears_nowhere_before(suite: Suite) -> None:
    assert not_only_in_images(suite) == []
