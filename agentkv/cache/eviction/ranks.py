"""Precision by rank: which kept entries stay dense, once all layers have been compared.

A layer's share of dense entries is its quality over the best layer's. Entries leave layer by layer
during a forward, so they are quantized at its end.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from agentkv.cache.storage.layer_storage import LayerStorage
from agentkv.policies.entries import Drop, DropOne, Selection
from agentkv.policies.policy import Policy


class Ranks:
    """Scores of kept entries, between a layer's eviction and the end of the forward."""

    __slots__ = ("_scores", "qualities")

    def __init__(self) -> None:
        self.qualities: dict[int, float] = {}
        """Latest estimate per sequence. It outlives the forward."""
        self._scores: dict[int, Tensor] = {}

    @property
    def noted(self) -> Sequence[int]:
        """Sequences that dropped entries in this forward."""
        return tuple(self._scores)

    def note(self, sequence: int, scores: Tensor, verdict: Selection, quality: float) -> None:
        """Remember the scores of the entries that stay.

        Args:
            scores: (S, T) float32 in storage order.
            verdict: in storage order.
            quality: of the layer.
        """
        if isinstance(verdict, Drop):
            kept = torch.cat([scores[:, : verdict.start], scores[:, verdict.stop :]], dim=1)
        else:
            # segments keep different numbers of entries: pad them at their fronts again
            assert not isinstance(verdict, DropOne), "in storage order it is a mask"
            segments = [own[stays] for own, stays in zip(scores, verdict, strict=True)]
            kept = scores.new_zeros(len(segments), max(own.shape[0] for own in segments))
            for segment, own in enumerate(segments):
                kept[segment, kept.shape[1] - own.shape[0] :] = own
        self._scores[sequence] = kept
        self.qualities[sequence] = quality

    def reorder(self, sequences: Sequence[int]) -> None:
        """Make sequence i a copy of what sequence sequences[i] was."""
        known = self.qualities
        self.qualities = {i: known[old] for i, old in enumerate(sequences) if old in known}

    def below(
        self,
        storage: LayerStorage,
        policies: Mapping[int, Policy],
        budgets: Mapping[int, int],
        best: Mapping[int, float],
    ) -> list[Tensor]:
        """Return the dense entries (n,) of each segment that rank too low, and forget the scores.

        Quantized entries stay so, and protected ones stay dense.

        Args:
            policies, budgets, best: for each noted sequence, its fitted policy, the entries per
                head of this layer, and the largest quality of all layers.
        """
        picks = [torch.arange(0, device=storage.device)] * storage.num_segments
        for sequence, scores in self._scores.items():
            policy = policies[sequence]
            protected = policy.selector.protected
            assert isinstance(protected, int)
            # exponents of 1 / tau can be so large that every quality is 0
            share = self.qualities[sequence] / best[sequence] if best[sequence] > 0 else 1.0
            num_dense = policy.precision.num_dense(share, budgets[sequence])
            for i, segment in enumerate(storage.segments(sequence)):
                count, num_quantized = storage.counts[segment], storage.num_quantized[segment]
                past = scores[i, scores.shape[1] - count :]
                past = past[: count - protected]
                order = past.argsort(descending=True, stable=True)
                low = order[num_dense:].sort().values
                picks[segment] = low[low >= num_quantized]
        self._scores.clear()
        return picks
