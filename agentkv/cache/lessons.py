"""What the contexts a cache is fed teach an allocator that learns.

A context is a forward of several tokens: a prompt, an observation, or a chunk of one. Every context
counts, whether rows have to go at its end or not. The energy of a layer is the sum of its scores,
before they are pooled, over the rows that may go, times how far its attention turned the residual
stream (TADA, equations 12 and 13). So a cache learns from turn to turn, and caches that share a
policy value learn together. What a context teaches counts from the next one on.
"""

import math
from collections.abc import Mapping

from torch import Tensor

from agentkv.cache.keeper import Keeper
from agentkv.policies.slots import Allocator, Learner


class Lessons:
    """Gathers what the layers show in one forward, and hands it on at its end."""

    __slots__ = ("_allocator", "_turns")

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self._turns: dict[int, Tensor] = {}

    def note_turn(self, layer_idx: int, turn: Tensor) -> None:
        """How far a layer's attention turned the stream in this forward: (B,) float32, NaN for a
        sequence without a new token."""
        self._turns[layer_idx] = turn

    def take(self, keepers: Mapping[int, Keeper]) -> None:
        """At the end of a forward, learn the mean over the sequences that had a new token in it.

        Args:
            keepers: by layer, of those that the policy acts on; what they measured is used up.
        """
        batch = len(next(iter(keepers.values())).energies)
        if all(layer in self._turns for layer in keepers):
            shown = [
                [_product(*both) for both in zip(k.energies, turns.tolist(), strict=True)]
                for k, turns in ((keeper, self._turns[layer]) for layer, keeper in keepers.items())
            ]
            measured = [i for i in range(batch) if all(row[i] is not None for row in shown)]
            if measured:
                assert isinstance(self._allocator, Learner)
                self._allocator.learn(
                    [sum(row[i] or 0.0 for i in measured) / len(measured) for row in shown]
                )
        for keeper in keepers.values():
            keeper.energies = [None] * batch
        self._turns.clear()


def _product(energy: float | None, turn: float) -> float | None:
    """None for a sequence that had no new token."""
    if energy is None or math.isnan(turn):
        return None
    # cosines round, and a turn is never below 0
    return max(energy, 0.0) * max(turn, 0.0)
