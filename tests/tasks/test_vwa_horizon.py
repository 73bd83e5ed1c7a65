"""Tests for the vwa-horizon suite."""

from agentkv_env.sites.world import DEFAULT_SEED
from agentkv_tasks import measured
from agentkv_tasks.suites import load_suite
from agentkv_tasks.task import Task


def key(task: Task) -> str:
    """Identify a task apart from its numbers."""
    return task.model_copy(update={"task_id": 0, "intent_template_id": 0}).model_dump_json()


def test_the_suite_holds_every_task_of_vwa75_and_vwa_long_once() -> None:
    tasks = load_suite("vwa-horizon", world_seed=DEFAULT_SEED).tasks
    parts = [load_suite(name, world_seed=DEFAULT_SEED).tasks for name in ("vwa75", "vwa-long")]
    assert [task.task_id for task in tasks] == list(range(135))
    assert sorted(map(key, tasks)) == sorted(key(task) for part in parts for task in part)
    templates = [len({task.intent_template_id for task in part}) for part in parts]
    assert len({task.intent_template_id for task in tasks}) == sum(templates)


def test_the_tasks_are_ordered_by_the_tokens_they_see() -> None:
    tokens = {
        key(task): measured.read(name)[task.task_id].tokens
        for name in ("vwa75", "vwa-long")
        for task in load_suite(name, world_seed=DEFAULT_SEED).tasks
    }
    seen = [tokens[key(task)] for task in load_suite("vwa-horizon", world_seed=DEFAULT_SEED).tasks]
    assert seen == sorted(seen) and seen[0] < seen[-1]


def test_a_number_stands_for_the_same_template_in_every_world() -> None:
    here, there = (load_suite("vwa-horizon", world_seed=seed).tasks for seed in (75, 4711))
    for one, other in zip(here, there, strict=True):
        assert one.intent_template_id == other.intent_template_id
        assert one.intent != other.intent or not one.instantiation_dict
