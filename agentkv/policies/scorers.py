"""What rows are worth: pure functions of what a layer holds.

Filled-up places of a lane draw no attention and so add to nothing.

Shapes: H key-value heads, G query heads of each, w queries, T rows, D head size; S lanes.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from agentkv.policies.entries import Entries
from agentkv.policies.parameters import (
    require_at_least,
    require_number,
    require_one_of,
    require_rows,
)
from agentkv.policies.pool import Pool, pooled, require_pool
from agentkv.policies.slots import Tracker
from agentkv.policies.trackers import MovingMass, Shortfalls, SummedMass


@dataclass(frozen=True, slots=True)
class Age:
    """Newer is better."""

    window: ClassVar[int] = 0
    tracker: ClassVar[Tracker | None] = None
    by_age: ClassVar[bool] = True
    segmentwise: ClassVar[bool] = True
    comparable: ClassVar[bool] = True

    def scores(self, rows: Entries) -> Tensor:
        return rows.positions.to(torch.float32)


@dataclass(frozen=True, slots=True)
class AttentionAndRecency:
    """A blend of how much attention a row has drawn lately and how new it is.

    score = mass_weight * mass + (1 - mass_weight) * recency, both stretched to [0, 1] over the rows
    of a lane that may go (all equal: 0).

    Source: CONF-KV (arXiv 2605.24786); decay and mass_weight are lost there and ours here.
    """

    mass_weight: float
    decay: float
    """Of the moving average of the masses, per query."""
    window: ClassVar[int] = 0
    by_age: ClassVar[bool] = False
    segmentwise: ClassVar[bool] = True
    comparable: ClassVar[bool] = False

    @property
    def tracker(self) -> MovingMass:
        return MovingMass(self.decay)

    def scores(self, rows: Entries) -> Tensor:
        assert rows.tracked is not None, "the cache was not told to track masses"
        recency = _stretched(rows.positions.to(torch.float32), rows)
        return torch.lerp(recency, _stretched(rows.tracked[..., 0], rows), self.mass_weight)


@dataclass(frozen=True, slots=True)
class HeavyHitters:
    """All the attention a row ever drew, mean over a lane's query heads.

    Source: H2O (arXiv 2306.14048). The mean over a group ranks as its sum does (our choice; the
    paper's models have no groups).
    """

    normalize: bool = False
    """Divide by the number of queries that could see the row (kvpress's ObservedAttention)."""
    window: ClassVar[int] = 0
    by_age: ClassVar[bool] = False
    segmentwise: ClassVar[bool] = True
    comparable: ClassVar[bool] = True

    @property
    def tracker(self) -> SummedMass:
        # positions may have gaps where a batch was padded, so that they do not tell who saw a row
        return SummedMass(counts=self.normalize)

    def scores(self, rows: Entries) -> Tensor:
        assert rows.tracked is not None, "the cache was not told to track masses"
        mass = rows.tracked[..., 0]
        return mass / rows.tracked[..., 1] if self.normalize else mass


@dataclass(frozen=True, slots=True)
class Unimportance:
    """How seldom a row was passed over of late.

    "count": minus the number of the last `history` queries whose weight, mean over a lane's query
    heads, was below 1 / (rows they could see). "sum": the attention drawn from about as many.

    Source: Scissorhands (arXiv 2305.17118); "sum" after KVCache-Factory's selector. Averaging over
    the group first is our choice.
    """

    history: int = 400
    variant: Literal["count", "sum"] = "count"
    window: ClassVar[int] = 0
    by_age: ClassVar[bool] = False
    segmentwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_rows("history", self.history)
        require_one_of("variant", self.variant, ("count", "sum"))

    @property
    def comparable(self) -> bool:
        # an even share is a larger one in a lane of fewer rows
        return self.variant == "sum"

    @property
    def tracker(self) -> Tracker:
        return Shortfalls(self.history) if self.variant == "count" else SummedMass(self.history)

    def scores(self, rows: Entries) -> Tensor:
        assert rows.tracked is not None, "the cache was not told to track shortfalls"
        if self.variant == "sum":
            return rows.tracked[..., 0]
        return -Shortfalls(self.history).counts(rows.tracked)


@dataclass(frozen=True, slots=True)
class WindowMean:
    """What the last queries look at, pooled so that the neighbours of a looked-at row stay too.

    Mean over the window's queries and the group's heads, then a pool along the rows before the
    window (our choice of order). The window's own rows score 0; protect them.

    Source: SnapKV (arXiv 2404.14469).
    """

    window: int
    kernel: int
    pool: Pool
    tracker: ClassVar[Tracker | None] = None
    by_age: ClassVar[bool] = False
    segmentwise: ClassVar[bool] = True
    comparable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_rows("window", self.window)
        require_pool(self.kernel, self.pool)

    def scores(self, rows: Entries) -> Tensor:
        weights = rows.attention().mean(dim=(1, 2))  # (H, T)
        return _whole(pooled(_past(weights, self.window), self.kernel, self.pool), rows)


@dataclass(frozen=True, slots=True)
class MeanAndVariance:
    """What the last queries look at, and how much they disagree over it, smoothed.

    mean + gamma * variance, each over the window's queries and the group's heads, then an average
    pool along the rows before the window. The window's own rows score 0; protect them.

    Source: ARKV, equation 9 with Algorithm 1's variance; the pool is its code's. The variance is
    that of the population (our choice), so that one query has none.
    """

    window: int
    gamma: float
    kernel: int
    tracker: ClassVar[Tracker | None] = None
    by_age: ClassVar[bool] = False
    segmentwise: ClassVar[bool] = True
    comparable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_rows("window", self.window)
        require_number("gamma", self.gamma)
        require_pool(self.kernel, "avg")

    def scores(self, rows: Entries) -> Tensor:
        variance, mean = torch.var_mean(rows.attention(), dim=(1, 2), correction=0)  # (H, T)
        past = _past(mean + self.gamma * variance, self.window)
        return _whole(pooled(past, self.kernel, "avg"), rows)


@dataclass(frozen=True, slots=True)
class RemovalError:
    """How far the output of the last queries would move if the row went.

    sum over the group's heads and the window's queries j of c_j * `removal_errors`, then a pool
    along the rows before the window. c_j, the weight of a query, is the most it gives to any row
    that is neither among the first w nor the last 2w; 1 where no such row is (our choice). The
    window's own rows score 0; protect them.

    Source: EDIE, equations 9 to 11. The average pool is its appendix's; the main text has "max".
    """

    window: int
    alpha: float
    kernel: int
    pool: Pool
    tracker: ClassVar[Tracker | None] = None
    by_age: ClassVar[bool] = False
    segmentwise: ClassVar[bool] = False
    comparable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_rows("window", self.window)
        require_pool(self.kernel, self.pool)
        require_at_least("alpha", self.alpha, 0)

    def scores(self, rows: Entries) -> Tensor:
        importance = _past(self.unpooled(rows), self.window)
        return _whole(pooled(importance, self.kernel, self.pool), rows)

    def unpooled(self, rows: Entries) -> Tensor:
        """Equation 11 itself: (H, T) float32, zeros for the window's rows."""
        attention, values = rows.attention(), rows.keys_values()[1]
        if rows.positions.shape[0] > 1:
            values = values.masked_fill(~rows.there[..., None], 0.0)
        errors = removal_errors(attention, values, self.alpha)
        weighted = _past(errors * self._query_weights(attention, rows)[..., None], self.window)
        return _whole(weighted.sum(dim=(1, 2)), rows)

    def _query_weights(self, attention: Tensor, rows: Entries) -> Tensor:
        """(H, G, w)."""
        there = rows.there
        is_middle = there & (there.cumsum(dim=1) > self.window)  # (S, T)
        is_middle[:, max(0, there.shape[1] - 2 * self.window) :] = False
        most = attention.masked_fill(~is_middle[:, None, None], 0.0).amax(dim=-1)
        return most.masked_fill_(~is_middle.any(dim=1)[:, None, None], 1.0)


def removal_errors(attention: Tensor, values: Tensor, alpha: float) -> Tensor:
    """Bounds on how far each query's output moves, in L1, if a row goes: (H, G, w, T).

    a / (1 + alpha - a) * (||v||_1 + ||o||_1), where the output o is the head's, before the
    projection; exact would be a / (1 - a) * ||v - o||_1.

    Args:
        attention: a, (H, G, w, T) float32.
        values: v, (H, T, D) float32.
        alpha: keeps a row that draws everything from being worth everything.

    Source: EDIE, equations 7 to 9.
    """
    outputs = attention.flatten(1, 2) @ values  # (H, G * w, D): one product, nothing spread out
    output_norms = outputs.abs().sum(dim=-1).view(attention.shape[:3])
    norms = values.abs().sum(dim=-1)[:, None, None] + output_norms[..., None]
    rest = (1 + alpha - attention).clamp_min_(torch.finfo(attention.dtype).eps)
    return attention / rest * norms


def _past(x: Tensor, window: int) -> Tensor:
    return x[..., : max(0, x.shape[-1] - window)]


def _whole(past: Tensor, rows: Entries) -> Tensor:
    """(H, T), zeros for the window's rows."""
    return functional.pad(past, (0, rows.positions.shape[1] - past.shape[1]))


def _stretched(x: Tensor, rows: Entries) -> Tensor:
    """(S, T): 0 at the least and 1 at the most of a lane's candidates."""
    if not rows.is_padded or x.shape[0] == 1:
        # without filled-up places the candidates of a lane lie in one run
        run = x[:, rows.sinks : x.shape[1] - rows.protected]
        low, high = run.aminmax(dim=1, keepdim=True)
    else:
        may_go = rows.candidates
        low = x.masked_fill(~may_go, torch.inf).amin(dim=1, keepdim=True)
        high = x.masked_fill(~may_go, -torch.inf).amax(dim=1, keepdim=True)
    # all equal gives 0 / tiny = 0
    return (x - low).div_((high - low).clamp_min_(1e-30))
