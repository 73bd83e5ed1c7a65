"""Policies that score entries by a window of the last queries: SnapKV and those based on it, which
protect the window, and those that predict what coming queries attend to. Budgets include what is
protected."""

from dataclasses import replace
from typing import Annotated

from agentkv.policies.allocators import Adaptive, Pyramid, Shared, Uniform
from agentkv.policies.gates import Fixed
from agentkv.policies.options import (
    Beta,
    Epsilon,
    EvictionSchedule,
    FirstStage,
    Floor,
    Grouping,
    Help,
    Interval,
    Kernel,
    LeftFactor,
    Pooled,
    PoolKind,
    QueryWindow,
    SafeguardKind,
    Slack,
)
from agentkv.policies.policy import Policy
from agentkv.policies.precision import Dense
from agentkv.policies.predictors import DistancePreference, ExpectedAttention
from agentkv.policies.scorers import AttentionAndRedundancy, ByPhase, BySpan, WindowMean
from agentkv.policies.selectors import TopK, TwoStage


def snapkv(
    *,
    window: QueryWindow = 32,
    kernel: Kernel = 7,
    pool: PoolKind = "max",
    slack: Slack = 0,
    schedule: EvictionSchedule = "always",
    interval: Interval = None,
) -> Policy:
    """Keeps what the last queries attend to, with neighbors.

    Source: SnapKV (arXiv 2404.14469).
    """
    gate = Fixed(slack, schedule, interval)
    scorer = WindowMean(window, kernel, pool)
    return Policy("snapkv", gate, Uniform(), scorer, TopK(protected=window), Dense())


def snapkv_by_phase(
    *,
    window: Annotated[
        int,
        Help(
            "Number of last queries of pages, and of replies, that score the entries, and number "
            "of newest entries that are never dropped (our choice: 32, as in snapkv)."
        ),
    ] = 32,
    kernel: Kernel = 7,
    pool: PoolKind = "max",
    slack: Slack = 0,
    schedule: EvictionSchedule = "always",
    interval: Interval = None,
) -> Policy:
    """`snapkv` by the last queries of pages and of replies.

    It counts as many of both, whichever came last.

    Source: our choice, after AgentKV (OpenReview s80e8otSxP), which keeps queries of four phases.
    """
    base = snapkv(
        window=window, kernel=kernel, pool=pool, slack=slack, schedule=schedule, interval=interval
    )
    return replace(base, name="snapkv-by-phase", scorer=ByPhase(base.scorer))


def snapkv_by_span(
    *,
    left: LeftFactor = 0.5,
    replies: Annotated[
        float, Help("Factor on scores of entries of replies (our choice: 2).")
    ] = 2.0,
    window: QueryWindow = 32,
    kernel: Kernel = 7,
    pool: PoolKind = "max",
    slack: Slack = 0,
    schedule: EvictionSchedule = "always",
    interval: Interval = None,
) -> Policy:
    """`snapkv` with less weight on left pages, more on replies.

    The owner of the cache labels pages and replies, as an agent does; without labels it is
    `snapkv`.

    Source: our choice.
    """
    base = snapkv(
        window=window, kernel=kernel, pool=pool, slack=slack, schedule=schedule, interval=interval
    )
    return replace(base, name="snapkv-by-span", scorer=BySpan(base.scorer, left, replies))


def pyramidkv(
    *,
    window: QueryWindow = 32,
    kernel: Kernel = 7,
    pool: PoolKind = "max",
    beta: Beta = 20,
    slack: Slack = 0,
    schedule: EvictionSchedule = "always",
    interval: Interval = None,
) -> Policy:
    """`snapkv` with more entries in shallow layers.

    Deep layers have few.

    Source: PyramidKV (arXiv 2406.02069).
    """
    gate = Fixed(slack, schedule, interval)
    scorer = WindowMean(window, kernel, pool)
    return Policy("pyramidkv", gate, Pyramid(beta), scorer, TopK(protected=window), Dense())


def tova(
    *, slack: Slack = 0, schedule: EvictionSchedule = "always", interval: Interval = None
) -> Policy:
    """Keeps what the newest query attends to, for all heads.

    Source: TOVA (arXiv 2401.06104).
    """
    gate, scorer = Fixed(slack, schedule, interval), WindowMean(1, 1, "avg")
    return Policy("tova", gate, Shared(), scorer, TopK(protected=1), Dense())


def r_kv(
    *,
    window: Annotated[
        int,
        Help(
            "Number of last queries that score the entries, and number of newest entries that are "
            "never dropped (paper: 8)."
        ),
    ] = 8,
    kernel: Kernel = 7,
    share: Annotated[
        float, Help("Share of attention in the score; redundancy has the rest (paper: 0.1).")
    ] = 0.1,
    similarity: Annotated[
        float, Help("Cosine above which a key resembles another (0.5, as in its code).")
    ] = 0.5,
    slack: Annotated[
        int,
        Help("Entries tolerated above the budget before eviction runs (paper: a buffer of 128)."),
    ] = 127,
    schedule: EvictionSchedule = "always",
    interval: Interval = None,
) -> Policy:
    """Keeps attended entries whose keys do not repeat others.

    The last queries decide what is attended.

    Source: R-KV (arXiv 2505.24133).
    """
    gate = Fixed(slack, schedule, interval)
    scorer = AttentionAndRedundancy(window, kernel, share, similarity)
    return Policy("r-kv", gate, Uniform(), scorer, TopK(protected=window), Dense())


def ada_snapkv(
    *,
    window: QueryWindow = 32,
    kernel: Kernel = 7,
    pool: PoolKind = "max",
    floor: Floor = 0.2,
    safeguard: SafeguardKind = "mix",
    slack: Slack = 0,
    schedule: EvictionSchedule = "always",
    interval: Interval = None,
) -> Policy:
    """`snapkv` with heads that compete within their layer.

    Source: Ada-KV (arXiv 2407.11550).
    """
    base = snapkv(
        window=window, kernel=kernel, pool=pool, slack=slack, schedule=schedule, interval=interval
    )
    return replace(base, name="ada-snapkv", allocator=Adaptive(floor, safeguard))


def ada_pyramidkv(
    *,
    window: QueryWindow = 32,
    kernel: Kernel = 7,
    pool: PoolKind = "max",
    floor: Floor = 0.2,
    safeguard: SafeguardKind = "mix",
    beta: Beta = 20,
    slack: Slack = 0,
    schedule: EvictionSchedule = "always",
    interval: Interval = None,
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
    window: QueryWindow = 32,
    kernel: Kernel = 7,
    pool: PoolKind = "max",
    first_stage: FirstStage = 0.25,
    epsilon: Epsilon = 1e-4,
    pooled: Pooled = True,
    gqa: Grouping = "mean_norm",
    slack: Slack = 0,
    schedule: EvictionSchedule = "always",
    interval: Interval = None,
) -> Policy:
    """`snapkv` that also counts norms of projected values.

    Source: CriticalKV (arXiv 2502.03805).
    """
    base = snapkv(
        window=window, kernel=kernel, pool=pool, slack=slack, schedule=schedule, interval=interval
    )
    selector = TwoStage(0, window, first_stage, epsilon, pooled, gqa, kernel, pool)
    return replace(base, name="critical-snapkv", selector=selector)


def critical_pyramidkv(
    *,
    window: QueryWindow = 32,
    kernel: Kernel = 7,
    pool: PoolKind = "max",
    first_stage: FirstStage = 0.25,
    epsilon: Epsilon = 1e-4,
    pooled: Pooled = True,
    gqa: Grouping = "mean_norm",
    beta: Beta = 20,
    slack: Slack = 0,
    schedule: EvictionSchedule = "always",
    interval: Interval = None,
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
    window: QueryWindow = 32,
    kernel: Kernel = 7,
    pool: PoolKind = "max",
    first_stage: FirstStage = 0.25,
    epsilon: Epsilon = 1e-4,
    pooled: Pooled = True,
    gqa: Grouping = "mean_norm",
    floor: Floor = 0.2,
    safeguard: SafeguardKind = "mix",
    slack: Slack = 0,
    schedule: EvictionSchedule = "always",
    interval: Interval = None,
) -> Policy:
    """`critical-snapkv` with the competing heads of `ada-snapkv`.

    The score alone divides the entries among heads; each head then selects in two stages.

    Source: CriticalKV (arXiv 2502.03805).
    """
    base = snapkv(
        window=window, kernel=kernel, pool=pool, slack=slack, schedule=schedule, interval=interval
    )
    allocator = Adaptive(floor, safeguard)
    selector = TwoStage(0, window, first_stage, epsilon, pooled, gqa, kernel, pool)
    return replace(base, name="critical-ada-snapkv", allocator=allocator, selector=selector)


def expected_attention(
    *,
    queries: Annotated[
        int,
        Help(
            "Number of last queries whose mean and covariance stand for coming ones (256, the "
            "buffer of kvpress; it compresses a prompt with all of the prompt's queries)."
        ),
    ] = 256,
    horizon: Annotated[
        int, Help("Number of coming positions that are averaged over (512, as in kvpress).")
    ] = 512,
    sinks: Annotated[
        int,
        Help(
            "Entries kept from the start of the sequence, whose queries do not count (4, as in "
            "kvpress)."
        ),
    ] = 4,
    epsilon: Annotated[
        float,
        Help("Added to the expected attention before the value's norm (0, as in kvpress)."),
    ] = 0.0,
    protected: Annotated[
        int, Help("Newest entries that are never dropped (our choice: 0, as in kvpress).")
    ] = 0,
    slack: Slack = 0,
    schedule: EvictionSchedule = "always",
    interval: Interval = None,
) -> Policy:
    """Keeps entries that queries like the last would attend to.

    Source: Expected Attention (arXiv 2510.00636).
    """
    gate = Fixed(slack, schedule, interval)
    scorer = ExpectedAttention(queries, horizon, sinks, epsilon)
    selector = TopK(sinks, protected)
    return Policy("expected-attention", gate, Uniform(), scorer, selector, Dense())


def triattention(
    *,
    queries: Annotated[
        int,
        Help(
            "Number of last queries whose means stand for coming ones (our choice: 256; the "
            "paper calibrates them offline)."
        ),
    ] = 256,
    horizon: Annotated[
        int,
        Help(
            "Largest of the distances 1, 2, 4, ... to coming positions that are averaged over "
            "(65,536, as in its code)."
        ),
    ] = 65_536,
    protected: Annotated[
        int, Help("Newest entries that are never dropped (128, as in its code for vLLM).")
    ] = 128,
    slack: Annotated[
        int,
        Help(
            "Entries tolerated above the budget before eviction runs (127: its code compresses "
            "every 128 tokens)."
        ),
    ] = 127,
    schedule: EvictionSchedule = "always",
    interval: Interval = None,
) -> Policy:
    """Keeps entries whose keys and distances queries prefer.

    Queries count by their mean before rotation.

    The public code also keeps the whole prompt; pins do so here.

    Source: TriAttention (arXiv 2604.04921).
    """
    gate = Fixed(slack, schedule, interval)
    scorer, selector = DistancePreference(queries, horizon), TopK(protected=protected)
    return Policy("triattention", gate, Uniform(), scorer, selector, Dense())
