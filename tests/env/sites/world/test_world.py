import re

import pytest

from agentkv_env.sites import World
from agentkv_env.sites.names import FIRST_TRAINING_SEED, Names, side_of_name


def words(text: str) -> set[str]:
    return set(re.findall(r"[\w-]+", text))


def test_equal_seeds_give_equal_worlds() -> None:
    assert World(75) == World(75)


def test_another_seed_gives_other_products() -> None:
    assert World(75).shop.products != World(76).shop.products


@pytest.mark.parametrize("seed", [0, 7, 75, FIRST_TRAINING_SEED - 1])
def test_every_name_of_an_evaluation_world_is_on_the_evaluation_side(seed: int) -> None:
    names = World(seed).names
    assert len(names) > 300
    assert {side_of_name(name) for name in names} == {0}


@pytest.mark.parametrize("seed", [FIRST_TRAINING_SEED, FIRST_TRAINING_SEED + 1, 2_000_003])
def test_every_name_of_a_training_world_is_on_the_training_side(seed: int) -> None:
    assert {side_of_name(name) for name in World(seed).names} == {1}


def test_nothing_in_a_training_world_mentions_a_name_of_an_evaluation_world() -> None:
    training = repr(World(FIRST_TRAINING_SEED + 1))
    known = words(training)
    single = {name for name in World(75).names if " " not in name}
    assert not single & known
    assert not [name for name in World(75).names - single if name in training]


def test_people_have_a_handle_and_an_address_of_their_own() -> None:
    people = World(75).people
    assert len({person.handle for person in people}) == len(people)
    assert len({person.email for person in people}) == len(people)


def test_a_negative_seed_is_refused_with_the_number() -> None:
    with pytest.raises(ValueError, match="world seed -3 is negative"):
        World(-3)


def test_topics_draw_from_streams_of_their_own() -> None:
    first, second = Names(5, "one"), Names(5, "two")
    assert first.place() != second.place()
    assert Names(5, "one").rng.random() == Names(5, "one").rng.random()


def test_a_pool_that_is_too_small_says_so() -> None:
    names = Names(5, "tiny")
    with pytest.raises(RuntimeError, match="no free name left for 'tiny'"):
        for _ in range(3):
            names.title("{colour} Door", colour=["Red", "Blue"])


@pytest.mark.parametrize("seed", [7, 75, FIRST_TRAINING_SEED + 1])
def test_prices_are_different_within_a_category(seed: int) -> None:
    shop = World(seed).shop
    for category in shop.categories:
        prices = [product.cents for product in shop.in_category(category)]
        assert len(set(prices)) == len(prices)
