"""CONF-KV: the confidence in the next token sets the budget."""

from dataclasses import replace
from typing import Annotated

from agentkv.policies.allocators import Linear, Shared
from agentkv.policies.declare import named
from agentkv.policies.entries import BudgetFraction
from agentkv.policies.gates import Confident
from agentkv.policies.parameters import Help, require_part, require_share
from agentkv.policies.policy import Policy
from agentkv.policies.precision import QuantizeOld
from agentkv.policies.scorers import AttentionAndRecency
from agentkv.policies.selectors import TopK


@named(Confident)
def conf_kv(
    base: Policy,
    *,
    protected: Annotated[
        int | None,
        Help(
            "Newest entries that are never dropped; None: an eighth of loose, at most 64 (paper: "
            "64 of 512)."
        ),
    ] = None,
    mass_weight: Annotated[
        float, Help("Weight of attention in the score; recency has the rest (our choice: 0.5).")
    ] = 0.5,
    decay: Annotated[
        float, Help("Decay of the moving average of the attention masses (our choice: 0.9).")
    ] = 0.9,
) -> Policy:
    """Chooses one of two budgets by the model's confidence.

    Attention and recency choose the entries.

    Source: CONF-KV (arXiv 2605.24786).
    """
    newest = BudgetFraction(0.125, 64) if protected is None else protected
    scorer = AttentionAndRecency(
        require_share("mass_weight", mass_weight), require_part("decay", decay)
    )
    return replace(base, allocator=Shared(), scorer=scorer, selector=TopK(protected=newest))


@named(conf_kv)
def conf_kv_int8(
    base: Policy,
    *,
    recent: Annotated[
        int | None,
        Help(
            "Newest entries that stay in the model's dtype; None: half of loose, at most 256 "
            "(paper: 256 of 512)."
        ),
    ] = None,
    format: Annotated[
        str,
        Help(
            "Storage format of older entries: int8, int8-max (the scale of the paper), fp8, int4 "
            "or nf4."
        ),
    ] = "int8",
) -> Policy:
    """`conf-kv` with older entries in 8 bits.

    Source: CONF-KV (arXiv 2605.24786).
    """
    return replace(base, precision=QuantizeOld(recent, format))


@named(conf_kv_int8)
def conf_kv_l(
    base: Policy,
    *,
    slope: Annotated[
        tuple[float, float],
        Help(
            "Shares of the budget for the first and the last layer, with a line between them "
            "(our choice: 1.25 to 0.75, which sums to the budget; 1.0 to 0.5 keeps three "
            "quarters of it)."
        ),
    ] = (1.25, 0.75),
) -> Policy:
    """`conf-kv-int8` with more entries in shallow layers.

    Source: CONF-KV-L (arXiv 2605.24786).
    """
    return replace(base, allocator=Linear(slope))
