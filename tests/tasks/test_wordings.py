"""Tests for wordings of goals: several that training sees, one of a kind that it never sees."""

import random
import re

import pytest

from agentkv_env.sites.world import DEFAULT_SEED, World
from agentkv_tasks.suites import load_suite, vwa75, vwa_long, vwa_unseen
from agentkv_tasks.template import Draft, Draw
from train_nano.wording import is_polite_request

TEMPLATES = [
    template
    for suite in (vwa75, vwa_long, vwa_unseen)
    for group in suite.TEMPLATES.values()
    for template in group
]


def names_in(wording: str) -> set[str]:
    return set(re.findall(r"\{\{(\w+)\}\}", wording))


@pytest.fixture(scope="module")
def drafts() -> dict[str, Draft]:
    """A draft of each template by the template's name."""
    world = World(DEFAULT_SEED)
    return {
        template.make.__name__: template.make(Draw(world, random.Random(0)))
        for template in TEMPLATES
    }


def test_a_template_has_three_wordings_and_an_unseen_one(drafts: dict[str, Draft]) -> None:
    for name, draft in drafts.items():
        assert len(set(draft.wordings)) >= 3 and draft.unseen_wording, name


def test_all_wordings_name_all_values(drafts: dict[str, Draft]) -> None:
    for name, draft in drafts.items():
        for wording in (*draft.wordings, draft.unseen_wording):
            assert names_in(wording) == set(draft.values), (name, wording)


def test_only_the_unseen_wording_is_a_polite_request(drafts: dict[str, Draft]) -> None:
    for name, draft in drafts.items():
        assert is_polite_request(draft.unseen_wording), name
        assert [each for each in draft.wordings if is_polite_request(each)] == [], name


@pytest.mark.parametrize(
    ("goal", "is_request"),
    [
        ("I am out of tea. Could you put some into my cart?", True),
        ("Would you, please, cancel it?", True),
        ("Please add one kettle to my cart.", False),
        ("Ask the seller: can I see it on Friday?", False),
        ("Do you have the manual?", False),
    ],
)
def test_a_polite_request_addresses_a_helper(goal: str, is_request: bool) -> None:
    assert is_polite_request(goal) is is_request


def test_the_reworded_tasks_differ_in_nothing_but_the_goal() -> None:
    tasks = load_suite("vwa75", world_seed=DEFAULT_SEED).tasks
    reworded = load_suite("vwa75-reworded", world_seed=DEFAULT_SEED).tasks
    for task, other in zip(tasks, reworded, strict=True):
        assert is_polite_request(other.intent) and other.paraphrases == ()
        goal = {"intent", "intent_template", "paraphrases"}
        assert other.model_dump(exclude=goal) == task.model_dump(exclude=goal)
