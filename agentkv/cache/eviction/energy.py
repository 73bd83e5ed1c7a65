"""Energy of each layer per context, for an allocator that learns from it.

A context is a forward of several tokens: a prompt, an observation, or a chunk of one. Every context
counts, whether entries must leave or not. The energy of a layer is the sum of its scores, before
they are pooled, over the entries that may leave, times the residual shift of its attention (TADA,
equations 12 and 13), unless the allocator leaves that factor out. So a cache learns from turn to
turn, and caches that share a policy learn together. A context has effect from the next one on.
"""

import math
from collections.abc import Mapping

from torch import Tensor

from agentkv.cache.eviction.layer_policy import LayerPolicy
from agentkv.policies.slots import Allocator, Learner


class EnergyStatistics:
    """Collects what the layers measure in one forward, and updates the allocator at its end."""

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self._shifts: dict[int, Tensor] = {}

    def note_residual_shift(self, layer_idx: int, shift: Tensor) -> None:
        """Take a layer's residual shift (B,) float32, NaN for a sequence without a new token."""
        self._shifts[layer_idx] = shift

    def finish_context(self, policies: Mapping[int, LayerPolicy]) -> None:
        """Update the allocator with the mean over the sequences that had a new token.

        Args:
            policies: by layer, of those that the policy acts on; their energies are cleared.
        """
        allocator, batch = self._allocator, len(next(iter(policies.values())).energies)
        assert isinstance(allocator, Learner)
        if all(layer in self._shifts for layer in policies):
            energies = [
                [
                    _product(*both, by_shift=allocator.by_shift)
                    for both in zip(policy.energies, self._shifts[layer].tolist(), strict=True)
                ]
                for layer, policy in policies.items()
            ]
            measured = [i for i in range(batch) if all(row[i] is not None for row in energies)]
            if measured:
                allocator.update(
                    [sum(row[i] or 0.0 for i in measured) / len(measured) for row in energies]
                )
        for policy in policies.values():
            policy.energies = [None] * batch
        self._shifts.clear()


def _product(energy: float | None, shift: float, *, by_shift: bool) -> float | None:
    """Return None for a sequence that had no new token."""
    if energy is None or math.isnan(shift):
        return None
    # cosines round, and a shift is never negative
    return max(energy, 0.0) * (max(shift, 0.0) if by_shift else 1.0)
