"""What the contexts a cache is fed teach an allocator that learns.

A context is a forward of several tokens, a prompt or an observation, at whose end rows have to go
in every layer. Each layer's energy is then the sum of its scores over the rows that may go, times
how far its attention turned the residual stream. So a cache learns from turn to turn, and caches
that share a policy value learn together. What a context teaches counts from the next one on.
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
        """At the end of a forward, learn the mean over the sequences that all layers measured.

        Args:
            keepers: by layer, of those that the policy acts on; what they measured is used up.
        """
        batch = len(next(iter(keepers.values())).energies)
        measured = [
            i for i in range(batch) if all(k.energies[i] is not None for k in keepers.values())
        ]
        if measured and all(layer in self._turns for layer in keepers):
            means = []
            for layer, keeper in keepers.items():
                turns = self._turns[layer].tolist()
                products = [_product(keeper.energies[i], turns[i]) for i in measured]
                means.append(sum(products) / len(products))
            assert isinstance(self._allocator, Learner)
            self._allocator.learn(means)
        for keeper in keepers.values():
            keeper.energies = [None] * batch
        self._turns.clear()


def _product(energy: float | None, turn: float) -> float:
    assert energy is not None and not math.isnan(turn), "rows had to go and no token was new"
    # cosines round, and a turn is never below 0
    return max(energy, 0.0) * max(turn, 0.0)
