"""Pairs: what stood behind a key, some tokens further on, is said again when the key comes back.

Copying goes on with the next token. To answer with the value of a key, or the number of a name, a
model has to pass over what stands between. With keys and values of one random token each this is
learnt within a million tokens; with values of several digits from the start it was not in nine.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from train_nano.episode import Row


@dataclass(frozen=True, slots=True)
class Pairs:
    """How hard a row of pairs is: the most there may be of each."""

    pairs: int
    told_between: int
    """Tokens between key and value where they are told."""
    asked_between: int
    """The same where the value is asked for."""
    key: int
    value: int
    noise: int
    """Tokens of no meaning between telling and asking."""


LEVELS = (
    Pairs(pairs=8, told_between=0, asked_between=1, key=1, value=1, noise=0),
    Pairs(pairs=8, told_between=1, asked_between=2, key=1, value=1, noise=4),
    Pairs(pairs=12, told_between=2, asked_between=4, key=3, value=4, noise=64),
)
TIMES_ASKED = 2


def pairing(rng: random.Random, tokens: Sequence[int], level: int) -> Row:
    """A row of pairs of random `tokens`, told once and asked for twice; values count when asked.

    The last levels are drawn easier at times, so that what was learnt first is not forgotten.
    """
    hard = LEVELS[level if rng.random() < 0.7 else rng.randint(0, level)]
    keys = _unlike(rng, tokens, rng.randint(2, hard.pairs), hard.key)
    values = [_some(rng, tokens, rng.randint(1, hard.value)) for _ in keys]
    # Where pairs are told, always the same stands between: else nothing says where a value begins.
    told = _some(rng, tokens, rng.randint(0, hard.told_between))
    asked = _some(rng, tokens, rng.randint(1, hard.asked_between))
    asked_alike = rng.random() < 0.7
    ids: list[int] = []
    for key, value in zip(keys, values, strict=True):
        ids += key + told + value
    ids += _some(rng, tokens, rng.randint(0, hard.noise))
    weights = [0.0] * len(ids)
    order = list(range(len(keys))) * TIMES_ASKED
    rng.shuffle(order)
    for index in order:
        given = keys[index] + (asked if asked_alike else _some(rng, tokens, len(asked)))
        ids += given + values[index]
        weights += [0.0] * len(given) + [1.0] * len(values[index])
    return Row(ids, weights, list(range(len(ids))))


def _some(rng: random.Random, tokens: Sequence[int], count: int) -> list[int]:
    return [rng.choice(tokens) for _ in range(count)]


def _unlike(rng: random.Random, tokens: Sequence[int], count: int, longest: int) -> list[list[int]]:
    """`count` different keys of up to `longest` tokens; they end in different tokens."""
    return [
        [*_some(rng, tokens, rng.randint(0, longest - 1)), last]
        for last in rng.sample(tokens, count)
    ]
