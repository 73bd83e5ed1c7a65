"""Policies that follow the attention that every entry received since it was written."""

from dataclasses import replace
from typing import Annotated, Literal

from agentkv.policies.declare import named
from agentkv.policies.entries import BudgetFraction
from agentkv.policies.gates import Dropping, Fixed
from agentkv.policies.parameters import Help, require_flag
from agentkv.policies.policy import Policy
from agentkv.policies.scorers import HeavyHitters, Recurrence, Unimportance
from agentkv.policies.selectors import TopK


@named(Fixed)
def h2o(
    base: Policy,
    *,
    protected: Annotated[
        int | None,
        Help(
            "Newest entries that are never dropped; None: half of the budget (the paper's split)."
        ),
    ] = None,
    normalize: Annotated[
        bool,
        Help(
            "Divide an entry's sum by the number of queries that could see it (our choice: "
            "off, as in the paper; kvpress's ObservedAttention divides)."
        ),
    ] = False,
) -> Policy:
    """Keeps the newest entries and those with most attention.

    The attention is summed since an entry was written.

    Source: H2O (arXiv 2306.14048).
    """
    newest = BudgetFraction(0.5) if protected is None else protected
    scorer = HeavyHitters(require_flag("normalize", normalize))
    return replace(base, scorer=scorer, selector=TopK(protected=newest))


@named(Dropping)
def scissorhands(
    base: Policy,
    *,
    history: Annotated[
        int, Help("Number of last queries that count (commonly quoted: 400).")
    ] = 400,
    protected: Annotated[
        int, Help("Newest entries that are never dropped (commonly quoted: 10).")
    ] = 10,
    variant: Annotated[
        Literal["count", "sum"],
        Help(
            '"count" ranks by the number of queries that gave an entry less than an even '
            'share (the paper), "sum" by the sum of their weights (KVCache-Factory).'
        ),
    ] = "count",
) -> Policy:
    """Keeps entries that recent queries seldom passed over.

    The newest entries stay as well; the others are dropped in bulk.

    Source: Scissorhands (arXiv 2305.17118).
    """
    scorer = Unimportance(history, variant)
    return replace(base, scorer=scorer, selector=TopK(protected=protected))


@named(Fixed)
def lazy_eviction(
    base: Policy,
    *,
    threshold: Annotated[
        float,
        Help("Least weight that counts as an activation of an entry (0.0001, as in its code)."),
    ] = 1e-4,
    protected: Annotated[
        int,
        Help(
            "Newest entries that are never dropped: the paper's observation window (128, the "
            "default of its code; its scripts have 52 to 363, by task)."
        ),
    ] = 128,
    slack: Annotated[
        int,
        Help(
            "Entries tolerated above the budget before eviction runs: one less than the "
            "observation window, after which eviction lags (127, as in its code)."
        ),
    ] = 127,
) -> Policy:
    """Keeps the newest entries and those attention returns to.

    The others are dropped in bulk.

    Source: LazyEviction (arXiv 2506.15969).
    """
    return replace(base, scorer=Recurrence(threshold), selector=TopK(protected=protected))
