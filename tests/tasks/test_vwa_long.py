"""Tests for the vwa-long suite: its composition, its wordings and its memory distances."""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import pytest

from agentkv_env.sites.names import FIRST_TRAINING_SEED
from agentkv_env.sites.world import DEFAULT_SEED, World
from agentkv_tasks import template
from agentkv_tasks.measured import Measurements, read
from agentkv_tasks.suites import Suite, load_suite, vwa_long
from tests.sampling import sampled
from tests.tasks.suite_checks import play

OTHER_SEED = 4711
TWO_TABS, THREE_TABS = 44, 12
"""Ids of a short task on two sites in two tabs, and of one on three sites in three tabs."""
SEEDS = sampled(
    (*range(12), *range(FIRST_TRAINING_SEED, FIRST_TRAINING_SEED + 24)), every=4, first=1
)


@pytest.fixture(scope="module")
def suite() -> Suite:
    return load_suite("vwa-long", world_seed=DEFAULT_SEED)


@pytest.fixture(scope="module")
def measured() -> Mapping[int, Measurements]:
    return read("vwa-long")


# ---- composition ----------------------------------------------------------------------------


def test_the_suite_has_60_tasks_of_15_to_60_steps(suite: Suite) -> None:
    assert [task.task_id for task in suite.tasks] == list(range(60))
    assert Counter(task.category for task in suite.tasks) == {
        "shopping": 15,
        "navigation": 15,
        "information": 15,
        "form": 15,
    }
    assert all(15 <= len(task.solution) <= 60 for task in suite.tasks)
    assert all(task.max_steps >= len(task.solution) + 30 for task in suite.tasks)
    assert all(task.solution[-1].startswith("stop [") for task in suite.tasks)


def test_at_least_thirty_templates_have_one_or_two_tasks_each(suite: Suite) -> None:
    instances = Counter(task.intent_template_id for task in suite.tasks)
    assert len(instances) >= 30 and set(instances.values()) == {1, 2}


def test_at_least_twenty_tasks_carry_one_or_two_facts_and_some_carry_many(suite: Suite) -> None:
    assert sum(len(task.needs) <= 2 for task in suite.tasks) >= 20
    assert sum(len(task.needs) >= 5 for task in suite.tasks) >= 5
    levels = Counter(task.overall_difficulty for task in suite.tasks)
    assert set(levels) == {"easy", "medium", "hard"} and min(levels.values()) >= 10


def test_another_world_has_different_intents(suite: Suite) -> None:
    assert load_suite("vwa-long", world_seed=DEFAULT_SEED).digest == suite.digest
    other = load_suite("vwa-long", world_seed=OTHER_SEED)
    assert not {task.intent for task in suite.tasks} & {task.intent for task in other.tasks}


@pytest.mark.parametrize("seed", SEEDS)
def test_every_world_has_all_tasks(seed: int) -> None:
    tasks = vwa_long.SUITE.tasks(World(seed))
    assert len(tasks) == len({task.intent for task in tasks}) == 60
    assert all(len(task.solution) <= 60 for task in tasks)


# ---- wordings -------------------------------------------------------------------------------


def test_every_goal_names_all_values_and_none_of_the_needed_facts(suite: Suite) -> None:
    unseen = template.suite(World(DEFAULT_SEED), vwa_long.TEMPLATES, wording="unseen")
    for task, request in zip(suite.tasks, unseen, strict=True):
        for goal in (task.intent, *task.paraphrases, request.intent):
            values = map(str, task.instantiation_dict.values())
            assert [value for value in values if value not in goal] == [], goal
            assert "{{" not in goal
            assert [text for text in task.needs if text.lower() in goal.lower()] == [], goal
        assert not [text for text in task.needs if re.fullmatch(r"\d?\d", text)], task.intent


# ---- measured distances ---------------------------------------------------------------------


def test_the_measurements_match_the_tasks_of_the_suite(
    suite: Suite, measured: Mapping[int, Measurements]
) -> None:
    assert {number: one.steps for number, one in measured.items()} == {
        task.task_id: len(task.solution) for task in suite.tasks
    }
    assert {number: len(one.distances) for number, one in measured.items()} == {
        task.task_id: len(task.needs) for task in suite.tasks
    }


def test_every_task_sees_8000_to_30000_tokens(measured: Mapping[int, Measurements]) -> None:
    totals = [one.total for one in measured.values()]
    assert min(totals) >= 8_000 and max(totals) <= 30_000
    assert median(totals) >= 14_000
    assert not any(one.cut for one in measured.values())


def test_most_tasks_need_something_from_6000_tokens_earlier(
    measured: Mapping[int, Measurements],
) -> None:
    assert sum(one.num_far >= 1 for one in measured.values()) >= 40
    assert sum(one.num_far >= 2 for one in measured.values()) >= 20


def test_many_tasks_need_something_from_16_pages_earlier(
    measured: Mapping[int, Measurements],
) -> None:
    assert sum(one.num_pages_far >= 1 for one in measured.values()) >= 12


def test_no_fact_is_further_back_than_its_task_declares(
    suite: Suite, measured: Mapping[int, Measurements]
) -> None:
    declared = {task.task_id: task.memory_distance_pages for task in suite.tasks}
    furthest = {number: max(one.pages) for number, one in measured.items()}
    assert {n for n in furthest if furthest[n] > declared[n]} == set()
    assert sum(declared[n] - furthest[n] <= 3 for n in furthest) >= 55


# ---- in a real browser ----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_a_task_of_each_template_is_solved_by_its_solution(
    suite: Suite, every: int, tmp_path: Path
) -> None:
    first = {task.intent_template_id: task.task_id for task in reversed(suite.tasks)}
    ids = sorted({TWO_TABS, THREE_TABS, *sorted(first.values())[::every]})
    rows = play(suite, "solution", tmp_path, only=ids)
    assert len(first) >= 30 and len(rows) == len(ids)
    assert {row.task_id: row.reason or row.error for row in rows if row.score != 1.0} == {}
    assert {row.status for row in rows} == {"stopped"}
