"""Tests for the memory distances of vwa75, measured in a browser by `agentkv_lab.reach`."""

from collections.abc import Mapping

import pytest

from agentkv_env.sites.world import DEFAULT_SEED
from agentkv_tasks.measured import Measurements, read
from agentkv_tasks.suites import load_suite


@pytest.fixture(scope="module")
def measured() -> Mapping[int, Measurements]:
    return read("vwa75")


def test_the_measurements_match_the_tasks_of_the_suite(
    measured: Mapping[int, Measurements],
) -> None:
    suite = load_suite("vwa75", world_seed=DEFAULT_SEED)
    steps = {task.task_id: len(task.solution) for task in suite.tasks}
    assert {number: one.steps for number, one in measured.items()} == steps
    assert {number for number, one in measured.items() if one.sources} == {
        task.task_id for task in suite.tasks if task.needs
    }


def test_at_least_thirty_tasks_need_a_fact_from_1500_tokens_earlier(
    measured: Mapping[int, Measurements],
) -> None:
    assert sum(one.reach >= 1500 for one in measured.values()) >= 30


def test_at_least_twenty_tasks_need_facts_from_two_or_more_pages(
    measured: Mapping[int, Measurements],
) -> None:
    assert sum(one.sources >= 2 for one in measured.values()) >= 20
