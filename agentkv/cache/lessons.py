"""What the contexts of a cache teach an allocator that learns.

A context is one sequence's life in one cache (our choice; the paper's is a prompt). It is measured
when rows first have to go: each layer's energy is the sum of its scores over the rows that may go,
times how far its attention turned the residual stream in that forward.
"""

from collections.abc import Sequence

from torch import Tensor

from agentkv.cache.layer import LayerStore
from agentkv.policies.policy import Allocator


class Lessons:
    """Gathers what layers show of each sequence, and hands it on once all have shown it."""

    __slots__ = ("_allocator", "_energies", "_turns", "is_over")

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self._energies: dict[int, dict[int, float]] = {}
        self._turns: dict[int, Tensor] = {}
        self.is_over = False
        """Whether all sequences were measured, so that nothing more is to be noted."""

    def note_turn(self, layer_idx: int, turn: Tensor) -> None:
        """How far a layer's attention turned the stream in this forward, (B,) float32."""
        self._turns[layer_idx] = turn

    def take(self, stores: Sequence[LayerStore], layers: Sequence[int]) -> None:
        """At the end of a forward, learn from the sequences that all `layers` have now measured.

        Args:
            stores: of all layers.  layers: those that the policy acts on.
        """
        batch = len(stores[layers[0]].fed)
        for i in layers:
            turns: list[float] | None = None
            for sequence, energy in enumerate(stores[i].energies):
                known = self._energies.setdefault(sequence, {})
                if energy is None or i in known:
                    continue
                if turns is None:
                    turns = self._turns[i].tolist()
                known[i] = max(energy, 0.0) * max(turns[sequence], 0.0)
                if len(known) == len(layers):
                    self._allocator.learn([known[layer] for layer in layers])
        self._turns.clear()
        self.is_over = all(len(self._energies[i]) == len(layers) for i in range(batch))
