"""Precision by rank: which kept rows stay in the model's dtype, once all layers were compared.

How much of its budget a layer may spend on the model's dtype is its quality over the best layer's,
so rows go layer by layer during a forward, and are quantised at its end.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from agentkv.cache.lanes import Lanes
from agentkv.policies.policy import Policy
from agentkv.policies.rows import Drop, DropOne, Verdict


class Ranks:
    """What one layer remembers between its eviction and the end of the forward."""

    __slots__ = ("_scores", "qualities")

    def __init__(self) -> None:
        self.qualities: dict[int, float] = {}
        """The latest estimate per sequence. It outlives the forward."""
        self._scores: dict[int, Tensor] = {}

    @property
    def noted(self) -> Sequence[int]:
        """The sequences of which rows went in this forward."""
        return tuple(self._scores)

    def note(self, sequence: int, scores: Tensor, verdict: Verdict, quality: float) -> None:
        """Remember what the rows that stay are worth.

        Args:
            scores: (S, T) float32 in storage order.  verdict: in storage order.
        """
        if isinstance(verdict, Drop):
            kept = torch.cat([scores[:, : verdict.start], scores[:, verdict.stop :]], dim=1)
        else:
            # lanes keep different numbers of rows: fill them up at their fronts again
            assert not isinstance(verdict, DropOne), "in storage order it is a mask"
            of_lanes = [own[stay] for own, stay in zip(scores, verdict, strict=True)]
            kept = scores.new_zeros(len(of_lanes), max(x.shape[0] for x in of_lanes))
            for lane, own in enumerate(of_lanes):
                kept[lane, kept.shape[1] - own.shape[0] :] = own
        self._scores[sequence] = kept
        self.qualities[sequence] = quality

    def reorder(self, sequences: Sequence[int]) -> None:
        """Sequence i becomes a copy of what sequence sequences[i] was."""
        known = self.qualities
        self.qualities = {i: known[old] for i, old in enumerate(sequences) if old in known}

    def settle(
        self,
        lanes: Lanes,
        policies: Mapping[int, Policy],
        budgets: Mapping[int, int],
        best: Mapping[int, float],
    ) -> None:
        """Quantise the rows that do not rank among their lane's originals. Rows quantised before
        stay so; the newest, protected rows stay in the model's dtype.

        Args:
            policies, budgets, best: for each noted sequence, its fitted policy, the rows per head
                of this layer, and the largest quality of all layers.
        """
        device = lanes.positions(0).device
        picks = [torch.arange(0, device=device)] * lanes.num_lanes
        per = lanes.shape.per_sequence
        for sequence, scores in self._scores.items():
            policy = policies[sequence]
            protected = policy.selector.protected
            assert isinstance(protected, int)
            # exponents of 1 / tau can be so large that no quality is left
            share = self.qualities[sequence] / best[sequence] if best[sequence] > 0 else 1.0
            most = policy.precision.num_originals(share, budgets[sequence])
            for i in range(per):
                lane = sequence * per + i
                count, coded = lanes.counts[lane], lanes.num_coded[lane]
                past = scores[i, scores.shape[1] - count :]
                past = past[: count - protected]
                order = past.argsort(descending=True, stable=True)
                below = order[most:].sort().values
                picks[lane] = below[below >= coded]
        self._scores.clear()
        lanes.quantise(picks)
