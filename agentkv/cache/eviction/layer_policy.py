"""The policy's state for one layer: what it allows, and what it remembers of each sequence.

Shapes: B sequences with S segments each; H key-value heads; T entries.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from agentkv.cache.budget import Allowance
from agentkv.cache.spans import Spans
from agentkv.cache.storage.backend import Backend
from agentkv.cache.storage.layer_storage import LayerStorage
from agentkv.policies.entries import Drop, DropOne, Selection
from agentkv.policies.policy import Policy
from agentkv_kernels.formats import BLOCK


class Ranks:
    """Scores of kept entries, between a layer's eviction and the end of the forward.

    For precision by rank, a layer's share of dense entries is its quality over the best layer's.
    Entries leave layer by layer during a forward, so they are quantized at its end.
    """

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
        fitted: Callable[[int], Policy],
        budget: Callable[[int], int | None],
        best: Mapping[int, float],
    ) -> list[Tensor]:
        """Return the dense entries (n,) of each segment that rank too low, and forget the scores.

        Quantized entries stay so, and protected ones stay dense.

        Args:
            fitted, budget: a sequence to its fitted policy, and to the entries per head of this
                layer.
            best: by sequence, the largest quality of all layers.
        """
        picks = [torch.arange(0, device=storage.device)] * storage.num_segments
        for sequence, scores in self._scores.items():
            policy, allowed = fitted(sequence), budget(sequence)
            protected = policy.selector.protected
            assert isinstance(protected, int) and allowed is not None
            # exponents of 1 / tau can be so large that every quality is 0
            share = self.qualities[sequence] / best[sequence] if best[sequence] > 0 else 1.0
            num_dense = policy.precision.num_dense(share, allowed)
            for i, segment in enumerate(storage.segments(sequence)):
                count, num_quantized = storage.counts[segment], storage.num_quantized[segment]
                past = scores[i, scores.shape[1] - count :]
                past = past[: count - protected]
                order = past.argsort(descending=True, stable=True)
                low = order[num_dense:].sort().values
                picks[segment] = low[low >= num_quantized]
        self._scores.clear()
        return picks


class LayerPolicy:
    """State of the policy for one layer.

    Args:
        index: index among the layers that the policy acts on.
        allowance: what the policy allows.
        spans: labels and pins of the cache's sequences.
    """

    def __init__(self, index: int, allowance: Allowance, spans: Spans) -> None:
        self.index, self.allowance, self.spans = index, allowance, spans
        self.ranks = Ranks()
        self.fed: list[int] = []
        """Tokens that each sequence was fed; the layer owns and updates the list."""
        self.num_steps = 0
        """Forwards of a single token."""
        self.energies: list[float | None] = []
        """Per sequence, the summed scores of its candidates if this forward is a context, else
        None; read by `EnergyStatistics`."""

    @property
    def policy(self) -> Policy:
        """The policy as requested, without a budget filled in."""
        return self.allowance.policy

    def fitted(self, sequence: int) -> Policy:
        """Return the policy with the budget of a sequence filled in."""
        return self.allowance.at(self.fed[sequence], self.spans.pins(sequence))

    def has_scattered_pins(self, sequence: int) -> bool:
        """Return whether tokens of a sequence are pinned that are not among its sinks."""
        pins = self.spans.pins(sequence)
        return self.allowance.pinned(self.fed[sequence], pins)[1] > 0

    def budgets(self, sequence: int, confidence: float | None = None) -> tuple[int, ...] | None:
        """Return the entries per head of a sequence, by layer; see `Allowance.layers`."""
        pins = self.spans.pins(sequence)
        return self.allowance.layers(self.fed[sequence], confidence, pins)

    def budget(self, sequence: int) -> int | None:
        """Return the most entries per head of a sequence in this layer."""
        budgets = self.budgets(sequence)
        return None if budgets is None else budgets[self.index]

    def begin(self, fed: list[int]) -> None:
        """Start anew with the sequences of a layer, which shares its list `fed`."""
        self.fed, self.num_steps = fed, 0
        self.energies, self.ranks = [None] * len(fed), Ranks()

    def target(
        self,
        policy: Policy,
        storage: LayerStorage,
        sequence: int,
        budgets: Sequence[int],
        num_new: int,
    ) -> int | None:
        """Return the entries per head that a sequence must go down to; None if it may keep all.

        Args:
            policy: fitted to a budget.
            budgets: entries per head that each layer is allowed, from `budgets`.
        """
        budget, gate = budgets[self.index], policy.gate
        per, held = storage.layout.segments_per_sequence, storage.num_entries(sequence)
        if held <= per * (budget + gate.slack) or not gate.is_due(num_new, self.num_steps):
            return None
        return gate.target(budget, held // per)

    def quantize_by_rank(
        self, storage: LayerStorage, backend: Backend, best: Mapping[int, float]
    ) -> None:
        """Quantize the entries that rank below this layer's share of dense ones, for the sequences
        that dropped entries in the forward that ends.

        Args:
            best: per sequence, the largest quality of all layers.
        """
        if self.ranks.noted:
            picks = self.ranks.below(storage, self.fitted, self.budget, best)
            backend.quantize(storage, picks)

    def reorder(self, index: Sequence[int], fed: list[int]) -> None:
        """Make sequence i a copy of what sequence index[i] was; `fed` as in `begin`."""
        self.fed = fed
        self.energies = [None] * len(index)
        self.ranks.reorder(index)

    def check(self, storage: LayerStorage) -> None:
        """Audit what is stored against what is allowed. Raises AssertionError."""
        per = storage.layout.segments_per_sequence
        for sequence in range(len(self.fed)):
            policy, held = self.fitted(sequence), storage.num_entries(sequence)
            budget = self.budget(sequence)
            if budget is not None and policy.gate.bounded:
                most = per * (budget + policy.gate.slack)
                assert held <= most, f"{held} entries in all segments, at most {most} allowed"
            recent = policy.precision.recent
            if recent is not None and policy.precision.sure is None:
                segments = storage.segments(sequence)
                num_dense = max(storage.dense.counts[segments.start : segments.stop])
                assert num_dense < recent + BLOCK, f"{num_dense} dense entries, not {recent}"
