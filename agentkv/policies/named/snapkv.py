"""Policies that score entries by a window of the last queries and protect it: SnapKV and those
based on it, and TOVA. Budgets include what is protected."""

from dataclasses import replace
from typing import Annotated, Literal

from agentkv.policies.adjusted import ByPhase, BySpan
from agentkv.policies.allocators import Adaptive, Pyramid
from agentkv.policies.declare import named
from agentkv.policies.gates import Fixed
from agentkv.policies.named.newest import LeftFactor
from agentkv.policies.named.newest import window as newest
from agentkv.policies.parameters import Help
from agentkv.policies.policy import Policy
from agentkv.policies.pool import Pool
from agentkv.policies.scorers import WindowMean
from agentkv.policies.selectors import TopK, TwoStage

Window = Annotated[
    int,
    Help(
        "Number of last queries that score the entries, and number of newest entries that are "
        "never dropped (32, as in the experiments of Ada-KV, EDIE and CriticalKV; kvpress: 64)."
    ),
]
Kernel = Annotated[
    int,
    Help(
        "Width of the pool along the entries, odd; 1 for none (7, as in the experiments of Ada-KV, "
        "EDIE and CriticalKV; SnapKV's own code and kvpress: 5)."
    ),
]
PoolKind = Annotated[
    Pool,
    Help(
        '"max" (as in the experiments of Ada-KV, EDIE and CriticalKV) or "avg" (SnapKV\'s own code '
        "and kvpress)."
    ),
]
Floor = Annotated[
    float,
    Help(
        "Fraction of an equal share that every head is guaranteed (our choice: 0.2, as in "
        "Ada-KV's scripts and kvpress; the paper's tables: 0.5)."
    ),
]
Safeguard = Annotated[
    Literal["mix", "guarantee"],
    Help(
        '"mix" gives every head `floor` of an equal share and (1 - floor) of the entries it won '
        '(the paper); "guarantee" reserves int(floor * budget) entries for it (kvpress).'
    ),
]
Beta = Annotated[
    float,
    Help(
        "The last layer gets 1 / beta of the average layer's entries beyond the window (paper: "
        "20); 1 makes all layers equal, as in `snapkv`."
    ),
]


@named(newest)
def tova(base: Policy) -> Policy:
    """Keeps what the newest query attends to, for all heads.

    Source: TOVA (arXiv 2401.06104).
    """
    return replace(base, scorer=WindowMean(1, 1, "avg"), selector=TopK(protected=1))


@named(Fixed)
def snapkv(
    base: Policy, *, window: Window = 32, kernel: Kernel = 7, pool: PoolKind = "max"
) -> Policy:
    """Keeps what the last queries attend to, with neighbors.

    Source: SnapKV (arXiv 2404.14469).
    """
    scorer = WindowMean(window, kernel, pool)
    return replace(base, scorer=scorer, selector=TopK(protected=window))


@named(snapkv)
def snapkv_by_phase(
    base: Policy,
    *,
    window: Annotated[
        int,
        Help(
            "Number of last queries of pages, and of replies, that score the entries, and number "
            "of newest entries that are never dropped (our choice: 32, as in snapkv)."
        ),
    ] = 32,
) -> Policy:
    """`snapkv` by the last queries of pages and of replies.

    It counts as many of both, whichever came last.

    Source: our choice, after AgentKV (OpenReview s80e8otSxP), which keeps queries of four phases.
    """
    return replace(base, scorer=ByPhase(base.scorer))


@named(snapkv)
def snapkv_by_span(
    base: Policy,
    *,
    left: LeftFactor = 0.5,
    replies: Annotated[
        float, Help("Factor on scores of entries of replies (our choice: 2).")
    ] = 2.0,
) -> Policy:
    """`snapkv` with less weight on left pages, more on replies.

    The owner of the cache labels pages and replies, as an agent does; without labels it is
    `snapkv`.

    Source: our choice.
    """
    return replace(base, scorer=BySpan(base.scorer, left, replies))


@named(snapkv)
def pyramidkv(base: Policy, *, beta: Beta = 20) -> Policy:
    """`snapkv` with more entries in shallow layers.

    Deep layers have few.

    Source: PyramidKV (arXiv 2406.02069).
    """
    return replace(base, allocator=Pyramid(beta))


@named(snapkv)
def ada_snapkv(base: Policy, *, floor: Floor = 0.2, safeguard: Safeguard = "mix") -> Policy:
    """`snapkv` with heads that compete within their layer.

    Source: Ada-KV (arXiv 2407.11550).
    """
    return replace(base, allocator=Adaptive(floor, safeguard))


@named(ada_snapkv)
def ada_pyramidkv(
    base: Policy, *, floor: Floor = 0.2, safeguard: Safeguard = "mix", beta: Beta = 20
) -> Policy:
    """`ada-snapkv` with the layers of `pyramidkv`.

    Source: Ada-KV (arXiv 2407.11550), as Ada-Pyramid.
    """
    return replace(base, allocator=Adaptive(floor, safeguard, Pyramid(beta)))


@named(snapkv)
def critical_snapkv(
    base: Policy,
    *,
    window: Window = 32,
    kernel: Kernel = 7,
    pool: PoolKind = "max",
    first_stage: Annotated[
        float,
        Help(
            "Fraction of the entries beyond the window that the score alone selects; score times "
            "norm of the projected value selects the rest (paper: 0.25; kvpress: 0.5)."
        ),
    ] = 0.25,
    epsilon: Annotated[
        float,
        Help("Added to the score before the product (0.0001 as in kvpress; the paper has none)."),
    ] = 1e-4,
    pooled: Annotated[
        bool,
        Help(
            "Whether the second stage uses the pooled score too (our choice, as in kvpress; the "
            "paper's text uses the raw one)."
        ),
    ] = True,
    gqa: Annotated[
        Literal["mean_norm", "product_then_mean"],
        Help(
            '"mean_norm" multiplies the mean score of the query group by its mean norm (our '
            'choice, as in kvpress); "product_then_mean" multiplies per query head and then '
            "averages."
        ),
    ] = "mean_norm",
) -> Policy:
    """`snapkv` that also counts norms of projected values.

    Source: CriticalKV (arXiv 2502.03805).
    """
    selector = TwoStage(0, window, first_stage, epsilon, pooled, gqa, kernel, pool)
    return replace(base, selector=selector)


@named(critical_snapkv)
def critical_pyramidkv(base: Policy, *, beta: Beta = 20) -> Policy:
    """`critical-snapkv` with the layers of `pyramidkv`.

    Source: CriticalKV (arXiv 2502.03805).
    """
    return replace(base, allocator=Pyramid(beta))


@named(critical_snapkv)
def critical_ada_snapkv(
    base: Policy, *, floor: Floor = 0.2, safeguard: Safeguard = "mix"
) -> Policy:
    """`critical-snapkv` with the competing heads of `ada-snapkv`.

    The score alone divides the entries among heads; each head then selects in two stages.

    Source: CriticalKV (arXiv 2502.03805).
    """
    return replace(base, allocator=Adaptive(floor, safeguard))
