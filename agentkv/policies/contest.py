"""Candidates of several lanes compete.

Shapes: S lanes of C candidates; where a lane has fewer, the score is -inf.
"""

import math

import torch
from torch import Tensor


def there(scores: Tensor) -> Tensor:
    """How many candidates each lane has, (S,) int64."""
    return (scores > -math.inf).sum(dim=-1)


def counts_of_best(scores: Tensor, budget: int) -> Tensor:
    """How many of the best-scored candidates of all lanes together are each lane's, (S,) int64.

    At equal scores the newer candidate wins.
    """
    num_lanes, num_candidates = scores.shape
    total = num_lanes * min(budget, num_candidates)
    if total == 0:
        return torch.zeros(num_lanes, dtype=torch.int64, device=scores.device)
    # lanes last, so that what comes later in the flat order is newer
    flat = scores.mT.flatten()
    # the worst score that stays; a sort would say the same, but slower
    worst = flat.kthvalue(flat.numel() - total + 1).values
    better, equal = flat > worst, flat == worst
    newer_equals = equal.flip(0).cumsum(0).flip(0)  # those behind, and itself
    stays = better | (equal & (newer_equals <= total - better.sum()))
    # among what stays are places without a row only where there are too few rows
    stays &= flat > -math.inf
    return stays.view(num_candidates, num_lanes).sum(dim=0)


def with_sure(scores: Tensor, sure: int) -> Tensor:
    """`scores` with the best `sure` of each lane above everything."""
    num_candidates = scores.shape[1]
    best = scores.argsort(dim=1, stable=True)[:, max(0, num_candidates - sure) :]
    values = scores.gather(1, best)
    return scores.scatter(1, best, torch.where(values > -math.inf, math.inf, values))
