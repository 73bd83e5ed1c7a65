"""Pairs: what is asked for was told, and only what is asked for counts."""

import random

import pytest

from train_nano.pairs import LEVELS, TIMES_ASKED, pairing

TOKENS = list(range(10, 500))


@pytest.mark.parametrize("level", range(len(LEVELS)))
@pytest.mark.parametrize("seed", range(8))
def test_every_value_that_counts_stood_in_the_row_before(seed: int, level: int) -> None:
    row = pairing(random.Random(seed), TOKENS, level)
    told = row.weights.index(1.0)
    start = 0
    for index, weight in enumerate([*row.weights, 0.0]):
        if weight and not row.weights[index - 1]:
            start = index
        elif not weight and index and row.weights[index - 1]:
            value = row.ids[start:index]
            assert any(
                row.ids[at : at + len(value)] == value for at in range(told - len(value) + 1)
            )


def test_a_value_never_follows_its_key_at_once_where_it_is_asked_for() -> None:
    for seed in range(30):
        row = pairing(random.Random(seed), TOKENS, 0)
        first = row.weights.index(1.0)
        told = list(zip(row.ids[:first], row.ids[1:first], strict=False))
        for index in range(first, len(row.ids)):
            if row.weights[index]:
                asked = row.ids[index - 2]
                assert (asked, row.ids[index]) in told


def test_each_pair_is_asked_for_as_often() -> None:
    row = pairing(random.Random(0), TOKENS, 0)
    values = [token for token, weight in zip(row.ids, row.weights, strict=True) if weight]
    assert all(values.count(value) % TIMES_ASKED == 0 for value in values)
