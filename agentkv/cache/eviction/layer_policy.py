"""The policy's state for one layer: what it allows, and what it remembers of each sequence.

Shapes: B sequences with S segments each; H key-value heads; T entries.
"""

from collections.abc import Mapping, Sequence

from agentkv.cache.budget import Allowance
from agentkv.cache.eviction.ranks import Ranks
from agentkv.cache.spans import Spans
from agentkv.cache.storage.backend import Backend
from agentkv.cache.storage.layer_storage import LayerStorage
from agentkv.policies.policy import Policy
from agentkv_kernels.formats import BLOCK


class LayerPolicy:
    """State of the policy for one layer.

    Args:
        index: index among the layers that the policy acts on.
        allowance: what the policy allows.
        spans: labels and pins of the cache's sequences.
    """

    __slots__ = ("allowance", "energies", "fed", "index", "num_steps", "ranks", "spans")

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
        policies, budgets = {}, {}
        for sequence in self.ranks.noted:
            policies[sequence] = self.fitted(sequence)
            budget = self.budget(sequence)
            assert budget is not None
            budgets[sequence] = budget
        if policies:
            backend.quantize(storage, self.ranks.below(storage, policies, budgets, best))

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
