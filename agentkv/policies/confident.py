"""CONF-KV: how sure the model is of its next token decides how many rows may stay."""

from agentkv.policies.allocators import Linear, Shared
from agentkv.policies.entries import Portion
from agentkv.policies.gates import Confident, Schedule
from agentkv.policies.parameters import require_numbers, require_part, require_share
from agentkv.policies.policy import Policy
from agentkv.policies.precision import Dense, QuantizeOld
from agentkv.policies.scorers import AttentionAndRecency
from agentkv.policies.selectors import TopK


def conf_kv(
    *,
    threshold: float = 0.7,
    tight: int | None = None,
    loose: int | None = None,
    protected: int | None = None,
    mass_weight: float = 0.5,
    decay: float = 0.9,
    weights: tuple[float, float, float] = (0.4, 0.3, 0.3),
    slack: int = 0,
    schedule: Schedule = "always",
) -> Policy:
    """Confidence picks one of two budgets; attention and recency pick the rows.

    Args:
        threshold: confidence from which the tight budget holds (paper: 0.7; 0.8 is its safer
            value).
        tight: rows while sure; None: half of loose (paper: 256 of 512).
        loose: rows otherwise; None: the cache's budget.
        protected: newest rows that never go; None: an eighth of loose, at most 64 (paper: 64 of
            512).
        mass_weight: attention's share of the score, recency has the rest (our choice: 0.5).
        decay: of the moving average of attention masses (our choice: 0.9).
        weights: of entropy, gap and top probability in the confidence (our choice).

    Source: CONF-KV (arXiv 2605.24786).
    """
    shares = require_numbers("weights", weights, 3)
    gate = Confident(threshold, (shares[0], shares[1], shares[2]), tight, loose, slack, schedule)
    newest = Portion(0.125, 64) if protected is None else protected
    scorer = AttentionAndRecency(
        require_share("mass_weight", mass_weight), require_part("decay", decay)
    )
    return Policy("conf-kv", gate, Shared(), scorer, TopK(protected=newest), Dense())


def conf_kv_int8(
    *,
    threshold: float = 0.7,
    tight: int | None = None,
    loose: int | None = None,
    protected: int | None = None,
    mass_weight: float = 0.5,
    decay: float = 0.9,
    weights: tuple[float, float, float] = (0.4, 0.3, 0.3),
    slack: int = 0,
    schedule: Schedule = "always",
    recent: int | None = None,
    format: str = "int8",
) -> Policy:
    """`conf-kv` with older rows in 8 bits.

    Args:
        recent: newest rows that stay in the model's dtype; None: half of loose, at most 256 (paper:
            256 of 512).
        format: of the older rows: int8 (paper), fp8, int4 or nf4.

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
    )
    stored = QuantizeOld(recent, format)
    return Policy("conf-kv-int8", base.gate, base.allocator, base.scorer, base.selector, stored)


def conf_kv_l(
    *,
    threshold: float = 0.7,
    tight: int | None = None,
    loose: int | None = None,
    protected: int | None = None,
    mass_weight: float = 0.5,
    decay: float = 0.9,
    weights: tuple[float, float, float] = (0.4, 0.3, 0.3),
    slack: int = 0,
    schedule: Schedule = "always",
    recent: int | None = None,
    format: str = "int8",
    slope: tuple[float, float] = (1.25, 0.75),
) -> Policy:
    """`conf-kv-int8` with more rows in shallow layers than in deep ones.

    Args:
        slope: share of the budget for the first and for the last layer, a line between (our choice:
            1.25 to 0.75, which sums to the budget; 1.0 to 0.5 keeps three quarters of it).

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
        recent=recent,
        format=format,
    )
    first, last = require_numbers("slope", slope, 2)
    line = Linear(slope=(first, last))
    return Policy("conf-kv-l", base.gate, line, base.scorer, base.selector, base.precision)
