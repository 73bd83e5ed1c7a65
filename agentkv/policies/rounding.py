"""Division of a budget into whole entries with exact sums: by rounding, and by a contest between
the candidates of several segments.

Shapes: S segments of C candidates; missing candidates have the score -inf.
"""

import bisect
import math
from collections.abc import Sequence

import torch
from torch import Tensor

# float sums of products: 10 may become 9.999999999999998
_CLOSE = 1e-9


def rounded(wanted: Sequence[float], total: int) -> tuple[int, ...]:
    """Round `wanted`, which sums to `total` up to float error, to whole numbers of this sum.

    The largest remainders are rounded up; at equal remainders the earlier one.
    """
    whole = [math.floor(share + _CLOSE) for share in wanted]
    missing = total - sum(whole)
    assert 0 <= missing <= len(whole), f"{wanted} do not sum to {total}"
    order = sorted(range(len(whole)), key=lambda i: round(whole[i] - wanted[i], 9))
    for i in order[:missing]:
        whole[i] += 1
    return tuple(whole)


def clamped(wanted: Sequence[float], total: float, least: int, most: int) -> list[float]:
    """Scale `wanted` to the sum `total` with every value from `least` to `most`.

    Values out of bounds move to the bound; one factor scales the others. A sum within half an entry
    of `total` is left unchanged.

    Args:
        wanted: all above 0.
        total: between least * n and most * n.
    """
    assert least * len(wanted) <= total <= most * len(wanted), (wanted, total, least, most)

    def held(factor: float) -> list[float]:
        return [min(max(factor * share, least), most) for share in wanted]

    if abs(sum(wanted) - total) <= 0.5 and least <= min(wanted) and max(wanted) <= most:
        return list(wanted)
    # the sum rises with the factor, in straight pieces between those that put a share at a bound
    corners = sorted({bound / share for share in wanted for bound in (least, most)} | {0.0})
    upper = bisect.bisect_left(corners[:-1], total, key=lambda corner: sum(held(corner)))
    low, high = corners[max(0, upper - 1)], corners[upper]
    at_low, at_high = sum(held(low)), sum(held(high))
    part = (total - at_low) / (at_high - at_low) if at_high > at_low else 0.0
    return held(low + (high - low) * part)


def evenly(capacities: Tensor, budget: int) -> Tensor:
    """Return `budget` for every segment; larger ones take what smaller ones cannot. (S,) int64.

    Args:
        capacities: (S,) int64, the most that each segment can take.
    """
    num_segments = capacities.shape[0]
    held, order = capacities.sort(stable=True)
    segments = torch.arange(num_segments, device=capacities.device)
    # in order of size, a segment takes an equal part of the rest, or all it has
    left = budget * num_segments - (held.cumsum(0) - held)
    part = left // (num_segments - segments)
    full = (held <= part).to(torch.int64).cumprod(0)
    num_full = full.sum()
    rest = budget * num_segments - (held * full).sum()
    sharing = (num_segments - num_full).clamp_min(1)
    # the last segments, which are largest, take the remainder
    share = rest // sharing + (segments >= num_segments - rest % sharing).to(torch.int64)
    counts = torch.where(full > 0, held, share)
    return torch.empty_like(counts).scatter_(0, order, counts)


def within(wanted: Tensor, capacities: Tensor) -> Tensor:
    """Limit `wanted` to the entries that exist and give the excess to the others in equal parts.

    Returns (S,) float64 with the sum of `wanted` or, if that is smaller, of `capacities`.

    Args:
        wanted: (S,) float64.
        capacities: (S,) int64, the most that each segment can take.
    """
    num_segments = capacities.shape[0]
    room, order = (capacities - wanted).sort(stable=True)
    segments = torch.arange(num_segments, device=capacities.device)
    # in order of room (negative if a segment wants too much): take all of it, or an equal part of
    # the rest
    part = (room - room.cumsum(0)) / (num_segments - segments)
    full = (room <= part).to(torch.int64).cumprod(0)
    share = -(room * full).sum() / (num_segments - full.sum()).clamp_min(1)
    lifted = torch.where(full > 0, room, share)
    return wanted + torch.empty_like(lifted).scatter_(0, order, lifted)


def rounded_segments(wanted: Tensor, total: Tensor) -> Tensor:
    """Round (S,) float64 as `rounded` does, on any device."""
    whole = (wanted + _CLOSE).floor()
    missing = total - whole.sum()
    # equal remainders differ by float noise; the earlier segment must win on every device
    remainder = ((wanted - whole) * 1e6).round()
    order = remainder.argsort(descending=True, stable=True)
    up = torch.arange(wanted.shape[0], device=wanted.device) < missing
    return whole.to(torch.int64).scatter_add_(0, order, up.to(torch.int64))


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
