"""Which rows a budget keeps.

Entries that never go are no candidates: a lane's first `sinks` and newest `protected`. Of the
others each lane keeps as many as its allocator grants it; at equal scores the newer row stays.

Shapes: H key-value heads, G query heads of each, w queries; S lanes of T rows, C of them the
columns in which candidates can be.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from agentkv.policies.entries import Drop, DropOne, Entries, PolicyError, Verdict
from agentkv.policies.entries import Portion as Portion
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
    """The best-scored rows."""

    sinks: int = 0
    protected: int | Portion = 0
    norms: ClassVar[None] = None
    needs_window: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _require(self.sinks, self.protected)

    def fitted(self, budget: int, tight: int) -> Self:
        return replace(self, protected=_resolved(self.sinks, self.protected, budget, tight))

    def select(
        self, rows: Entries, scores: Tensor | None, budget: int, allocator: Allocator
    ) -> Verdict:
        first, stop = _between(self.sinks, self.protected, rows)
        num_lanes, num_rows = rows.positions.shape
        if scores is None:
            return Drop(first, first + num_rows - budget)
        is_alike = num_lanes == 1 or not (rows.is_padded or allocator.pools)
        if is_alike and num_rows == budget + 1:
            # argmin answers with the first, that is the oldest, of equals
            return DropOne(scores[:, first:stop].argmin(dim=1).add_(first))
        candidates = _candidates(rows, scores)
        counts = _counts(candidates, rows, budget, allocator)
        return _verdict(rows, candidates, _top(candidates, counts))


@dataclass(frozen=True, slots=True)
class TwoStage:
    """A first part of each lane's rows by score, the rest by score times how large the row's value
    is after the output projection.

    The first part is `first_stage` of the candidates a lane keeps, rounded down. Entries of the
    second are ranked by (score + epsilon) * norm.

    Source: CriticalKV (arXiv 2502.03805), algorithms 1 and 2. Its algorithm 2 multiplies the
    un-pooled weights; the pooled ones and epsilon are kvpress's, and our default.
    """

    sinks: int = 0
    protected: int | Portion = 0
    first_stage: float = 0.25
    epsilon: float = 1e-4
    pooled: bool = True
    """Whether the second stage reads the scorer's own scores; else the bare mean of
    `Entries.attention`, which needs a scorer with a window."""
    gqa: Literal["mean_norm", "product_then_mean"] = "mean_norm"
    """Where the group is averaged: the norms, before the product (kvpress), or the product of each
    query head's own weight and norm, from `Entries.attention` (the paper, read closely)."""
    kernel: int = 7
    """With `pool`, how "product_then_mean" pools the weights of each query head if `pooled`."""
    pool: Pool = "max"

    def __post_init__(self) -> None:
        _require(self.sinks, self.protected)
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

    def fitted(self, budget: int, tight: int) -> Self:
        return replace(self, protected=_resolved(self.sinks, self.protected, budget, tight))

    def select(
        self, rows: Entries, scores: Tensor | None, budget: int, allocator: Allocator
    ) -> Verdict:
        first, stop = _between(self.sinks, self.protected, rows)
        if scores is None:
            return Drop(first, first + rows.positions.shape[1] - budget)
        candidates = _candidates(rows, scores)
        counts = _counts(candidates, rows, budget, allocator)
        secured = _top(candidates, (counts.double() * self.first_stage).long())
        products = self._products(rows, scores)[:, :stop]
        products = products.masked_fill(candidates.isneginf(), -torch.inf)
        kept = _top(products.masked_fill_(secured, torch.inf), counts)
        return _verdict(rows, candidates, kept)

    def _products(self, rows: Entries, scores: Tensor) -> Tensor:
        """(S, T)."""
        norms = rows.norms
        assert norms is not None, "the cache was not told to keep norms"
        if self.gqa == "mean_norm":
            weights = scores if self.pooled else _per_lane(rows.attention().mean(dim=(1, 2)), rows)
            return (weights + self.epsilon) * _per_lane(norms.mean(dim=2), rows)
        weights = rows.attention().mean(dim=2)  # (H, G, T)
        if self.pooled:
            # never across the edge of what is protected; those rows' own products do not matter
            _, stop = _between(self.sinks, self.protected, rows)
            weights = weights.clone()
            weights[..., :stop] = pooled(weights[..., :stop], self.kernel, self.pool)
        return _per_lane(((weights + self.epsilon) * norms.mT).mean(dim=1), rows)


def _require(sinks: int, protected: int | Portion) -> None:
    require_count("sinks", sinks)
    if isinstance(protected, Portion):
        require_share("the protected part of the budget", protected.of_budget)
        if protected.most is not None:
            require_count("the most rows a protected part may have", protected.most)
    else:
        require_count("protected", protected)


def _resolved(sinks: int, protected: int | Portion, budget: int, tight: int) -> int:
    """Protected rows of a largest and a smallest budget. Raises PolicyError if they do not fit."""
    if isinstance(protected, Portion):
        rows = int(protected.of_budget * budget)
        most = tight - sinks if protected.most is None else min(protected.most, tight - sinks)
        protected = max(0, min(rows, most))
    if sinks + protected > tight:
        raise PolicyError(
            f"{sinks} sinks and {protected} protected rows do not fit into the smallest budget of "
            f"{tight} rows"
        )
    return protected


def _between(sinks: int, protected: int | Portion, rows: Entries) -> tuple[int, int]:
    """The columns between which a lane that is not padded has its candidates."""
    assert (sinks, protected) == (rows.sinks, rows.protected), (
        f"rows were shown with {rows.sinks} sinks and {rows.protected} protected, "
        f"their selector has {sinks} and {protected}"
    )
    return rows.sinks, rows.positions.shape[1] - rows.protected


def _candidates(rows: Entries, scores: Tensor) -> Tensor:
    """(S, C) scores, -inf where no candidate is; C leaves the protected columns out."""
    stop = rows.positions.shape[1] - rows.protected
    return scores[:, :stop].masked_fill(~rows.candidates[:, :stop], -torch.inf)


def _counts(candidates: Tensor, rows: Entries, budget: int, allocator: Allocator) -> Tensor:
    """(S,) int64: how many candidates each lane keeps."""
    budget -= rows.sinks + rows.protected
    num_lanes = candidates.shape[0]
    if num_lanes == rows.num_units:
        return torch.full((num_lanes,), budget, device=candidates.device)
    units = candidates.chunk(rows.num_units)
    return torch.cat([allocator.heads(of_unit, budget) for of_unit in units])


def _top(candidates: Tensor, counts: Tensor) -> Tensor:
    """(S, C) bool: the `counts` (S,) best of each lane."""
    # stable and ascending, so that of equals the older ones come first, and go
    order = torch.argsort(candidates, dim=1, stable=True)
    places = torch.arange(order.shape[1], device=order.device)
    stays = places >= order.shape[1] - counts[:, None]
    return torch.empty_like(stays).scatter_(1, order, stays)


def _verdict(rows: Entries, candidates: Tensor, kept: Tensor) -> Tensor:
    """(S, T) bool: the kept ones of the candidates, and the rows that never go."""
    verdict = rows.there
    verdict[:, : kept.shape[1]] &= kept | candidates.isneginf()
    return verdict


def _per_lane(x: Tensor, rows: Entries) -> Tensor:
    """(H, T) to (S, T): the mean over the heads where they share their rows."""
    num_lanes = rows.positions.shape[0]
    return x if num_lanes == x.shape[0] else x.view(num_lanes, -1, x.shape[1]).mean(dim=1)
