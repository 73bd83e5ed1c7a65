"""SnapKV, which scores rows with a window of the last queries, and what was built on it.

All protect the window, which is counted in the budget. `snapkv` explains the window's parameters.
"""

from dataclasses import replace
from typing import Literal

from agentkv.policies.allocators import Adaptive, Pyramid, Uniform
from agentkv.policies.gates import Fixed, Schedule
from agentkv.policies.policy import Policy
from agentkv.policies.pool import Pool
from agentkv.policies.precision import Dense
from agentkv.policies.scorers import WindowMean
from agentkv.policies.selectors import TopK, TwoStage

Safeguard = Literal["mix", "guarantee"]
Grouping = Literal["mean_norm", "product_then_mean"]


def snapkv(
    *,
    window: int = 32,
    kernel: int = 7,
    pool: Pool = "max",
    slack: int = 0,
    schedule: Schedule = "always",
    interval: int | None = None,
) -> Policy:
    """The rows that the last queries look at, and their neighbours.

    Args:
        window: last queries that are asked, and newest rows that never go (32, as in Ada-KV's,
            EDIE's and CriticalKV's experiments; kvpress: 64).
        kernel: rows that are pooled together, odd; 1 for none (7, as in those experiments; SnapKV's
            own code and kvpress: 5).
        pool: "max" (as in those experiments) or "avg" (SnapKV's own code and kvpress).

    Source: SnapKV (arXiv 2404.14469).
    """
    gate = Fixed(slack, schedule, interval)
    scorer = WindowMean(window, kernel, pool)
    return Policy("snapkv", gate, Uniform(), scorer, TopK(protected=window), Dense())


def pyramidkv(
    *,
    window: int = 32,
    kernel: int = 7,
    pool: Pool = "max",
    beta: float = 20,
    slack: int = 0,
    schedule: Schedule = "always",
    interval: int | None = None,
) -> Policy:
    """`snapkv` with many rows in shallow layers and few in deep ones.

    Args:
        beta: the last layer gets 1 / beta of the average layer's rows beyond the window (paper:
            20); 1 is `snapkv`.

    Source: PyramidKV (arXiv 2406.02069).
    """
    gate = Fixed(slack, schedule, interval)
    scorer = WindowMean(window, kernel, pool)
    return Policy("pyramidkv", gate, Pyramid(beta), scorer, TopK(protected=window), Dense())


def ada_snapkv(
    *,
    window: int = 32,
    kernel: int = 7,
    pool: Pool = "max",
    floor: float = 0.2,
    safeguard: Safeguard = "mix",
    slack: int = 0,
    schedule: Schedule = "always",
    interval: int | None = None,
) -> Policy:
    """`snapkv` whose heads compete for the rows of their layer.

    Args:
        floor: how much of an equal share every head is sure of (our choice: 0.2, as in Ada-KV's
            scripts and kvpress; the paper's tables: 0.5).
        safeguard: "mix" gives every head `floor` of an equal share and (1 - floor) of what it won
            (the paper's); "guarantee" makes it sure of int(floor * budget) rows (kvpress's).

    Source: Ada-KV (arXiv 2407.11550).
    """
    base = snapkv(
        window=window, kernel=kernel, pool=pool, slack=slack, schedule=schedule, interval=interval
    )
    return replace(base, name="ada-snapkv", allocator=Adaptive(floor, safeguard))


def ada_pyramidkv(
    *,
    window: int = 32,
    kernel: int = 7,
    pool: Pool = "max",
    floor: float = 0.2,
    safeguard: Safeguard = "mix",
    beta: float = 20,
    slack: int = 0,
    schedule: Schedule = "always",
    interval: int | None = None,
) -> Policy:
    """`ada-snapkv` with the layers of `pyramidkv`.

    Source: Ada-KV (arXiv 2407.11550), as Ada-Pyramid.
    """
    base = snapkv(
        window=window, kernel=kernel, pool=pool, slack=slack, schedule=schedule, interval=interval
    )
    allocator = Adaptive(floor, safeguard, Pyramid(beta))
    return replace(base, name="ada-pyramidkv", allocator=allocator)


def critical_snapkv(
    *,
    window: int = 32,
    kernel: int = 7,
    pool: Pool = "max",
    first_stage: float = 0.25,
    epsilon: float = 1e-4,
    pooled: bool = True,
    gqa: Grouping = "mean_norm",
    slack: int = 0,
    schedule: Schedule = "always",
    interval: int | None = None,
) -> Policy:
    """`snapkv` that also asks how much a row's value can move the output.

    Args:
        first_stage: share of the rows beyond the window that the score alone picks; the rest goes
            by score times the norm of the projected value (paper: 0.25; kvpress: 0.5).
        epsilon: added to the score before the norm (0.0001, kvpress's; the paper has none).
        pooled: whether the second stage takes the pooled score too (our choice, as kvpress; the
            text says the raw one).
        gqa: "mean_norm" multiplies the group's mean score by its mean norm (our choice, as
            kvpress); "product_then_mean" does so head by head.

    Source: CriticalKV (arXiv 2502.03805).
    """
    base = snapkv(
        window=window, kernel=kernel, pool=pool, slack=slack, schedule=schedule, interval=interval
    )
    selector = TwoStage(0, window, first_stage, epsilon, pooled, gqa, kernel, pool)
    return replace(base, name="critical-snapkv", selector=selector)


def critical_pyramidkv(
    *,
    window: int = 32,
    kernel: int = 7,
    pool: Pool = "max",
    first_stage: float = 0.25,
    epsilon: float = 1e-4,
    pooled: bool = True,
    gqa: Grouping = "mean_norm",
    beta: float = 20,
    slack: int = 0,
    schedule: Schedule = "always",
    interval: int | None = None,
) -> Policy:
    """`critical-snapkv` with the layers of `pyramidkv`.

    Source: CriticalKV (arXiv 2502.03805).
    """
    base = snapkv(
        window=window, kernel=kernel, pool=pool, slack=slack, schedule=schedule, interval=interval
    )
    selector = TwoStage(0, window, first_stage, epsilon, pooled, gqa, kernel, pool)
    return replace(base, name="critical-pyramidkv", allocator=Pyramid(beta), selector=selector)


def critical_ada_snapkv(
    *,
    window: int = 32,
    kernel: int = 7,
    pool: Pool = "max",
    first_stage: float = 0.25,
    epsilon: float = 1e-4,
    pooled: bool = True,
    gqa: Grouping = "mean_norm",
    floor: float = 0.2,
    safeguard: Safeguard = "mix",
    slack: int = 0,
    schedule: Schedule = "always",
    interval: int | None = None,
) -> Policy:
    """`critical-snapkv` with the competing heads of `ada-snapkv`.

    The score alone shares rows out over the heads; then each head goes through its two stages.

    Source: CriticalKV (arXiv 2502.03805).
    """
    base = snapkv(
        window=window, kernel=kernel, pool=pool, slack=slack, schedule=schedule, interval=interval
    )
    allocator = Adaptive(floor, safeguard)
    selector = TwoStage(0, window, first_stage, epsilon, pooled, gqa, kernel, pool)
    return replace(base, name="critical-ada-snapkv", allocator=allocator, selector=selector)
