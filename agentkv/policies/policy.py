"""A policy: six parts that fit together."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from agentkv.policies.entries import PolicyError
from agentkv.policies.recall import Forget
from agentkv.policies.slots import (
    Allocator,
    Gate,
    Learner,
    Phased,
    Precision,
    Recall,
    Scorer,
    Selector,
)


@dataclass(frozen=True, slots=True)
class Policy:
    """An eviction policy: an immutable value of six parts.

    Policies with equal parts behave equally; the name does not matter.

    Raises:
        PolicyError: the parts do not fit together.
    """

    name: str
    gate: Gate
    allocator: Allocator
    scorer: Scorer
    selector: Selector
    precision: Precision
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Parameters it was made with, defaults included; for result rows."""
    recall: Recall = field(default_factory=Forget)

    def __post_init__(self) -> None:
        if self.allocator.pools and not self.scorer.comparable:
            raise PolicyError(
                f"policy {self.name!r}: {type(self.scorer).__name__} scores of different heads are "
                f"in different units, and {type(self.allocator).__name__} makes entries of "
                "different heads compete; take an allocator of the same budget for every head, or "
                "a scorer whose scores compare"
            )
        if self.precision.by_rank and self.scorer.window == 0:
            raise PolicyError(
                f"policy {self.name!r}: {type(self.precision).__name__} stores entries by what a "
                f"window of queries says, and {type(self.scorer).__name__} keeps no window; take a "
                "scorer such as snapkv's or arkv's, or a precision that goes by age"
            )
        if self.precision.by_rank and not self.gate.evicts:
            raise PolicyError(
                f"policy {self.name!r}: {type(self.precision).__name__} stores entries by "
                f"rank when others go, and {type(self.gate).__name__} lets none go; take a gate "
                "with a budget, or a precision that goes by age"
            )
        if self.allocator.learns and not isinstance(self.allocator, Learner):
            raise PolicyError(
                f"policy {self.name!r}: {type(self.allocator).__name__} has learns=True but "
                "does not implement Learner (agentkv.policies.slots)"
            )
        if self.selector.needs_window and self.scorer.window == 0:
            raise PolicyError(
                f"policy {self.name!r}: {type(self.selector).__name__}, set like this, selects by "
                f"what a window of queries says, and {type(self.scorer).__name__} keeps no window; "
                'take a scorer such as snapkv\'s, or pooled=True with gqa="mean_norm"'
            )

        if self.recall.looks_back:
            self._check_recall()

    def _check_recall(self) -> None:
        """Check that the newest entry stays as it is, because a second pass replaces it, and that
        scorer and recall can read one window of queries."""
        if self.recall.num_queries and isinstance(self.scorer, Phased):
            raise PolicyError(
                f"policy {self.name!r} looks back by its last {self.recall.num_queries} queries, "
                f"and {type(self.scorer).__name__} keeps those of pages and of replies apart; take "
                "another scorer, or look back by confidence"
            )
        if 0 < self.scorer.window < self.recall.num_queries:
            raise PolicyError(
                f"policy {self.name!r} looks back by {self.recall.num_queries} queries, and its "
                f"scorer reads a window of {self.scorer.window}; give it at least as many"
            )
        newest = self.selector.protected
        is_first = self.scorer.by_age or not isinstance(newest, int) or newest > 0
        if not is_first or self.precision.recent == 0:
            raise PolicyError(
                f"policy {self.name!r} looks back and may evict or quantize the newest entry, "
                "which a second pass replaces; protect at least one entry, and keep one dense"
            )

    @property
    def needs_logits(self) -> bool:
        """True if the gate or the precision reads the confidence of the next token."""
        return self.gate.needs_logits or self.precision.sure is not None

    def confidence(self, logits: Tensor) -> Tensor:
        """Return the model's confidence (B,) float32 from raw logits (B, V): the gate's, or the
        probability of the likeliest token if the gate has none."""
        if self.gate.needs_logits or self.precision.sure is None:
            return self.gate.confidence(logits)
        return logits.to(torch.float32).softmax(-1).amax(-1)

    def fitted(self, budget: int | None, *, leading: int = 0, pinned: int = 0) -> "Policy":
        """Return this policy for a budget of entries per layer and KV head.

        Args:
            leading: pinned tokens at the start of the sequence; they count as sinks.
            pinned: other pinned tokens. Both count in the budget.

        Raises:
            PolicyError: the policy needs a budget, or its parts do not fit into this one.
        """
        gate = self.gate.fitted(budget)
        precision = self.precision.fitted(gate.ceiling)
        selector, allocator = self.selector, self.allocator
        if gate.ceiling is not None:
            tight = gate.budget(1.0) or gate.ceiling
            selector = selector.fitted(gate.ceiling, tight, leading=leading, pinned=pinned)
            assert isinstance(selector.protected, int)
            kept_anyway = selector.protected + selector.sinks + pinned
            allocator = allocator.fitted(kept_anyway)
            gate = gate.protecting(kept_anyway)
        return replace(self, gate=gate, allocator=allocator, selector=selector, precision=precision)
