"""The published policies of one shape each, and the formats by themselves.

What builds on SnapKV is in `windowed.py`, CONF-KV in `confident.py`. A parameter is explained where
it first comes up; `registry.about` puts that together.
"""

from dataclasses import replace
from typing import Literal

from agentkv.policies.allocators import EnergyAllocator, Shared, Uniform
from agentkv.policies.entries import Portion
from agentkv.policies.gates import Dropping, Fixed, Schedule, Trimming, Unbounded
from agentkv.policies.parameters import require_count, require_flag
from agentkv.policies.policy import Policy
from agentkv.policies.pool import Pool
from agentkv.policies.precision import Dense, QuantizeByRank, QuantizeOld
from agentkv.policies.scorers import (
    Age,
    HeavyHitters,
    MeanAndVariance,
    RemovalError,
    Unimportance,
)
from agentkv.policies.selectors import TopK


def full() -> Policy:
    """Everything, in the model's dtype. The baseline."""
    return Policy("full", Unbounded(), Shared(), Age(), TopK(), Dense())


def window(*, slack: int = 0, schedule: Schedule = "always", interval: int | None = None) -> Policy:
    """The newest `budget` rows.

    Args:
        slack: rows over the budget that are let be before eviction goes back to it (our choice: 0).
        schedule: "always" evicts whenever a layer is over its budget, "prefill" only after a
            forward of several tokens, so that what is decoded grows ("always" is our choice: an
            agent's next observation comes; papers that look at a window of queries compress the
            prompt alone, which is "prefill").
        interval: evict after every so many decoded tokens and at no other time; None: by the
            schedule.
    """
    gate = Fixed(slack, schedule, interval)
    return Policy("window", gate, Shared(), Age(), TopK(), Dense())


def streaming(
    *,
    sinks: int = 4,
    slack: int = 0,
    schedule: Schedule = "always",
    interval: int | None = None,
) -> Policy:
    """The first rows, on which models park attention, and the newest ones.

    Both are counted in the budget. Positions stay those seen (our choice; the paper counts
    positions inside the cache).

    Args:
        sinks: rows kept from the start (paper: 4).

    Source: StreamingLLM (arXiv 2309.17453).
    """
    gate = Fixed(slack, schedule, interval)
    selector = TopK(sinks=sinks)
    return Policy("streaming", gate, Shared(), Age(), selector, Dense())


def h2o(
    *,
    protected: int | None = None,
    normalize: bool = False,
    slack: int = 0,
    schedule: Schedule = "always",
    interval: int | None = None,
) -> Policy:
    """The rows that drew most attention so far, and the newest ones.

    Args:
        protected: newest rows that never go; None: half of the budget (the paper's split).
        normalize: divide a row's sum by the queries that could see it (our choice: off, as the
            paper; on is what kvpress's ObservedAttention does).

    Source: H2O (arXiv 2306.14048).
    """
    gate = Fixed(slack, schedule, interval)
    newest = Portion(0.5) if protected is None else protected
    scorer = HeavyHitters(require_flag("normalize", normalize))
    return Policy("h2o", gate, Uniform(), scorer, TopK(protected=newest), Dense())


def scissorhands(
    *,
    history: int = 400,
    protected: int = 10,
    drop: float = 0.5,
    variant: Literal["count", "sum"] = "count",
    slack: int = 0,
    schedule: Schedule = "always",
    interval: int | None = None,
) -> Policy:
    """The rows that were seldom passed over lately, and the newest ones; drops in bulk.

    Args:
        history: queries that are remembered (commonly quoted: 400).
        protected: newest rows that never go (commonly quoted: 10).
        drop: share of the budget that eviction frees below it (commonly quoted: 0.5).
        variant: "count" of the queries that gave a row less than an even share (the paper's), or
            the "sum" of what they gave it (KVCache-Factory's).

    Source: Scissorhands (arXiv 2305.17118).
    """
    gate = Dropping(drop=drop, slack=slack, schedule=schedule, interval=interval)
    selector = TopK(protected=protected)
    scorer = Unimportance(history, variant)
    return Policy("scissorhands", gate, Uniform(), scorer, selector, Dense())


def arkv(
    *,
    window: int = 32,
    kernel: int = 5,
    gamma: float = 263.81,
    tau1: float = 7.774,
    tau2: float = 5.407,
    tau3: float = 5.528,
    alpha: float = 0.75,
    format: str = "fp8",
    estimate: Literal["once", "every_trim"] = "once",
    slack: int = 0,
    schedule: Schedule = "always",
    interval: int | None = None,
) -> Policy:
    """What the last queries look at or disagree over; the best rows exact, the rest in 8 bits.

    Args:
        window: last queries that are asked, and newest rows that never go (paper: 32).
        kernel: rows that are averaged together, odd; 1 for none (5, as in its code; the paper says
            "smoothed").
        gamma: weight of the variance (paper: 263.81).
        tau1: entropy counts with 1 / tau1 in a layer's quality (paper: 7.774).
        tau2: the variance, with 1 / tau2 (paper: 5.407).
        tau3: the kurtosis, with 1 / tau3 (paper: 5.528).
        alpha: share of the rows beyond the window that a trim leaves (paper: 0.75).
        format: of the rows that are not worth the model's dtype: fp8 (paper), int8, int4 or nf4.
        estimate: when a layer's quality is estimated: "once" for each sequence, at the end of its
            prefill, before the first row goes and the first token is decoded (paper), or at
            "every_trim" anew, over the rows that each head then holds (what agentkv did at first).

    Source: ARKV, Algorithm 1 (Lei and Ilager).
    """
    gate = Trimming(alpha=alpha, slack=slack, schedule=schedule, interval=interval)
    scorer = MeanAndVariance(window, gamma, kernel)
    stored = QuantizeByRank(window, tau1, tau2, tau3, format, estimate)
    return Policy("arkv", gate, Uniform(), scorer, TopK(protected=window), stored)


def edie(
    *,
    window: int = 32,
    alpha: float = 0.1,
    kernel: int = 7,
    pool: Pool = "avg",
    slack: int = 0,
    schedule: Schedule = "always",
    interval: int | None = None,
) -> Policy:
    """The rows without which the output of the last queries would move most.

    Args:
        window: last queries that are asked, and newest rows that never go (paper: 32).
        alpha: keeps a row that draws everything from being worth everything (paper: 0.1; 0.05 and
            0.2 did as well).
        kernel: rows that are pooled together, odd; 1 for none (paper: 7).
        pool: "avg" (its appendix, our choice) or "max" (its main text).

    Source: EDIE (Task-Aware Dynamic KV Cache Eviction via Error-Driven Importance Estimation).
    """
    gate = Fixed(slack, schedule, interval)
    scorer = RemovalError(window, alpha, kernel, pool)
    return Policy("edie", gate, Uniform(), scorer, TopK(protected=window), Dense())


def edie_tada(
    *,
    window: int = 32,
    alpha: float = 0.1,
    kernel: int = 7,
    pool: Pool = "avg",
    least: int = 0,
    decay: float | None = None,
    key: str = "",
    slack: int = 0,
    schedule: Schedule = "always",
    interval: int | None = None,
) -> Policy:
    """`edie` with rows for the layers that earlier contexts showed to need them.

    Inside a layer the heads compete. A context is a forward of several tokens, every context counts
    (paper), and the first is shared out equally (our choice).

    Args:
        least: rows per head that a layer is sure of beyond the window (our choice: 0).
        decay: of a moving average over contexts; None: the plain mean (the paper's).
        key: which stream of contexts is learned from, such as a site (our choice: one for all).

    Source: EDIE with TADA (the same paper).
    """
    base = edie(
        window=window,
        alpha=alpha,
        kernel=kernel,
        pool=pool,
        slack=slack,
        schedule=schedule,
        interval=interval,
    )
    return replace(base, name="edie-tada", allocator=EnergyAllocator(least, decay, key))


def int8(*, recent: int = 64) -> Policy:
    """Everything, older rows in 8 bits: one scale per head, channel and block of 64 rows.

    Args:
        recent: newest rows that stay in the model's dtype (our choice: 64).

    Source: the storage of CONF-KV (arXiv 2605.24786) without its eviction.
    """
    return _stored("int8", recent)


def fp8(*, recent: int = 64) -> Policy:
    """`int8` with bits that float: one scale per head and row.

    Source: the storage of ARKV without its eviction.
    """
    return _stored("fp8", recent)


def int4(*, recent: int = 64) -> Policy:
    """`int8` with 4 bits, evenly spaced: one scale per head, row and 32 channels."""
    return _stored("int4", recent)


def nf4(*, recent: int = 64) -> Policy:
    """`int8` with 4 bits, spaced as a normal distribution: one scale per head, row and 32 channels.

    Source: NF4 of QLoRA (arXiv 2305.14314).
    """
    return _stored("nf4", recent)


def _stored(format: str, recent: int) -> Policy:
    stored = QuantizeOld(require_count("recent", recent), format)
    return Policy(format, Unbounded(), Shared(), Age(), TopK(), stored)
