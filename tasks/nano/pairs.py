"""Pairs: what stood behind a key, some tokens further on, is said again when the key comes back.

Copying goes on with the next token. To answer with the value of a key, or the number of a name, a
model has to pass over what stands between. With keys and values of one random token each this is
learnt within a million tokens; with values of several digits from the start it was not in nine.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from nano.episode import Row


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
    Pairs(pairs=8, told_between=2, asked_between=3, key=1, value=1, noise=8),
    Pairs(pairs=12, told_between=3, asked_between=4, key=2, value=3, noise=32),
    Pairs(pairs=24, told_between=4, asked_between=6, key=3, value=5, noise=128),
    Pairs(pairs=40, told_between=4, asked_between=6, key=3, value=6, noise=384),
)
TIMES_ASKED = 2


def pairing(rng: random.Random, tokens: Sequence[int], level: int) -> Row:
    """A row of pairs of random `tokens`, told once and asked for twice; values count when asked.

    The last levels are drawn easier at times, so that what was learnt first is not forgotten.
    """
    hard = LEVELS[level if rng.random() < 0.7 else rng.randint(0, level)]
    between = _Between(rng, tokens)
    keys = _unlike(rng, tokens, rng.randint(2, hard.pairs), hard.key)
    values = [_some(rng, tokens, rng.randint(1, hard.value)) for _ in keys]
    ids: list[int] = []
    told_between = rng.randint(0, hard.told_between)
    asked_between = max(1, rng.randint(0, hard.asked_between))
    for key, value in zip(keys, values, strict=True):
        ids += key + between.told(told_between) + value
    ids += _some(rng, tokens, rng.randint(0, hard.noise))
    weights = [0.0] * len(ids)
    order = list(range(len(keys))) * TIMES_ASKED
    rng.shuffle(order)
    for index in order:
        given = keys[index] + between.asked(asked_between)
        ids += given + values[index]
        weights += [0.0] * len(given) + [1.0] * len(values[index])
    return Row(ids, weights, list(range(len(ids))))


class _Between:
    """What stands between key and value: the same throughout a row, or other tokens each time."""

    def __init__(self, rng: random.Random, tokens: Sequence[int]) -> None:
        self._rng, self._tokens = rng, tokens
        self._is_constant = rng.random() < 0.7
        self._told, self._asked = (_some(rng, tokens, 16) for _ in range(2))

    def told(self, count: int) -> list[int]:
        return self._told[:count] if self._is_constant else _some(self._rng, self._tokens, count)

    def asked(self, count: int) -> list[int]:
        return self._asked[:count] if self._is_constant else _some(self._rng, self._tokens, count)


def _some(rng: random.Random, tokens: Sequence[int], count: int) -> list[int]:
    return [rng.choice(tokens) for _ in range(count)]


def _unlike(rng: random.Random, tokens: Sequence[int], count: int, longest: int) -> list[list[int]]:
    """`count` different keys of up to `longest` tokens; they end in different tokens."""
    return [
        [*_some(rng, tokens, rng.randint(0, longest - 1)), last]
        for last in rng.sample(tokens, count)
    ]
