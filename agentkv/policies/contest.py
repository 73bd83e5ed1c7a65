"""Competition between the candidates of several segments.

Shapes: S segments of C candidates; missing candidates have the score -inf.
"""

import math

import torch
from torch import Tensor


def num_candidates_of(scores: Tensor) -> Tensor:
    """Return the number of candidates of each segment, (S,) int64."""
    return (scores > -math.inf).sum(dim=-1)


def counts_of_best(scores: Tensor, budget: int) -> Tensor:
    """Return how many of the best candidates of all segments each segment has, (S,) int64.

    At equal scores the newer candidate wins.
    """
    num_segments, num_candidates = scores.shape
    total = num_segments * min(budget, num_candidates)
    if total == 0:
        return torch.zeros(num_segments, dtype=torch.int64, device=scores.device)
    # segments vary fastest, so a later flat index is a newer entry
    flat = scores.mT.flatten()
    # the lowest score that stays; kthvalue is faster than a sort
    worst = flat.kthvalue(flat.numel() - total + 1).values
    better, equal = flat > worst, flat == worst
    newer_equals = equal.flip(0).cumsum(0).flip(0)  # counts the entry itself
    stays = better | (equal & (newer_equals <= total - better.sum()))
    # -inf is among the best only if there are too few candidates
    stays &= flat > -math.inf
    return stays.view(num_candidates, num_segments).sum(dim=0)


def with_guaranteed(scores: Tensor, count: int) -> Tensor:
    """Return `scores` with the best `count` of each segment raised to infinity."""
    num_candidates = scores.shape[1]
    best = scores.argsort(dim=1, stable=True)[:, max(0, num_candidates - count) :]
    values = scores.gather(1, best)
    return scores.scatter(1, best, torch.where(values > -math.inf, math.inf, values))
