"""Selectors choose the entries that stay within a budget.

The first `sinks` and the newest `protected` entries of a segment always stay. The others are
candidates: each segment keeps the number that the allocator grants it, and at equal scores the
newer entry stays.

Shapes: H key-value heads, G query heads of each, w queries; S segments of T entries, C of them the
columns in which candidates can be.
"""

from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import Tensor

from agentkv.policies.entries import BudgetFraction as BudgetFraction
from agentkv.policies.entries import Drop, DropOne, Entries, PolicyError, Selection
from agentkv.policies.parameters import (
    require_at_least,
    require_count,
    require_flag,
    require_one_of,
    require_share,
)
from agentkv.policies.pool import Pool, pooled, require_pool
from agentkv.policies.slots import Allocator


@dataclass(frozen=True, slots=True)
class TopK:
    """Keeps the entries with the highest scores."""

    sinks: int = 0
    protected: int | BudgetFraction = 0

    def __post_init__(self) -> None:
        require_count("sinks", self.sinks)
        if not isinstance(self.protected, BudgetFraction):
            require_count("protected", self.protected)
            return
        require_share("the protected part of the budget", self.protected.of_budget)
        if self.protected.most is not None:
            require_count("the most entries a protected part may have", self.protected.most)

    @property
    def norms(self) -> Literal["mean", "each"] | None:
        return None

    @property
    def needs_window(self) -> bool:
        return False

    def fitted(self, budget: int, tight: int, *, leading: int = 0, pinned: int = 0) -> Self:
        sinks = max(self.sinks, leading)
        protected = _resolved(sinks, self.protected, budget, tight, pinned)
        return replace(self, sinks=sinks, protected=protected)

    def select(
        self, entries: Entries, scores: Tensor | None, budget: int, allocator: Allocator
    ) -> Selection:
        first, stop = _between(self.sinks, self.protected, entries)
        num_segments, num_entries = entries.positions.shape
        if scores is None:
            return _without_oldest(entries, budget)
        is_alike = num_segments == 1 or not (entries.is_padded or allocator.pools)
        if is_alike and num_entries == budget + 1:
            if entries.pinned is not None:
                scores = scores.masked_fill(entries.pinned, torch.inf)
            # of equal scores argmin returns the first, which is the oldest
            return DropOne(scores[:, first:stop].argmin(dim=1).add_(first))
        candidates = _candidates(entries, scores)
        counts = _counts(candidates, entries, budget, allocator)
        return _selection(entries, candidates, _top(candidates, counts))


@dataclass(frozen=True, slots=True)
class TwoStage(TopK):
    """Keeps a first part by score, and the rest by score times the norm of the projected value.

    The first part is `first_stage` of the candidates that a segment keeps, rounded down. The second
    stage ranks entries by (score + epsilon) * norm, with the value's norm after the output
    projection.

    Source: CriticalKV (arXiv 2502.03805), algorithms 1 and 2. Its algorithm 2 multiplies the
    un-pooled weights; the pooled ones and epsilon are kvpress's, and our default.
    """

    first_stage: float = 0.25
    epsilon: float = 1e-4
    pooled: bool = True
    """True if the second stage reads the scorer's scores; otherwise it reads the mean of
    `Entries.attention`, which requires a scorer with a window."""
    gqa: Literal["mean_norm", "product_then_mean"] = "mean_norm"
    """Where the group is averaged: the norms, before the product (kvpress), or the product of each
    query head's own weight and norm, from `Entries.attention` (the paper, read closely)."""
    kernel: int = 7
    """With `pool`, how "product_then_mean" pools the weights of each query head if `pooled`."""
    pool: Pool = "max"

    def __post_init__(self) -> None:
        super(TwoStage, self).__post_init__()
        require_share("first_stage", self.first_stage)
        require_at_least("epsilon", self.epsilon, 0)
        require_flag("pooled", self.pooled)
        require_one_of("gqa", self.gqa, ("mean_norm", "product_then_mean"))
        require_pool(self.kernel, self.pool)

    @property
    def norms(self) -> Literal["mean", "each"]:
        return "mean" if self.gqa == "mean_norm" else "each"

    @property
    def needs_window(self) -> bool:
        return self.gqa != "mean_norm" or not self.pooled

    def select(
        self, entries: Entries, scores: Tensor | None, budget: int, allocator: Allocator
    ) -> Selection:
        _, stop = _between(self.sinks, self.protected, entries)
        if scores is None:
            return _without_oldest(entries, budget)
        candidates = _candidates(entries, scores)
        counts = _counts(candidates, entries, budget, allocator)
        secured = _top(candidates, (counts.double() * self.first_stage).long())
        products = self._products(entries, scores)[:, :stop]
        products = products.masked_fill(candidates.isneginf(), -torch.inf)
        kept = _top(products.masked_fill_(secured, torch.inf), counts)
        return _selection(entries, candidates, kept)

    def _products(self, entries: Entries, scores: Tensor) -> Tensor:
        """Return score times norm, (S, T)."""
        norms = entries.norms
        assert norms is not None, "the cache was not told to keep norms"
        if self.gqa == "mean_norm":
            weights = (
                scores
                if self.pooled
                else _per_segment(entries.attention().mean(dim=(1, 2)), entries)
            )
            return (weights + self.epsilon) * _per_segment(norms.mean(dim=2), entries)
        weights = entries.attention().mean(dim=2)  # (H, G, T)
        if self.pooled:
            # the pool stops at the protected entries, whose own products are not used
            _, stop = _between(self.sinks, self.protected, entries)
            weights = weights.clone()
            weights[..., :stop] = pooled(weights[..., :stop], self.kernel, self.pool)
        return _per_segment(((weights + self.epsilon) * norms.mT).mean(dim=1), entries)


def _resolved(
    sinks: int, protected: int | BudgetFraction, budget: int, tight: int, pinned: int
) -> int:
    """Resolve `protected` for a largest and a smallest budget. Raises PolicyError on overflow."""
    room = tight - sinks - pinned
    if isinstance(protected, BudgetFraction):
        entries = int(protected.of_budget * budget)
        most = room if protected.most is None else min(protected.most, room)
        protected = max(0, min(entries, most))
    if protected > room:
        also = f", {pinned} pinned tokens" if pinned else ""
        raise PolicyError(
            f"{sinks} sinks (pinned tokens at the start included){also} and {protected} protected "
            f"entries do not fit into the smallest budget of {tight} entries"
        )
    return protected


def _between(sinks: int, protected: int | BudgetFraction, entries: Entries) -> tuple[int, int]:
    """Return the column range of the candidates in a segment without padding."""
    assert (sinks, protected) == (entries.sinks, entries.protected), (
        f"entries were passed with {entries.sinks} sinks and {entries.protected} protected, "
        f"their selector has {sinks} and {protected}"
    )
    return entries.sinks, entries.positions.shape[1] - entries.protected


def _without_oldest(entries: Entries, budget: int) -> Selection:
    """Drop the oldest candidates of each segment until `budget` entries stay."""
    gone = entries.positions.shape[1] - budget
    if entries.pinned is None:
        return Drop(entries.sinks, entries.sinks + gone)
    candidates = entries.candidates
    return entries.present & ~(candidates & (candidates.cumsum(dim=1) <= gone))


def _candidates(entries: Entries, scores: Tensor) -> Tensor:
    """Return scores (S, C), -inf except for candidates; C excludes the protected columns."""
    stop = entries.positions.shape[1] - entries.protected
    return scores[:, :stop].masked_fill(~entries.candidates[:, :stop], -torch.inf)


def _counts(candidates: Tensor, entries: Entries, budget: int, allocator: Allocator) -> Tensor:
    """Return the number of candidates that each segment keeps, (S,) int64."""
    budget -= entries.sinks + entries.protected
    num_units, num_segments = entries.num_units, candidates.shape[0]
    if entries.pinned is None:
        budgets = [budget] * num_units
    else:
        pinned = entries.pinned[:: num_segments // num_units].sum(dim=1)
        budgets = (budget - pinned).tolist()
    if num_segments == num_units and entries.pinned is None:
        return torch.full((num_segments,), budget, device=candidates.device)
    if num_segments == num_units:
        return torch.tensor(budgets, device=candidates.device)
    units = zip(candidates.chunk(num_units), budgets, strict=True)
    return torch.cat([allocator.heads(of_unit, own) for of_unit, own in units])


def _top(candidates: Tensor, counts: Tensor) -> Tensor:
    """Mark the `counts` (S,) best candidates of each segment, (S, C) bool."""
    # stable and ascending: of equal scores the older entries come first and are dropped
    order = torch.argsort(candidates, dim=1, stable=True)
    places = torch.arange(order.shape[1], device=order.device)
    stays = places >= order.shape[1] - counts[:, None]
    return torch.empty_like(stays).scatter_(1, order, stays)


def _selection(entries: Entries, candidates: Tensor, kept: Tensor) -> Tensor:
    """Mark the kept candidates, protected entries and sinks, (S, T) bool."""
    selection = entries.present
    selection[:, : kept.shape[1]] &= kept | candidates.isneginf()
    return selection


def _per_segment(x: Tensor, entries: Entries) -> Tensor:
    """Average (H, T) to (S, T) over heads that share their entries."""
    num_segments = entries.positions.shape[0]
    return x if num_segments == x.shape[0] else x.view(num_segments, -1, x.shape[1]).mean(dim=1)
