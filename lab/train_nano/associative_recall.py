"""Associative recall rows: a key that recurs must be followed by its value.

Copying continues with the next token. Answering with the value of a key, or the id of a name, also
requires skipping the tokens between them. With keys and values of one random token each, a model
learns this within a million tokens; with values of several digits from the start it did not in nine
million.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from train_nano.episode import TrainingRow


@dataclass(frozen=True, slots=True)
class Difficulty:
    """Maximum sizes of the parts of a row, in tokens except for `pairs`."""

    pairs: int
    context_gap: int
    """Tokens between key and value in the list of pairs."""
    query_gap: int
    """Tokens between key and value in a query."""
    key: int
    value: int
    noise: int
    """Random tokens between the pairs and the queries."""


LEVELS = (
    Difficulty(pairs=8, context_gap=0, query_gap=1, key=1, value=1, noise=0),
    Difficulty(pairs=8, context_gap=1, query_gap=2, key=1, value=1, noise=4),
    Difficulty(pairs=12, context_gap=2, query_gap=4, key=3, value=4, noise=64),
)
QUERIES_PER_PAIR = 2


def pair_row(rng: random.Random, tokens: Sequence[int], level: int) -> TrainingRow:
    """Build a row of pairs of random `tokens`, each listed once and queried twice.

    Only the values of the queries have weight. Some rows use an easier level, so the model does not
    forget it.
    """
    limits = LEVELS[level if rng.random() < 0.7 else rng.randint(0, level)]
    keys = _draw_keys(rng, tokens, rng.randint(2, limits.pairs), limits.key)
    values = [_draw_tokens(rng, tokens, rng.randint(1, limits.value)) for _ in keys]
    # All pairs have the same tokens in the gap; otherwise the start of a value would be ambiguous.
    context_gap = _draw_tokens(rng, tokens, rng.randint(0, limits.context_gap))
    query_gap = _draw_tokens(rng, tokens, rng.randint(1, limits.query_gap))
    is_gap_fixed = rng.random() < 0.7
    ids: list[int] = []
    for key, value in zip(keys, values, strict=True):
        ids += key + context_gap + value
    ids += _draw_tokens(rng, tokens, rng.randint(0, limits.noise))
    weights = [0.0] * len(ids)
    order = list(range(len(keys))) * QUERIES_PER_PAIR
    rng.shuffle(order)
    for index in order:
        gap = query_gap if is_gap_fixed else _draw_tokens(rng, tokens, len(query_gap))
        query = keys[index] + gap
        ids += query + values[index]
        weights += [0.0] * len(query) + [1.0] * len(values[index])
    return TrainingRow(ids, weights, list(range(len(ids))))


def _draw_tokens(rng: random.Random, tokens: Sequence[int], count: int) -> list[int]:
    return [rng.choice(tokens) for _ in range(count)]


def _draw_keys(
    rng: random.Random, tokens: Sequence[int], count: int, longest: int
) -> list[list[int]]:
    """Draw `count` keys of up to `longest` tokens that end in different tokens."""
    return [
        [*_draw_tokens(rng, tokens, rng.randint(0, longest - 1)), last]
        for last in rng.sample(tokens, count)
    ]
