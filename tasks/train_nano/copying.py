"""Copying: to go on with what was read before, at any distance. What acting rests on."""

import random
from collections.abc import Sequence

from train_nano.episode import Row

MOST_CONTEXT = 6
"""Tokens, of a span that recurs, that must tell how it goes on."""


def copying(rng: random.Random, tokens: Sequence[int], length: int) -> Row:
    """A row of `length` of these `tokens` in which spans recur at all distances; recurrences count.

    Where what was copied so far, up to `MOST_CONTEXT` tokens of it, went on in two ways before,
    nothing says which it is: that does not count, nor does the first token of a span. With few
    `tokens` one of context says little, as in numbers and in names that begin alike.
    """
    ids: list[int] = []
    weights: list[float] = []
    went_on: dict[tuple[int, ...], set[int]] = {}

    def append(token: int, num_copied: int) -> None:
        contexts = [tuple(ids[-size:]) for size in range(1, min(len(ids), MOST_CONTEXT) + 1)]
        told = went_on.get(contexts[min(num_copied, MOST_CONTEXT) - 1]) if num_copied else None
        weights.append(float(told == {token}))
        for context in contexts:
            went_on.setdefault(context, set()).add(token)
        ids.append(token)

    for _ in range(rng.randint(length // 4, length // 2)):
        append(rng.choice(tokens), 0)
    while len(ids) < length:
        span = rng.randint(2, max(3, min(24, len(ids) // 2)))
        start = rng.randrange(max(1, len(ids) - span))
        for num_copied, token in enumerate(ids[start : start + span]):
            append(token, num_copied)
    return Row(ids[:length], weights[:length], list(range(length)))
