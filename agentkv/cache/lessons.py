"""What the contexts of a cache teach an allocator that learns.

A context is one sequence's life in one cache (our choice; the paper's is a prompt). It is measured
when rows first have to go: each layer's energy is the sum of its scores over the rows that may go,
times how far its attention turned the residual stream in that forward.
"""

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from agentkv.cache.keeper import Keeper
from agentkv.policies.slots import Allocator


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

    def measured(self, batch: int, layers: Iterable[int]) -> tuple[tuple[float | None, ...], ...]:
        """Of each sequence, what each layer has shown of it so far."""
        of_sequences = [self._energies.get(i, {}) for i in range(batch)]
        return tuple(tuple(map(known.get, layers)) for known in of_sequences)

    def put_back(
        self, measured: Sequence[Sequence[float | None]], layers: Sequence[int], is_over: bool
    ) -> None:
        """Go on where `measured` was taken."""
        self._energies = {
            i: {
                layer: energy
                for layer, energy in zip(layers, known, strict=True)
                if energy is not None
            }
            for i, known in enumerate(measured)
        }
        self.is_over = is_over

    def reorder(self, sequences: Sequence[int]) -> None:
        """Sequence i becomes a copy of what sequence sequences[i] was, and was measured when it
        was."""
        known = self._energies
        self._energies = {i: dict(known[old]) for i, old in enumerate(sequences) if old in known}

    def take(self, keepers: Mapping[int, Keeper]) -> None:
        """At the end of a forward, learn from the sequences that all layers have now measured.

        Args:
            keepers: by layer, of those that the policy acts on.
        """
        for layer, keeper in keepers.items():
            turns: list[float] | None = None
            for sequence, energy in enumerate(keeper.energies):
                known = self._energies.setdefault(sequence, {})
                if energy is None or layer in known:
                    continue
                if turns is None:
                    turns = self._turns[layer].tolist()
                known[layer] = max(energy, 0.0) * max(turns[sequence], 0.0)
                if len(known) == len(keepers):
                    self._allocator.learn([known[i] for i in keepers])
        self._turns.clear()
        self.is_over = all(len(known) == len(keepers) for known in self._energies.values())
