"""Policies that compare keys with each other."""

from dataclasses import replace
from typing import Annotated

from agentkv.policies.declare import named
from agentkv.policies.gates import Fixed
from agentkv.policies.named.snapkv import Kernel
from agentkv.policies.parameters import Help
from agentkv.policies.policy import Policy
from agentkv.policies.scorers import AttentionAndRedundancy, KeyDifference
from agentkv.policies.selectors import TopK


@named(Fixed)
def keydiff(
    base: Policy,
    *,
    protected: Annotated[
        int, Help("Newest entries that are never dropped (our choice: 0, as in kvpress).")
    ] = 0,
) -> Policy:
    """Keeps entries whose keys differ most from the average.

    It needs no attention weights.

    Source: KeyDiff (arXiv 2504.15364).
    """
    return replace(base, scorer=KeyDifference(), selector=TopK(protected=protected))


@named(Fixed)
def r_kv(
    base: Policy,
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
) -> Policy:
    """Keeps attended entries whose keys do not repeat others.

    The last queries decide what is attended.

    Source: R-KV (arXiv 2505.24133).
    """
    scorer = AttentionAndRedundancy(window, kernel, share, similarity)
    return replace(base, scorer=scorer, selector=TopK(protected=window))
