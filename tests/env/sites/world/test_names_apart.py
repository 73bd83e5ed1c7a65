"""Training and evaluation worlds share no name and no word of a name, on any page."""

import re

import pytest

from agentkv_env.sites import World
from agentkv_env.sites.names import FIRST_TRAINING_SEED, looks_invented

EVALUATION_SEEDS = (75, 7, 4711)
PLAIN = {"Lane", "Line", "Linen", "Pine"}
"""English words on pages that have the form of an invented name."""
TRAINING_SEEDS = tuple(FIRST_TRAINING_SEED + 977 * step for step in range(12))


def words(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z]+", text))


def invented(names: frozenset[str]) -> set[str]:
    """Return the invented words in the names of a world."""
    return {word for name in names for word in words(name) if looks_invented(word)}


@pytest.fixture(scope="module")
def evaluation() -> list[World]:
    return [World(seed) for seed in EVALUATION_SEEDS]


@pytest.fixture(scope="module")
def training() -> list[World]:
    return [World(seed) for seed in TRAINING_SEEDS]


def test_no_whole_name_is_on_both_sides(evaluation, training) -> None:
    ours = frozenset.union(*(world.names for world in evaluation))
    theirs = frozenset.union(*(world.names for world in training))
    assert not ours & theirs


def test_no_invented_word_is_on_both_sides(evaluation, training) -> None:
    ours = set.union(*(invented(world.names) for world in evaluation))
    theirs = set.union(*(invented(world.names) for world in training))
    assert len(ours) > 300 and len(theirs) > 1000
    assert not ours & theirs


def test_every_person_and_place_is_among_the_names(evaluation, training) -> None:
    for world in (*evaluation, *training):
        people = {person.name for person in world.people}
        figures = {figure.name for figure in world.wiki.figures}
        former = {town.former for town in world.wiki.towns}
        assert people | figures | former | set(world.places) <= world.names
        products = {product.name for product in world.shop.products}
        assert products | {event.title for event in world.home.events} <= world.names


def test_no_fact_of_a_training_world_has_a_word_of_an_evaluation_world(
    evaluation, training
) -> None:
    ours = set.union(*(invented(world.names) for world in evaluation))
    for world in training:
        assert not (ours - PLAIN) & words(repr(world)), world.seed


@pytest.mark.exhaustive
def test_no_page_of_an_evaluation_world_has_a_word_of_a_training_world(crawled, training) -> None:
    theirs = set.union(*(invented(world.names) for world in training)) - PLAIN
    whole = frozenset.union(*(world.names for world in training))
    for url, answer in crawled.items():
        if answer.is_page:
            assert not theirs & words(answer.text), url
            assert not whole & set(re.findall(r">([^<>]{3,60})<", answer.text)), url
