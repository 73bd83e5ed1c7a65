"""Policies that predict what coming queries attend to."""

from dataclasses import replace
from typing import Annotated

from agentkv.policies.declare import named
from agentkv.policies.gates import Fixed
from agentkv.policies.parameters import Help
from agentkv.policies.policy import Policy
from agentkv.policies.predictors import DistancePreference, ExpectedAttention
from agentkv.policies.selectors import TopK


@named(Fixed)
def expected_attention(
    base: Policy,
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
) -> Policy:
    """Keeps entries that queries like the last would attend to.

    Source: Expected Attention (arXiv 2510.00636).
    """
    scorer = ExpectedAttention(queries, horizon, sinks, epsilon)
    return replace(base, scorer=scorer, selector=TopK(sinks, protected))


@named(Fixed)
def triattention(
    base: Policy,
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
) -> Policy:
    """Keeps entries whose keys and distances queries prefer.

    Queries count by their mean before rotation.

    The public code also keeps the whole prompt; pins do so here.

    Source: TriAttention (arXiv 2604.04921).
    """
    scorer = DistancePreference(queries, horizon)
    return replace(base, scorer=scorer, selector=TopK(protected=protected))
