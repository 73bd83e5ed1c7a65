"""Copying rows: spans of random tokens that recur at all distances."""

import random
from collections.abc import Sequence

from train_nano.episode import TrainingRow

MOST_CONTEXT = 6
"""Maximum number of tokens of a repeated span that must determine the next token."""


def copy_row(rng: random.Random, tokens: Sequence[int], length: int) -> TrainingRow:
    """Build a row of `length` of these `tokens` in which repeated spans carry weight.

    A repeated token has weight 1 if the copied part of its span, at most `MOST_CONTEXT` tokens, has
    had only one continuation so far. Ambiguous tokens and the first token of a span have weight 0.
    With few different `tokens` a single token of context is seldom enough, as in numbers and in
    names with a common prefix.
    """
    ids: list[int] = []
    weights: list[float] = []
    continuations: dict[tuple[int, ...], set[int]] = {}

    def append(token: int, num_copied: int) -> None:
        contexts = [tuple(ids[-size:]) for size in range(1, min(len(ids), MOST_CONTEXT) + 1)]
        size = min(num_copied, MOST_CONTEXT)
        known = continuations.get(contexts[size - 1]) if num_copied else None
        weights.append(float(known == {token}))
        for context in contexts:
            continuations.setdefault(context, set()).add(token)
        ids.append(token)

    for _ in range(rng.randint(length // 4, length // 2)):
        append(rng.choice(tokens), 0)
    while len(ids) < length:
        span = rng.randint(2, max(3, min(24, len(ids) // 2)))
        start = rng.randrange(max(1, len(ids) - span))
        for num_copied, token in enumerate(ids[start : start + span]):
            append(token, num_copied)
    return TrainingRow(ids[:length], weights[:length], list(range(length)))
