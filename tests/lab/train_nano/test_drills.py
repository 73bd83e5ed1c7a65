"""Tests for synthetic episodes and copying rows."""

import random

import pytest

from agentkv_env.actions import extract, parse
from agentkv_env.page import Page
from agentkv_env.sites.names import side_of_name
from train_nano.copying import MOST_CONTEXT, copy_row
from train_nano.drills import Drills


@pytest.mark.parametrize("seed", range(5))
def test_every_reply_acts_on_an_element_with_the_label_it_names(seed: int) -> None:
    for _ in range(20):
        for turn in Drills(seed).walk(12).turns:
            action = parse(extract(turn.reply))
            if action.element_id is not None:
                node = turn.page.element(action.element_id)
                assert node is not None
                assert turn.reply.startswith(f"at {node.name}\n")


@pytest.mark.parametrize("seed", range(5))
def test_every_typed_or_answered_text_is_in_the_goal_or_on_the_page(seed: int) -> None:
    drills = Drills(seed)
    for _ in range(30):
        episode = drills.walk(12)
        for turn in episode.turns:
            action = parse(extract(turn.reply))
            if action.text or action.answer:
                assert (action.text or action.answer) in episode.goal + _text(turn.page)


def test_equal_seeds_give_equal_walks_and_different_seeds_different_ones() -> None:
    assert Drills(3).walk(10) == Drills(3).walk(10)
    assert Drills(3).walk(10) != Drills(4).walk(10)


def test_names_in_synthetic_episodes_are_on_the_training_side() -> None:
    drills = Drills(0)
    people = [drills._names.person("").name for _ in range(20)]
    assert all(side_of_name(name) == 1 for name in people)


@pytest.mark.parametrize("count", [1000, 50, 12])
def test_weighted_tokens_of_a_copying_row_follow_from_earlier_tokens(count: int) -> None:
    row = copy_row(random.Random(count), list(range(count)), 400)
    num_from_one_token = 0
    for index, weight in enumerate(row.weights):
        if weight:
            contexts = [tuple(row.ids[index - size : index]) for size in range(1, MOST_CONTEXT + 1)]
            continuations = [
                {
                    row.ids[at]
                    for at in range(len(context), index)
                    if tuple(row.ids[at - len(context) : at]) == context
                }
                for context in contexts
            ]
            assert {row.ids[index]} in continuations
            num_from_one_token += continuations[0] == {row.ids[index]}
    assert 0.2 < sum(row.weights) / 400 < 0.8
    # With few different tokens, one token of context seldom determines the next.
    share = num_from_one_token / sum(row.weights)
    assert share > 0.7 if count == 1000 else share < 0.4


def _text(page: Page) -> str:
    return "\n".join(f"{node.name} {' '.join(node.options)}" for node in page.nodes)
