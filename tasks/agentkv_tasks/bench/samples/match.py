"""Find the budget at which a policy's cache has the wanted bytes on average.

A budget bounds a cache. A policy that keeps less while the model is sure has fewer bytes in the
mean than a window with the same budget, and may have a larger budget at equal means.
"""

from collections.abc import Callable

from agentkv_tasks.bench.errors import BenchError

TOLERANCE = 0.02
"""Accepted difference of the means, as a part of the wanted one."""
_MOST_TRIALS = 8


def matched_budget(mean_bytes: Callable[[int], float], target: float, label: str) -> int:
    """Return the budget in bytes at which the mean is the wanted one, within `TOLERANCE`.

    Args:
        mean_bytes: measures the mean at a budget.
        target: wanted mean.
        label: policy, for the message.

    Raises:
        BenchError: none of the budgets tried has that mean; the message says which means they have.
    """
    budget, tried = round(target), dict[int, float]()
    while budget not in tried and len(tried) < _MOST_TRIALS:
        tried[budget] = mean_bytes(budget)
        if abs(tried[budget] / target - 1) <= TOLERANCE:
            return budget
        budget = _next(tried, target)
    nearest = min(tried.values(), key=lambda mean: abs(mean - target))
    raise BenchError(
        f"{label}: no budget found with {target:,.0f} bytes on average, within "
        f"{100 * TOLERANCE:.0f} %; the nearest has {nearest:,.0f}. Leave --match mean out, or give "
        "other --entries"
    )


def _next(tried: dict[int, float], target: float) -> int:
    """Return a budget between those with the nearest means below and above the wanted one, or, if
    all are on one side, the outermost in proportion."""
    below = [budget for budget, mean in tried.items() if mean < target]
    above = [budget for budget, mean in tried.items() if mean > target]
    if below and above:
        low, high = max(below), min(above)
        share = (target - tried[low]) / (tried[high] - tried[low])
        return round(low + share * (high - low))
    outermost = max(below) if below else min(above)
    return round(outermost * min(4.0, target / max(1.0, tried[outermost])))
