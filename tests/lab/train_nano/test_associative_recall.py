"""Tests for associative recall rows."""

import random

import pytest

from train_nano.associative_recall import LEVELS, QUERIES_PER_PAIR, pair_row

TOKENS = list(range(10, 500))


@pytest.mark.parametrize("level", range(len(LEVELS)))
@pytest.mark.parametrize("seed", range(8))
def test_every_queried_value_occurs_earlier_in_the_row(seed: int, level: int) -> None:
    row = pair_row(random.Random(seed), TOKENS, level)
    first = row.weights.index(1.0)
    start = 0
    for index, weight in enumerate([*row.weights, 0.0]):
        if weight and not row.weights[index - 1]:
            start = index
        elif not weight and index and row.weights[index - 1]:
            value = row.ids[start:index]
            assert any(
                row.ids[at : at + len(value)] == value for at in range(first - len(value) + 1)
            )


def test_a_queried_value_never_follows_its_key_immediately() -> None:
    for seed in range(30):
        row = pair_row(random.Random(seed), TOKENS, 0)
        first = row.weights.index(1.0)
        neighbors = list(zip(row.ids[:first], row.ids[1:first], strict=False))
        for index in range(first, len(row.ids)):
            if row.weights[index]:
                key = row.ids[index - 2]
                assert (key, row.ids[index]) in neighbors


def test_every_pair_is_queried_equally_often() -> None:
    row = pair_row(random.Random(0), TOKENS, 0)
    values = [token for token, weight in zip(row.ids, row.weights, strict=True) if weight]
    assert all(values.count(value) % QUERIES_PER_PAIR == 0 for value in values)
