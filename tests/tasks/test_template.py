"""Templates make equal tasks for equal seeds, and distinct tasks within one template."""

from dataclasses import replace

import pytest

from agentkv_env.sites.world import World
from agentkv_tasks.template import (
    Draft,
    Draw,
    TaskTemplate,
    all_of,
    instantiate,
    reaches,
    says,
    shows,
)


def greet(draw: Draw) -> Draft:
    name = draw.rng.choice(draw.world.people).name
    return Draft(
        wordings=("Say hello to {{name}}.",),
        unseen_wording="Could you say hello to {{name}}?",
        values={"name": name},
        start="__REDDIT__",
        check=says(must_include=[name]),
        solution=[f"stop [hello {name}]"],
        difficulty="medium",
    )


def visit(draw: Draw) -> Draft:
    return Draft(
        wordings=("Go to the wiki.", "Open the wiki.", "The wiki, please."),
        unseen_wording="Would you go to the wiki?",
        start="__HOMEPAGE__",
        check=all_of(reaches("__WIKIPEDIA__/"), shows("last", must_include=["wiki"])),
        solution=["goto [__WIKIPEDIA__/]", "stop []"],
    )


TEMPLATES = (TaskTemplate(greet, 5), TaskTemplate(visit, 1))


def test_equal_seeds_make_equal_tasks() -> None:
    world = World(3)
    first, second = (instantiate(world, TEMPLATES, 3) for _ in range(2))
    assert first == second
    assert instantiate(World(4), TEMPLATES, 4) != first


def test_tasks_are_numbered_in_order_and_carry_the_number_of_their_template() -> None:
    tasks = instantiate(World(3), TEMPLATES, 3, first_id=10, first_template_id=4, category="form")
    assert [task.task_id for task in tasks] == [10, 11, 12, 13, 14, 15]
    assert [task.intent_template_id for task in tasks] == [4, 4, 4, 4, 4, 5]
    assert {task.category for task in tasks} == {"form"}


def test_instances_of_a_template_differ_and_record_their_values() -> None:
    tasks = instantiate(World(3), TEMPLATES, 3)[:5]
    assert len({task.intent for task in tasks}) == 5
    for task in tasks:
        assert task.intent == f"Say hello to {task.instantiation_dict['name']}."
        assert task.intent_template == "Say hello to {{name}}."


def test_a_task_has_one_of_the_wordings_and_the_others_as_paraphrases() -> None:
    goals = set()
    for seed in range(20):
        (task,) = instantiate(World(3), (TaskTemplate(visit),), seed)
        assert {task.intent, *task.paraphrases} == {
            "Go to the wiki.",
            "Open the wiki.",
            "The wiki, please.",
        }
        goals.add(task.intent)
    assert len(goals) == 3


def test_the_unseen_wording_changes_nothing_but_the_goal() -> None:
    seen = instantiate(World(3), TEMPLATES, 3)
    unseen = instantiate(World(3), TEMPLATES, 3, wording="unseen")
    for one, other in zip(seen, unseen, strict=True):
        assert other.paraphrases == () and " you " in other.intent
        kept = {"intent": one.intent, "intent_template": one.intent_template}
        assert other.model_copy(update={**kept, "paraphrases": one.paraphrases}) == one


def test_a_task_records_the_texts_that_its_solution_needs() -> None:
    def meet(draw: Draw) -> Draft:
        return replace(greet(draw), needs=["hello"])

    (task,) = instantiate(World(3), (TaskTemplate(meet),), 3)
    assert task.needs == ("hello",)


def test_adding_a_template_leaves_the_tasks_of_the_others_unchanged() -> None:
    world = World(3)
    alone = instantiate(world, TEMPLATES[:1], 3)
    beside = instantiate(world, (TEMPLATES[1], TEMPLATES[0]), 3)[1:]
    assert [task.intent for task in alone] == [task.intent for task in beside]


def test_the_sites_of_a_task_are_collected_from_all_its_parts() -> None:
    task = instantiate(World(3), (TaskTemplate(visit),), 3)[0]
    assert set(task.sites) == {"homepage", "wikipedia"}
    assert task.eval.eval_types == ("url_match", "program_html")


def test_a_template_with_too_few_different_tasks_is_rejected() -> None:
    with pytest.raises(AssertionError, match="fewer different tasks"):
        instantiate(World(3), (TaskTemplate(visit, 2),), 3)
