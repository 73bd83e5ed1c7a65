"""What a policy decides for one layer: which rows of each sequence stay, and how they are stored.

Shapes: B sequences of S lanes; H key-value heads; T rows.
"""

from collections.abc import Mapping, Sequence

from agentkv.cache.budget import Allowance
from agentkv.cache.lanes import Lanes
from agentkv.cache.ranks import Ranks
from agentkv.policies.policy import Policy
from agentkv_kernels.ops import BLOCK


class Keeper:
    """The policy's part for one layer.

    Args:
        index: which of the layers that the policy acts on this is.
        allowance: what the policy allows.
    """

    __slots__ = ("allowance", "energies", "fed", "index", "num_steps", "ranks")

    def __init__(self, index: int, allowance: Allowance) -> None:
        self.index, self.allowance = index, allowance
        self.ranks = Ranks()
        self.fed: list[int] = []
        """Tokens of each sequence that were fed; the list is its layer's own."""
        self.num_steps = 0
        """Forwards of a single token."""
        self.energies: list[float | None] = []
        """Per sequence, the summed scores of the rows that may go if this forward is a context,
        None otherwise. An allocator that learns reads it (`Lessons`)."""

    @property
    def policy(self) -> Policy:
        """With the parts as they were asked for, budgets not filled in."""
        return self.allowance.policy

    def begin(self, fed: list[int]) -> None:
        """Start anew with a layer's sequences, of which `fed` tells and will tell."""
        self.fed, self.num_steps = fed, 0
        self.energies, self.ranks = [None] * len(fed), Ranks()

    def rows_to_leave(
        self, policy: Policy, lanes: Lanes, sequence: int, shares: Sequence[int], num_new: int
    ) -> int | None:
        """Rows per head that a sequence must go down to; None: it may keep what it has.

        Args:
            policy: fitted.
            shares: what each layer is allowed, as `Allowance.layers` says.
        """
        budget, per, gate = shares[self.index], lanes.shape.per_sequence, policy.gate
        num_rows = lanes.num_rows(sequence)
        if num_rows <= per * (budget + gate.slack) or not gate.is_due(num_new, self.num_steps):
            return None
        return gate.target(budget, num_rows // per)

    def store_by_rank(self, lanes: Lanes, best: Mapping[int, float]) -> None:
        """Quantise what ranks below the share of rows that this layer deserves, where rows went in
        this forward, which has ended.

        Args:
            best: per sequence, the largest of all layers' qualities.
        """
        policies, budgets = {}, {}
        for sequence in self.ranks.noted:
            policies[sequence] = self.allowance.at(self.fed[sequence])
            budget = self.allowance.layer(self.index, self.fed[sequence])
            assert budget is not None
            budgets[sequence] = budget
        if policies:
            self.ranks.settle(lanes, policies, budgets, best)

    def reorder(self, index: Sequence[int], fed: list[int]) -> None:
        """Sequence i becomes a copy of what sequence index[i] was; `fed` as in `begin`."""
        self.fed = fed
        self.energies = [None] * len(index)
        self.ranks.reorder(index)

    def check(self, lanes: Lanes) -> None:
        """Audit what is held against what is allowed. Raises AssertionError."""
        per = lanes.shape.per_sequence
        for sequence, num_seen in enumerate(self.fed):
            mine = slice(sequence * per, (sequence + 1) * per)
            policy, num_rows = self.allowance.at(num_seen), sum(lanes.counts[mine])
            budget = self.allowance.layer(self.index, num_seen)
            if budget is not None and policy.gate.bounded:
                most = per * (budget + policy.gate.slack)
                assert num_rows <= most, f"{num_rows} rows in all lanes, at most {most} allowed"
            if (recent := policy.precision.recent) is not None:
                whole = max(lanes.num_dense[mine])
                assert whole < recent + BLOCK, f"{whole} rows in the model's dtype, not {recent}"
