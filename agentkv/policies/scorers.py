"""Scorers: pure functions from the entries of a layer to scores.

Padding draws no attention and therefore adds nothing.

Shapes: H key-value heads, G query heads of each, w queries, T entries, D head size; S segments.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional

from agentkv.policies.entries import Entries, PolicyError
from agentkv.policies.parameters import (
    require_above,
    require_at_least,
    require_count,
    require_number,
    require_one_of,
    require_positive,
    require_share,
)
from agentkv.policies.pool import Pool, pooled, require_pool
from agentkv.policies.slots import Tracker
from agentkv.policies.trackers import MovingMass, Recurrences, Shortfalls, SummedMass

Importance = Literal["error", "paasvn", "aas"]
TokenWeight = Literal["middle", "not_first", "not_last", "all", "none"]


class Plain:
    """Base of scorers, with the defaults of their protocol."""

    __slots__ = ()
    tracker: ClassVar[Tracker | None] = None
    by_age: ClassVar[bool] = False
    segmentwise: ClassVar[bool] = True
    comparable: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Age(Plain):
    """Scores newer entries higher."""

    window: ClassVar[int] = 0
    by_age: ClassVar[bool] = True

    def scores(self, entries: Entries) -> Tensor:
        return entries.positions.to(torch.float32)


@dataclass(frozen=True, slots=True)
class AttentionAndRecency:
    """Blends the recent attention mass of an entry with its recency.

    score = mass_weight * mass + (1 - mass_weight) * recency, both rescaled to [0, 1] over the
    candidates of a segment (0 if all are equal).

    Source: CONF-KV (arXiv 2605.24786); decay and mass_weight are missing there: our choice.
    """

    mass_weight: float
    decay: float
    """Decay of the moving average of the masses, per query."""
    window: ClassVar[int] = 0
    by_age: ClassVar[bool] = False
    segmentwise: ClassVar[bool] = True
    comparable: ClassVar[bool] = False

    @property
    def tracker(self) -> MovingMass:
        return MovingMass(self.decay)

    def scores(self, entries: Entries) -> Tensor:
        assert entries.tracked is not None, "the cache was not told to track masses"
        recency = _stretched(entries.positions.to(torch.float32), entries)
        return torch.lerp(recency, _stretched(entries.tracked[..., 0], entries), self.mass_weight)


@dataclass(frozen=True, slots=True)
class HeavyHitters:
    """Sums all attention that an entry drew, averaged over the query heads of a segment.

    Source: H2O (arXiv 2306.14048). The mean over a group ranks as its sum does (our choice; the
    paper's models have no groups).
    """

    normalize: bool = False
    """Divide by the number of queries that could see the entry (kvpress's ObservedAttention)."""
    window: ClassVar[int] = 0
    by_age: ClassVar[bool] = False
    segmentwise: ClassVar[bool] = True
    comparable: ClassVar[bool] = True

    @property
    def tracker(self) -> SummedMass:
        # padded batches leave gaps in positions, so positions do not count the queries
        return SummedMass(counts=self.normalize)

    def scores(self, entries: Entries) -> Tensor:
        assert entries.tracked is not None, "the cache was not told to track masses"
        mass = entries.tracked[..., 0]
        return mass / entries.tracked[..., 1] if self.normalize else mass


@dataclass(frozen=True, slots=True)
class Unimportance:
    """Scores entries by how seldom recent queries passed them over.

    "count" is minus the number of the last `history` queries whose weight, averaged over the query
    heads of a segment, was below 1 / (entries they could see). "sum" is the attention from about
    as many queries.

    Source: Scissorhands (arXiv 2305.17118); "sum" after KVCache-Factory's selector. Averaging over
    the group first is our choice.
    """

    history: int = 400
    variant: Literal["count", "sum"] = "count"
    window: ClassVar[int] = 0
    by_age: ClassVar[bool] = False
    segmentwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_positive("history", self.history)
        require_one_of("variant", self.variant, ("count", "sum"))

    @property
    def comparable(self) -> bool:
        # an even share is a larger one in a segment of fewer entries
        return self.variant == "sum"

    @property
    def tracker(self) -> Tracker:
        return Shortfalls(self.history) if self.variant == "count" else SummedMass(self.history)

    def scores(self, entries: Entries) -> Tensor:
        assert entries.tracked is not None, "the cache was not told to track shortfalls"
        if self.variant == "sum":
            return entries.tracked[..., 0]
        return -Shortfalls(self.history).counts(entries.tracked)


@dataclass(frozen=True, slots=True)
class WindowMean(Plain):
    """Averages the attention of the last queries and pools it along the entries.

    Mean over the window's queries and the group's heads, then a pool along the entries before the
    window (our choice of order). The window's own entries score 0; protect them.

    Source: SnapKV (arXiv 2404.14469).
    """

    window: int
    kernel: int
    pool: Pool

    def __post_init__(self) -> None:
        require_positive("window", self.window)
        require_pool(self.kernel, self.pool)

    def scores(self, entries: Entries) -> Tensor:
        weights = entries.attention().mean(dim=(1, 2))  # (H, T)
        return _whole(pooled(_past(weights, self.window), self.kernel, self.pool), entries)


@dataclass(frozen=True, slots=True)
class MeanAndVariance(Plain):
    """Adds mean and variance of the attention of the last queries, smoothed along the entries.

    mean + gamma * variance, each over the window's queries and the group's heads, then an average
    pool along the entries before the window. The window's own entries score 0; protect them.

    Source: ARKV, equation 9 with Algorithm 1's variance; the pool is its code's. The variance is
    that of the population (our choice), so that one query has none.
    """

    window: int
    gamma: float
    kernel: int

    def __post_init__(self) -> None:
        require_positive("window", self.window)
        require_number("gamma", self.gamma)
        require_pool(self.kernel, "avg")

    def scores(self, entries: Entries) -> Tensor:
        variance, mean = torch.var_mean(entries.attention(), dim=(1, 2), correction=0)  # (H, T)
        past = _past(mean + self.gamma * variance, self.window)
        return _whole(pooled(past, self.kernel, "avg"), entries)


@dataclass(frozen=True, slots=True)
class RemovalError(Plain):
    """Scores entries by the change of the last queries' output if the entry is dropped.

    sum over the group's heads and the window's queries j of c_j * importance, then a pool along the
    entries before the window. The importance of an entry to a query is `removal_errors`, or one of
    the two measures that the paper compares it with. c_j, the weight of a query, is the most it
    gives to any entry that is neither among the first w nor the last 2w, or to any entry of another
    range; 1 if no such entry exists (our choice). The window's own entries score 0; protect them.

    Source: EDIE, equations 3, 4 and 9 to 11, tables 2 and 3. The average pool is its appendix's;
    the main text has "max".
    """

    window: int
    alpha: float
    kernel: int
    pool: Pool
    importance: Importance = "error"
    """"error" (equation 9); "paasvn", attention times the L1 norm of the value (equation 4); "aas",
    attention (equation 3)."""
    token_weight: TokenWeight = "middle"
    """Entries among which c_j is the largest weight (table 3): "middle", those after the first w
    and before the last 2w; "not_first"; "not_last"; "all"; "none": c_j is 1."""
    segmentwise: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_positive("window", self.window)
        require_pool(self.kernel, self.pool)
        require_at_least("alpha", self.alpha, 0)
        require_one_of("importance", self.importance, get_args(Importance))
        require_one_of("token_weight", self.token_weight, get_args(TokenWeight))

    def scores(self, entries: Entries) -> Tensor:
        importance = _past(self.unpooled(entries), self.window)
        return _whole(pooled(importance, self.kernel, self.pool), entries)

    def unpooled(self, entries: Entries) -> Tensor:
        """Return equation 11, (H, T) float32, zero for the window's entries."""
        attention, values = entries.attention(), entries.keys_values()[1]
        if entries.positions.shape[0] > 1:
            values = values.masked_fill(~entries.present[..., None], 0.0)
        by_query = self._by_query(attention, values)
        if self.token_weight != "none":
            by_query = by_query * self._token_weights(attention, entries)[..., None]
        return _whole(_past(by_query.sum(dim=(1, 2)), self.window), entries)

    def _by_query(self, attention: Tensor, values: Tensor) -> Tensor:
        """Return the importance of each entry to each query, (H, G, w, T)."""
        if self.importance == "error":
            return removal_errors(attention, values, self.alpha)
        if self.importance == "aas":
            return attention
        return attention * values.abs().sum(dim=-1)[:, None, None]

    def _token_weights(self, attention: Tensor, entries: Entries) -> Tensor:
        """Return c_j, (H, G, w)."""
        counts = entries.present  # (S, T)
        if self.token_weight in ("middle", "not_first"):
            counts = counts & (counts.cumsum(dim=1) > self.window)
        if self.token_weight in ("middle", "not_last"):
            counts = counts.clone()
            counts[:, max(0, counts.shape[1] - 2 * self.window) :] = False
        most = attention.masked_fill(~counts[:, None, None], 0.0).amax(dim=-1)
        return most.masked_fill_(~counts.any(dim=1)[:, None, None], 1.0)


@dataclass(frozen=True, slots=True)
class KeyDifference(Plain):
    """Scores entries by how far their key points away from the average key.

    Minus the cosine of the key and the mean of all unit keys of a head.

    Source: KeyDiff (arXiv 2504.15364).
    """

    window: ClassVar[int] = 0

    def scores(self, entries: Entries) -> Tensor:
        keys, present = entries.keys_values()[0], present_by_head(entries)
        units = functional.normalize(keys, dim=-1).masked_fill(~present[..., None], 0.0)
        anchors = units.sum(dim=1, keepdim=True)  # as long as the mean is of no account
        return -functional.cosine_similarity(keys, anchors, dim=-1)


@dataclass(frozen=True, slots=True)
class Recurrence:
    """Scores entries by how soon they should be activated again.

    2 / (1 + exp(1 + t / longest)) + 2 / (1 + exp(longest - 1)), with the time t since an entry's
    last activation and the longest time between two of its activations. The second term is 0 for an
    entry that was never activated; the first one is then almost 0 unless t is 0.

    Source: LazyEviction (arXiv 2506.15969), as its public code computes it. Averaging the weights
    over the group before they are compared with the threshold is our choice; that code keeps
    entries for every query head.
    """

    threshold: float
    """Least weight that counts as an activation."""
    window: ClassVar[int] = 0
    by_age: ClassVar[bool] = False
    segmentwise: ClassVar[bool] = True
    comparable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_above("threshold", self.threshold, 0)

    @property
    def tracker(self) -> Recurrences:
        return Recurrences(self.threshold)

    def scores(self, entries: Entries) -> Tensor:
        assert entries.tracked is not None, "the cache was not told to track recurrences"
        # scores differ little where both times are long
        last, longest = entries.tracked.to(torch.float64).unbind(dim=-1)
        since = entries.num_seen - 1 - last
        soon = torch.sigmoid(-1 - since / (longest + 1e-5))
        often = torch.sigmoid(1 - longest).where(longest > 0, 0.0)
        return (2 * (soon + often)).to(torch.float32)


@dataclass(frozen=True, slots=True)
class AttentionAndRedundancy(Plain):
    """Blends the attention of the last queries with how little an entry's key repeats others.

    share * importance - (1 - share) * redundancy. The importance is the largest weight among the
    group's heads, normalized over the entries before the window, averaged over the window's queries
    and max-pooled along the entries. The redundancy is the mean cosine of the entry's key and every
    other key of the head, softmaxed over the entries; of the entries that resemble a key by more
    than `similarity`, the newest does not count for it, so that one of a kind stays. The window's
    own entries score 0; protect them.

    Source: R-KV (arXiv 2505.24133), with its public code's order of steps. That code takes the
    largest logit of a group instead of the largest weight, and lets a key that resembles no other
    pass over the first entry; both differ here (our choice).
    """

    window: int
    kernel: int
    share: float
    similarity: float
    comparable: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_positive("window", self.window)
        require_pool(self.kernel, "max")
        require_share("share", self.share)
        require_share("similarity", self.similarity)

    def scores(self, entries: Entries) -> Tensor:
        drawn = _past(entries.attention().amax(dim=1), self.window)  # (H, w, past)
        drawn = drawn / drawn.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(drawn.dtype).tiny)
        importance = pooled(drawn.mean(dim=1), self.kernel, "max")
        redundancy = _past(self._redundancy(entries), self.window)
        return _whole(self.share * importance - (1 - self.share) * redundancy, entries)

    def _redundancy(self, entries: Entries) -> Tensor:
        """(H, T), which sums to 1 over the entries of a head."""
        keys, present = entries.keys_values()[0], present_by_head(entries)
        units = functional.normalize(keys, dim=-1).masked_fill(~present[..., None], 0.0)
        cosines = units @ units.mT  # (H, T, T)
        cosines.diagonal(dim1=1, dim2=2).zero_()
        places = torch.arange(1, cosines.shape[-1] + 1, device=cosines.device)
        newest = (places * (cosines > self.similarity)).amax(dim=-1, keepdim=True)  # 0 for none
        cosines.masked_fill_(places == newest, 0.0)
        means = cosines.sum(dim=1) / present.sum(dim=1, keepdim=True).clamp_min(1)
        return means.masked_fill(~present, -torch.inf).softmax(dim=-1)


@dataclass(frozen=True, slots=True)
class Function:
    """Scores entries with a given function.

    `scores` raises PolicyError if the function returns a wrong shape or NaN.
    """

    name: str
    function: Callable[[Entries], Tensor]
    """Maps entries to scores (H, T) or (S, T); larger is better."""
    window: int = 0
    """Number of last queries that `Entries.attention` covers."""
    comparable: bool = False
    tracker: ClassVar[Tracker | None] = None
    by_age: ClassVar[bool] = False
    segmentwise: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_count("window", self.window)

    def scores(self, entries: Entries) -> Tensor:
        found = self.function(entries)
        num_entries = entries.positions.shape[1]
        shapes = ((entries.num_heads, num_entries), tuple(entries.positions.shape))
        what = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        if what not in shapes:
            raise PolicyError(
                f"scorer {self.name!r} returned {what}; it must be a tensor of shape "
                f"{' or '.join(map(str, sorted(set(shapes))))}, a score for every entry"
            )
        found = found.to(torch.float32)
        if bool((found.isnan() & entries.present).any()):
            raise PolicyError(f"scorer {self.name!r} returned NaN for an entry")
        # -inf means "no entry" from here on
        return found.clamp_min(torch.finfo(torch.float32).min)


def removal_errors(attention: Tensor, values: Tensor, alpha: float) -> Tensor:
    """Return bounds on the L1 change of each query's output if an entry is dropped, (H, G, w, T).

    a / (1 + alpha - a) * (||v||_1 + ||o||_1), where o is the head's output before the
    projection; the exact change is a / (1 - a) * ||v - o||_1.

    Args:
        attention: a, (H, G, w, T) float32.
        values: v, (H, T, D) float32.
        alpha: bounds the score of an entry that draws all attention.

    Source: EDIE, equations 7 to 9.
    """
    outputs = attention.flatten(1, 2) @ values  # (H, G * w, D): one product, nothing spread out
    output_norms = outputs.abs().sum(dim=-1).view(attention.shape[:3])
    norms = values.abs().sum(dim=-1)[:, None, None] + output_norms[..., None]
    rest = (1 + alpha - attention).clamp_min_(torch.finfo(attention.dtype).eps)
    return attention / rest * norms


def present_by_head(entries: Entries) -> Tensor:
    """(H, T) bool: False at padding."""
    present = entries.present
    return present.repeat_interleave(entries.num_heads // present.shape[0], dim=0)


def _past(x: Tensor, window: int) -> Tensor:
    return x[..., : max(0, x.shape[-1] - window)]


def _whole(past: Tensor, entries: Entries) -> Tensor:
    """Pad with zeros for the window's entries, (H, T)."""
    return functional.pad(past, (0, entries.positions.shape[1] - past.shape[1]))


def _stretched(x: Tensor, entries: Entries) -> Tensor:
    """Rescale (S, T) to 0 at the minimum and 1 at the maximum of a segment's candidates."""
    if (not entries.is_padded or x.shape[0] == 1) and entries.pinned is None:
        # without padding and pins the candidates of a segment are contiguous
        run = x[:, entries.sinks : x.shape[1] - entries.protected]
        low, high = run.aminmax(dim=1, keepdim=True)
    else:
        may_go = entries.candidates
        low = x.masked_fill(~may_go, torch.inf).amin(dim=1, keepdim=True)
        high = x.masked_fill(~may_go, -torch.inf).amax(dim=1, keepdim=True)
    # all equal gives 0 / tiny = 0
    return (x - low).div_((high - low).clamp_min_(1e-30))
