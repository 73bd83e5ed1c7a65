"""CONF-KV: the confidence in the next token sets the budget."""

from typing import Annotated

from agentkv.policies.allocators import Linear, Shared
from agentkv.policies.entries import BudgetFraction
from agentkv.policies.gates import Confident
from agentkv.policies.options import (
    BudgetRecent,
    ByTurn,
    ConfidenceProtected,
    ConfidenceWeights,
    EvictionSchedule,
    Format,
    Help,
    Loose,
    MassDecay,
    MassWeight,
    Slack,
    Threshold,
    Tight,
)
from agentkv.policies.parameters import require_numbers, require_part, require_share
from agentkv.policies.policy import Policy
from agentkv.policies.precision import Dense, QuantizeOld
from agentkv.policies.scorers import AttentionAndRecency
from agentkv.policies.selectors import TopK


def conf_kv(
    *,
    threshold: Threshold = 0.7,
    tight: Tight = None,
    loose: Loose = None,
    protected: ConfidenceProtected = None,
    mass_weight: MassWeight = 0.5,
    decay: MassDecay = 0.9,
    weights: ConfidenceWeights = (0.4, 0.3, 0.3),
    slack: Slack = 0,
    schedule: EvictionSchedule = "always",
    by_turn: ByTurn = False,
) -> Policy:
    """Chooses one of two budgets by the model's confidence.

    Attention and recency choose the entries.

    Source: CONF-KV (arXiv 2605.24786).
    """
    shares = require_numbers("weights", weights, 3)
    gate = Confident(
        threshold, (shares[0], shares[1], shares[2]), tight, loose, slack, schedule, by_turn
    )
    newest = BudgetFraction(0.125, 64) if protected is None else protected
    scorer = AttentionAndRecency(
        require_share("mass_weight", mass_weight), require_part("decay", decay)
    )
    return Policy("conf-kv", gate, Shared(), scorer, TopK(protected=newest), Dense())


def conf_kv_int8(
    *,
    threshold: Threshold = 0.7,
    tight: Tight = None,
    loose: Loose = None,
    protected: ConfidenceProtected = None,
    mass_weight: MassWeight = 0.5,
    decay: MassDecay = 0.9,
    weights: ConfidenceWeights = (0.4, 0.3, 0.3),
    slack: Slack = 0,
    schedule: EvictionSchedule = "always",
    by_turn: ByTurn = False,
    recent: BudgetRecent = None,
    format: Format = "int8",
) -> Policy:
    """`conf-kv` with older entries in 8 bits.

    Source: CONF-KV (arXiv 2605.24786).
    """
    base = conf_kv(
        threshold=threshold,
        tight=tight,
        loose=loose,
        protected=protected,
        mass_weight=mass_weight,
        decay=decay,
        weights=weights,
        slack=slack,
        schedule=schedule,
        by_turn=by_turn,
    )
    stored = QuantizeOld(recent, format)
    return Policy("conf-kv-int8", base.gate, base.allocator, base.scorer, base.selector, stored)


def conf_kv_l(
    *,
    threshold: Threshold = 0.7,
    tight: Tight = None,
    loose: Loose = None,
    protected: ConfidenceProtected = None,
    mass_weight: MassWeight = 0.5,
    decay: MassDecay = 0.9,
    weights: ConfidenceWeights = (0.4, 0.3, 0.3),
    slack: Slack = 0,
    schedule: EvictionSchedule = "always",
    by_turn: ByTurn = False,
    recent: BudgetRecent = None,
    format: Format = "int8",
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
    base = conf_kv_int8(
        threshold=threshold,
        tight=tight,
        loose=loose,
        protected=protected,
        mass_weight=mass_weight,
        decay=decay,
        weights=weights,
        slack=slack,
        schedule=schedule,
        by_turn=by_turn,
        recent=recent,
        format=format,
    )
    first, last = require_numbers("slope", slope, 2)
    line = Linear(slope=(first, last))
    return Policy("conf-kv-l", base.gate, line, base.scorer, base.selector, base.precision)
