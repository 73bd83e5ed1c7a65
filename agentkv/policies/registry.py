"""The named policies: a name with its parameters gives a value put together from parts."""

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from agentkv.policies.gates import Confident, Fixed, Unbounded, require_rows
from agentkv.policies.parts import Age as ByAge
from agentkv.policies.parts import AgedToInt8, AttentionAndRecency, Best, Native, Uniform
from agentkv.policies.policy import Policy, PolicyError


def full() -> Policy:
    """Everything, in the model's dtype. The baseline."""
    return Policy("full", Unbounded(), Uniform(), ByAge(), Best(), Native())


def window(*, slack: int = 0) -> Policy:
    """The newest `budget` rows.

    Args:
        slack: rows over the budget that are let be before eviction goes back to it (our choice: 0).
    """
    return Policy("window", Fixed(_count("slack", slack)), Uniform(), ByAge(), Best(), Native())


def streaming(*, sinks: int = 4, slack: int = 0) -> Policy:
    """The first rows, on which models park attention, and the newest ones, `budget` in all.

    Positions stay those seen (our choice; the paper counts positions inside the cache).

    Args:
        sinks: rows kept from the start (paper: 4).
        slack: as in `window`.

    Source: StreamingLLM (arXiv 2309.17453).
    """
    selector = Best(sinks=_count("sinks", sinks))
    gate = Fixed(_count("slack", slack))
    return Policy("streaming", gate, Uniform(), ByAge(), selector, Native())


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
        slack: rows over the budget that are let be, so that eviction comes in bulk (our choice: 0).

    Source: CONF-KV (arXiv 2605.24786).
    """
    shares = tuple(weights) if isinstance(weights, (tuple, list)) else ()
    if len(shares) != 3 or not all(_is_share(w) for w in shares) or abs(sum(shares) - 1) > 1e-6:
        raise PolicyError(f"weights must be three shares that sum to 1; found {weights!r}")
    if not _is_share(decay) or decay == 1:
        raise PolicyError(f"decay must be in [0, 1); found {decay!r}")
    if not _is_share(mass_weight):
        raise PolicyError(f"mass_weight must be in [0, 1]; found {mass_weight!r}")
    if isinstance(threshold, bool) or not isinstance(threshold, (int, float)):
        raise PolicyError(f"threshold must be a number; found {threshold!r}")
    for name, value in (("tight", tight), ("loose", loose)):
        if value is not None:
            require_rows(name, value)
    gate = Confident(
        float(threshold), (shares[0], shares[1], shares[2]), tight, loose, _count("slack", slack)
    )
    selector = Best(protected=None if protected is None else _count("protected", protected))
    scorer = AttentionAndRecency(float(mass_weight), float(decay))
    return Policy("conf-kv", gate, Uniform(), scorer, selector, Native())


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
    recent: int | None = None,
) -> Policy:
    """`conf-kv` with rows older than the newest `recent` in 8 bits.

    Args:
        recent: rows in the model's dtype; None: half of loose, at most 256 (paper: 256 of 512).

    The other arguments are those of `conf-kv`.
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
    )
    precision = AgedToInt8(None if recent is None else _count("recent", recent))
    return Policy("conf-kv-int8", base.gate, base.allocator, base.scorer, base.selector, precision)


NAMED: Mapping[str, Callable[..., Policy]] = MappingProxyType(
    {
        "full": full,
        "window": window,
        "streaming": streaming,
        "conf-kv": conf_kv,
        "conf-kv-int8": conf_kv_int8,
    }
)


def policy(name: str, **parameters: Any) -> Policy:
    """The named policy with its own parameters.

    Raises:
        PolicyError: an unknown name, a parameter the policy does not have, or a value it cannot
        take.
    """
    make = NAMED.get(name)
    if make is None:
        raise PolicyError(f"unknown policy {name!r}; known: {', '.join(sorted(NAMED))}")
    known = parameters_of(name)
    for parameter in parameters:
        if parameter not in known:
            has = f"known: {', '.join(known)}" if known else "it has none"
            raise PolicyError(f"policy {name!r} has no parameter {parameter!r}; {has}")
    try:
        made = make(**parameters)
    except TypeError as error:
        raise PolicyError(f"policy {name!r}: {error}") from error
    used = {**known, **parameters}
    return Policy(
        made.name,
        made.gate,
        made.allocator,
        made.scorer,
        made.selector,
        made.precision,
        used,
    )


def parameters_of(name: str) -> dict[str, Any]:
    """The parameters of a named policy and their defaults."""
    return {p.name: p.default for p in inspect.signature(NAMED[name]).parameters.values()}


def _is_share(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1


def _count(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise PolicyError(f"{name} must be a whole number of rows, at least 0; found {value!r}")
    return value
