"""Whole rows from shares, with sums that are exact.

Shapes: S lanes.
"""

import bisect
import math
from collections.abc import Sequence

import torch
from torch import Tensor

# shares are sums of products of floats: 10 may come as 9.999999999999998
_CLOSE = 1e-9


def rounded(wanted: Sequence[float], total: int) -> tuple[int, ...]:
    """Whole numbers next to `wanted` that sum to `total`, which `wanted` does but for rounding.

    The largest remainders are rounded up; of equal ones the earlier.
    """
    whole = [math.floor(share + _CLOSE) for share in wanted]
    missing = total - sum(whole)
    assert 0 <= missing <= len(whole), f"{wanted} do not sum to {total}"
    order = sorted(range(len(whole)), key=lambda i: round(whole[i] - wanted[i], 9))
    for i in order[:missing]:
        whole[i] += 1
    return tuple(whole)


def clamped(wanted: Sequence[float], total: float, least: int, most: int) -> list[float]:
    """`wanted`, scaled so that they sum to `total` when none is below `least` or above `most`.

    Those that would be out of bounds stand at the bound, and the others are scaled by one factor.
    What is right but for half a row is left as it is.

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


def evenly(there: Tensor, budget: int) -> Tensor:
    """`budget` for every lane; what a lane does not have goes to those with more. (S,) int64.

    Args:
        there: (S,) int64, the most that each lane can take.
    """
    num_lanes = there.shape[0]
    held, order = there.sort(stable=True)
    lanes = torch.arange(num_lanes, device=there.device)
    # a lane, from the poorest on, takes its part of what is left, or all it has
    left = budget * num_lanes - (held.cumsum(0) - held)
    part = left // (num_lanes - lanes)
    full = (held <= part).to(torch.int64).cumprod(0)
    num_full = full.sum()
    rest = budget * num_lanes - (held * full).sum()
    sharing = (num_lanes - num_full).clamp_min(1)
    # the last ones, which have most, take what does not divide
    share = rest // sharing + (lanes >= num_lanes - rest % sharing).to(torch.int64)
    counts = torch.where(full > 0, held, share)
    return torch.empty_like(counts).scatter_(0, order, counts)


def within(wanted: Tensor, there: Tensor) -> Tensor:
    """`wanted`, none above what is there; what a lane cannot take goes to the others, each the same
    until it has no more. (S,) float64, with the sum of `wanted` or, if that is less, of `there`.

    Args:
        wanted: (S,) float64.
        there: (S,) int64, the most that each lane can take.
    """
    num_lanes = there.shape[0]
    room, order = (there - wanted).sort(stable=True)
    lanes = torch.arange(num_lanes, device=there.device)
    # from the lane with the least room on (less than none, if it wants too much): all of it, or its
    # part of what is left
    part = (room - room.cumsum(0)) / (num_lanes - lanes)
    full = (room <= part).to(torch.int64).cumprod(0)
    share = -(room * full).sum() / (num_lanes - full.sum()).clamp_min(1)
    lifted = torch.where(full > 0, room, share)
    return wanted + torch.empty_like(lifted).scatter_(0, order, lifted)


def rounded_lanes(wanted: Tensor, total: Tensor) -> Tensor:
    """As `rounded`, for (S,) float64 on any device."""
    whole = (wanted + _CLOSE).floor()
    missing = total - whole.sum()
    # equal remainders differ by float noise; the earlier lane is to have the row on every device
    remainder = ((wanted - whole) * 1e6).round()
    order = remainder.argsort(descending=True, stable=True)
    up = torch.arange(wanted.shape[0], device=wanted.device) < missing
    return whole.to(torch.int64).scatter_add_(0, order, up.to(torch.int64))
