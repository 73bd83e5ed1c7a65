"""Scorers that turn the last queries to coming positions.

Rotary embedding turns a query by its position, so that the queries seen so far, turned on, are a
sample of those to come. Without rotary embedding they stay as they are.

Shapes: see `agentkv.policies.scorers`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from agentkv.policies.entries import Entries, Queries
from agentkv.policies.parameters import require_at_least, require_count, require_positive
from agentkv.policies.scorers import Plain, present_by_head


@dataclass(frozen=True, slots=True)
class ExpectedAttention(Plain):
    """Scores entries by the attention that normally distributed coming queries would give them.

    softmax over the entries of (mean + variance / 2), times the L2 norm of the value: mean and
    variance of the logits of the last `window` queries, each turned by the average of the rotations
    to the next `horizon` positions. The softmax is averaged over the group. The first `sinks`
    entries take no part in it and score 0, and the first `sinks` queries do not count.

    Source: Expected Attention (arXiv 2510.00636), as kvpress computes it: the covariance of the
    queries enters through the variance of their logits, which is the same. Positions count on from
    the newest token (our choice; kvpress counts on from the number of queries).
    """

    window: int
    horizon: int
    sinks: int
    epsilon: float
    """Added to the softmax before it is multiplied by the norm."""

    def __post_init__(self) -> None:
        require_positive("queries", self.window)
        require_positive("horizon", self.horizon)
        require_count("sinks", self.sinks)
        require_at_least("epsilon", self.epsilon, 0)

    def scores(self, entries: Entries) -> Tensor:
        queries, (keys, values) = entries.queries(), entries.keys_values()
        steps = torch.arange(self.horizon, device=keys.device)
        counts = queries.positions >= min(self.sinks, int(queries.positions[-1]))
        coming = turned(queries, entries.num_seen + steps)[:, :, counts]
        present = present_by_head(entries)
        # padding is not promised to be finite
        keys = keys.masked_fill(~present[..., None], 0.0)
        logits = coming.flatten(1, 2) @ keys.mT  # (H, G * w, T): one product, nothing spread out
        variance, mean = torch.var_mean(logits.view(*coming.shape[:3], -1), dim=2, correction=0)
        is_scored = present & (present.cumsum(dim=1) > self.sinks)
        expected = (mean + variance / 2).masked_fill_(~is_scored[:, None], -torch.inf)
        weights = expected.softmax(dim=-1).mean(dim=1)  # (H, T)
        products: Tensor = (weights + self.epsilon) * values.norm(dim=-1)
        return products.masked_fill(~is_scored, 0.0)


def turned(queries: Queries, positions: Tensor) -> Tensor:
    """Return each query as it would be at `positions` (n,), averaged over them: (H, G, w, D)."""
    frequencies = queries.frequencies
    if not frequencies.shape[1]:
        return queries.rotated
    # float32 would round the angles of distant positions
    steps = (positions - queries.positions[-1]).to(torch.float64)
    turns = steps[:, None] * frequencies.to(torch.float64)[:, None]  # (H, n, D / 2)
    average = torch.polar(torch.ones_like(turns), turns).mean(dim=1)
    ages = (queries.positions[-1] - queries.positions).to(torch.float64)
    turns = ages[:, None] * frequencies.to(torch.float64)[:, None]  # (H, w, D / 2)
    by_query = torch.polar(torch.ones_like(turns), turns) * average[:, None]
    pairs = torch.complex(*queries.rotated.chunk(2, dim=-1)) * by_query[:, None].to(torch.complex64)
    return torch.cat([pairs.real, pairs.imag], dim=-1)


@dataclass(frozen=True, slots=True)
class DistancePreference(Plain):
    """Scores entries by their keys and by the distances that the last queries prefer.

    Channels i and i + D / 2 of queries and keys are complex numbers q and k, one for each angle.
    With the mean m of the last `window` queries turned to a coming position, and the mean r of
    their sizes |q|, a query head's score is

        sum over the angles of Re(m * conj(k)) + (r - |m|) * |k|

    where |m| is taken before the rotations to coming positions are averaged. These are 1, 2, 4, ...
    up to `horizon` after the newest token. Scores of a query head are standardized over the
    entries, and the largest of the group counts. Without rotary embedding there are no distances
    to prefer, and m is the mean of the queries as they are.

    Source: TriAttention (arXiv 2604.04921), in the variant of its public code in which every head
    selects its own entries. The public code computes the means once, from a calibration text; we
    compute them from the last queries of the sequence (our choice).
    """

    window: int
    horizon: int

    def __post_init__(self) -> None:
        require_positive("queries", self.window)
        require_positive("horizon", self.horizon)

    def scores(self, entries: Entries) -> Tensor:
        queries, (keys, _) = entries.queries(), entries.keys_values()
        steps = 2 ** torch.arange(self.horizon.bit_length(), device=keys.device)
        newest = queries.positions[-1]
        coming = turned(queries, newest + steps).mean(dim=2)  # (H, G, D)
        together = turned(queries, newest[None])
        centers = _sizes(together.mean(dim=2))  # (H, G, D / 2)
        spread = _sizes(together).mean(dim=2) - centers
        present = present_by_head(entries)
        keys = keys.masked_fill(~present[..., None], 0.0)
        found = coming @ keys.mT + spread @ _sizes(keys).mT  # (H, G, T)
        number = present.sum(dim=1)[:, None, None]
        mean = (found * present[:, None]).sum(dim=-1, keepdim=True) / number
        apart = (found - mean) * present[:, None]
        deviation = (apart.square().sum(dim=-1, keepdim=True) / number).sqrt()
        return (apart / deviation.clamp_min(1e-6)).amax(dim=1)


def _sizes(x: Tensor) -> Tensor:
    """Return the sizes (..., D / 2) of channels i and i + D / 2 as complex numbers."""
    return torch.hypot(*x.chunk(2, dim=-1))
