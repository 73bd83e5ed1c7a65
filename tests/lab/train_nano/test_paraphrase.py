"""Goals in other words keep their values and are never of the kind that training must not see."""

import random

import pytest

from agentkv_env.sites.names import FIRST_TRAINING_SEED
from agentkv_env.sites.world import World
from agentkv_tasks.suites import SUITES
from agentkv_tasks.task import Task
from train_nano.episode import RecordedEpisode
from train_nano.paraphrase import AFTER, BEFORE, paraphrase
from train_nano.wording import is_polite_request


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return [
        task
        for name in ("vwa75", "vwa-long")
        for task in SUITES[name].tasks(World(FIRST_TRAINING_SEED))
    ]


def dressed(goal: str, seed: int) -> str:
    return paraphrase(RecordedEpisode(goal, ()), random.Random(seed)).goal


@pytest.mark.parametrize("seed", range(12))
def test_every_value_of_a_goal_stays(tasks: list[Task], seed: int) -> None:
    for task in tasks:
        for goal in (task.intent, *task.paraphrases):
            other = dressed(goal, seed)
            for value in task.instantiation_dict.values():
                assert (str(value) in other) == (str(value) in goal), (goal, other)
            assert not is_polite_request(other)


def test_a_goal_gets_many_forms_and_one_per_seed(tasks: list[Task]) -> None:
    forms = [dressed(tasks[0].intent, seed) for seed in range(100)]
    assert forms == [dressed(tasks[0].intent, seed) for seed in range(100)]
    assert len(set(forms)) > 60 and tasks[0].intent in forms


def test_what_stands_around_a_goal_is_a_sentence_and_no_polite_request() -> None:
    for sentence in (*BEFORE, *AFTER):
        assert sentence[0].isupper() and sentence[-1] == "." and not is_polite_request(sentence)
