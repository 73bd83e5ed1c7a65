"""Published policies, and the storage formats without eviction.

Policies based on SnapKV are in `windowed.py`, CONF-KV in `confident.py`.
"""

from dataclasses import replace
from typing import Annotated, Literal

from agentkv.policies.allocators import EnergyAllocator, Shared, Uniform
from agentkv.policies.entries import BudgetFraction
from agentkv.policies.gates import Dropping, Fixed, Trimming, Unbounded
from agentkv.policies.options import (
    ColdFormat,
    ErrorAlpha,
    ErrorKernel,
    ErrorPool,
    ErrorWindow,
    EvictionSchedule,
    Help,
    Interval,
    LeftFactor,
    LookBlock,
    LookBlocks,
    LookCalm,
    LookDigests,
    LookPromotes,
    LookShare,
    LookSimilarity,
    LookStretch,
    LookThreshold,
    LookWhen,
    Recent,
    Slack,
    Sure,
)
from agentkv.policies.parameters import require_count, require_flag, require_one_of
from agentkv.policies.policy import Policy
from agentkv.policies.precision import Dense, QuantizeByRank, QuantizeOld
from agentkv.policies.recall import Always, AtRandom, LookBack, Turned, Unsure
from agentkv.policies.scorers import (
    Age,
    BySpan,
    HeavyHitters,
    KeyDifference,
    MeanAndVariance,
    Recurrence,
    RemovalError,
    Unimportance,
)
from agentkv.policies.selectors import TopK
from agentkv.policies.slots import Occasion
from agentkv_kernels.formats import BLOCK


def full() -> Policy:
    """Keeps all entries in the model's dtype: the baseline."""
    return Policy("full", Unbounded(), Shared(), Age(), TopK(), Dense())


def window(
    *, slack: Slack = 0, schedule: EvictionSchedule = "always", interval: Interval = None
) -> Policy:
    """Keeps the newest `budget` entries."""
    gate = Fixed(slack, schedule, interval)
    return Policy("window", gate, Shared(), Age(), TopK(), Dense())


def window_by_span(
    *,
    left: LeftFactor = 0.5,
    replies: Annotated[
        float, Help("Factor on scores of entries of replies (our choice: 4).")
    ] = 4.0,
    slack: Slack = 0,
    schedule: EvictionSchedule = "always",
    interval: Interval = None,
) -> Policy:
    """`window` that ages left pages faster and replies slower.

    The score of an entry is the reciprocal of its age, times the factor of its span; the newest
    entry stays. The owner of the cache labels pages and replies, as an agent does; without labels
    it is `window`.

    Source: our choice.
    """
    gate = Fixed(slack, schedule, interval)
    scorer, selector = BySpan(Age(), left, replies), TopK(protected=1)
    return Policy("window-by-span", gate, Shared(), scorer, selector, Dense())


def lookback(
    *,
    when: LookWhen = "unsure",
    threshold: LookThreshold = 0.99,
    stretch: LookStretch = 0,
    calm: LookCalm = None,
    similarity: LookSimilarity = 0.8,
    share: LookShare = 0.1,
    blocks: LookBlocks = 8,
    block: LookBlock = 16,
    promotes: LookPromotes = True,
    format: ColdFormat = "int8",
    digests: LookDigests = False,
    slack: Slack = BLOCK - 1,
    schedule: EvictionSchedule = "always",
    interval: Interval = None,
) -> Policy:
    """Keeps the newest entries hot, and fetches others back.

    All other entries are cold; a token that is unsure fetches some of them back.

    An unsure token is computed a second time, with the blocks of cold entries that draw most of its
    attention. The budget counts hot entries alone. By default a whole block of 64 entries turns
    cold at once, because the cold tier shares scales in such blocks.

    Source: our choice, after ArkVale (NeurIPS 2024) and CONF-KV (arXiv 2605.24786).
    """
    occasions: dict[str, Occasion] = {
        "unsure": Unsure(threshold, stretch, calm),
        "always": Always(),
        "turned": Turned(similarity),
        "random": AtRandom(share),
    }
    occasion = occasions[require_one_of("when", when, tuple(occasions))]
    base = window(slack=slack, schedule=schedule, interval=interval)
    return replace(
        base, name="lookback", recall=LookBack(occasion, blocks, block, promotes, format, digests)
    )


def streaming(
    *,
    sinks: Annotated[int, Help("Entries kept from the start of the sequence (paper: 4).")] = 4,
    slack: Slack = 0,
    schedule: EvictionSchedule = "always",
    interval: Interval = None,
) -> Policy:
    """Keeps the first entries (attention sinks) and the newest.

    The budget includes both. Entries keep their original positions (our choice; the paper counts
    positions inside the cache).

    Source: StreamingLLM (arXiv 2309.17453).
    """
    gate = Fixed(slack, schedule, interval)
    selector = TopK(sinks=sinks)
    return Policy("streaming", gate, Shared(), Age(), selector, Dense())


def h2o(
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
    slack: Slack = 0,
    schedule: EvictionSchedule = "always",
    interval: Interval = None,
) -> Policy:
    """Keeps the newest entries and those with most attention.

    The attention is summed since an entry was written.

    Source: H2O (arXiv 2306.14048).
    """
    gate = Fixed(slack, schedule, interval)
    newest = BudgetFraction(0.5) if protected is None else protected
    scorer = HeavyHitters(require_flag("normalize", normalize))
    return Policy("h2o", gate, Uniform(), scorer, TopK(protected=newest), Dense())


def scissorhands(
    *,
    history: Annotated[
        int, Help("Number of last queries that count (commonly quoted: 400).")
    ] = 400,
    protected: Annotated[
        int, Help("Newest entries that are never dropped (commonly quoted: 10).")
    ] = 10,
    drop: Annotated[
        float,
        Help("Fraction of the budget that eviction frees below the budget (commonly quoted: 0.5)."),
    ] = 0.5,
    variant: Annotated[
        Literal["count", "sum"],
        Help(
            '"count" ranks by the number of queries that gave an entry less than an even '
            'share (the paper), "sum" by the sum of their weights (KVCache-Factory).'
        ),
    ] = "count",
    slack: Slack = 0,
    schedule: EvictionSchedule = "always",
    interval: Interval = None,
) -> Policy:
    """Keeps entries that recent queries seldom passed over.

    The newest entries stay as well; the others are dropped in bulk.

    Source: Scissorhands (arXiv 2305.17118).
    """
    gate = Dropping(drop=drop, slack=slack, schedule=schedule, interval=interval)
    selector = TopK(protected=protected)
    scorer = Unimportance(history, variant)
    return Policy("scissorhands", gate, Uniform(), scorer, selector, Dense())


def lazy_eviction(
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
    schedule: EvictionSchedule = "always",
    interval: Interval = None,
) -> Policy:
    """Keeps the newest entries and those attention returns to.

    The others are dropped in bulk.

    Source: LazyEviction (arXiv 2506.15969).
    """
    gate, scorer = Fixed(slack, schedule, interval), Recurrence(threshold)
    return Policy("lazy-eviction", gate, Uniform(), scorer, TopK(protected=protected), Dense())


def keydiff(
    *,
    protected: Annotated[
        int, Help("Newest entries that are never dropped (our choice: 0, as in kvpress).")
    ] = 0,
    slack: Slack = 0,
    schedule: EvictionSchedule = "always",
    interval: Interval = None,
) -> Policy:
    """Keeps entries whose keys differ most from the average.

    It needs no attention weights.

    Source: KeyDiff (arXiv 2504.15364).
    """
    gate = Fixed(slack, schedule, interval)
    return Policy("keydiff", gate, Uniform(), KeyDifference(), TopK(protected=protected), Dense())


def arkv(
    *,
    window: Annotated[
        int,
        Help(
            "Number of last queries that score the entries, and number of newest entries that "
            "are never dropped (paper: 32)."
        ),
    ] = 32,
    kernel: Annotated[
        int,
        Help(
            "Width of the average pool along the entries, odd; 1 for none (5, as in its code; "
            'the paper says "smoothed").'
        ),
    ] = 5,
    gamma: Annotated[float, Help("Weight of the variance (paper: 263.81).")] = 263.81,
    tau1: Annotated[
        float,
        Help("The entropy enters a layer's quality with the exponent 1 / tau1 (paper: 7.774)."),
    ] = 7.774,
    tau2: Annotated[
        float, Help("The variance enters with the exponent 1 / tau2 (paper: 5.407).")
    ] = 5.407,
    tau3: Annotated[
        float, Help("The kurtosis enters with the exponent 1 / tau3 (paper: 5.528).")
    ] = 5.528,
    alpha: Annotated[
        float, Help("Fraction of the entries beyond the window that a trim keeps (paper: 0.75).")
    ] = 0.75,
    format: Annotated[
        str, Help("Storage format of the lower-ranked entries: fp8 (paper), int8, int4 or nf4.")
    ] = "fp8",
    estimate: Annotated[
        Literal["once", "every_trim"],
        Help(
            'When a layer\'s quality is estimated: "once" per sequence, at the end of its '
            "prefill, before the first entry is dropped and the first token is decoded "
            '(paper), or again at "every_trim", over the entries that each head then holds '
            "(agentkv's first behavior)."
        ),
    ] = "once",
    slack: Slack = 0,
    schedule: EvictionSchedule = "always",
    interval: Interval = None,
) -> Policy:
    """Keeps entries by mean and variance of recent attention.

    Lower-ranked entries are quantized.

    Source: ARKV, Algorithm 1 (Lei and Ilager).
    """
    gate = Trimming(alpha=alpha, slack=slack, schedule=schedule, interval=interval)
    scorer = MeanAndVariance(window, gamma, kernel)
    stored = QuantizeByRank(window, tau1, tau2, tau3, format, estimate)
    return Policy("arkv", gate, Uniform(), scorer, TopK(protected=window), stored)


def edie(
    *,
    window: ErrorWindow = 32,
    alpha: ErrorAlpha = 0.1,
    kernel: ErrorKernel = 7,
    pool: ErrorPool = "avg",
    slack: Slack = 0,
    schedule: EvictionSchedule = "always",
    interval: Interval = None,
) -> Policy:
    """Keeps entries that the last outputs depend on most.

    Those are the ones whose removal would change the output of the last queries most.

    Source: EDIE (Task-Aware Dynamic KV Cache Eviction via Error-Driven Importance Estimation).
    """
    gate = Fixed(slack, schedule, interval)
    scorer = RemovalError(window, alpha, kernel, pool)
    return Policy("edie", gate, Uniform(), scorer, TopK(protected=window), Dense())


def edie_tada(
    *,
    window: ErrorWindow = 32,
    alpha: ErrorAlpha = 0.1,
    kernel: ErrorKernel = 7,
    pool: ErrorPool = "avg",
    least: Annotated[
        int, Help("Entries per head that every layer keeps beyond the window (our choice: 0).")
    ] = 0,
    decay: Annotated[
        float | None,
        Help("Decay of a moving average over contexts; None: the plain mean of the paper."),
    ] = None,
    key: Annotated[
        str,
        Help(
            "Name of the stream of contexts whose energies count, such as a site (our choice: "
            "one stream for all)."
        ),
    ] = "",
    slack: Slack = 0,
    schedule: EvictionSchedule = "always",
    interval: Interval = None,
) -> Policy:
    """`edie` with budgets per layer by energies seen earlier.

    The budgets are in proportion to the energies of earlier contexts.

    Inside a layer the heads compete. A context is a forward of several tokens, every context counts
    (paper), and the first is shared out equally (our choice).

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


def int8(*, recent: Recent = 64, sure: Sure = None) -> Policy:
    """Keeps all entries, older ones in 8-bit integers.

    There is a scale per head, channel and 64 entries.

    Source: the storage of CONF-KV (arXiv 2605.24786) without its eviction.
    """
    return _stored("int8", recent, sure)


def fp8(*, recent: Recent = 64, sure: Sure = None) -> Policy:
    """`int8` in 8-bit floating point.

    There is one scale per head and entry.

    Source: the storage of ARKV without its eviction.
    """
    return _stored("fp8", recent, sure)


def int4(*, recent: Recent = 64, sure: Sure = None) -> Policy:
    """`int8` with 4 evenly spaced bits.

    There is one scale per head, entry and 32 channels.
    """
    return _stored("int4", recent, sure)


def nf4(*, recent: Recent = 64, sure: Sure = None) -> Policy:
    """`int8` with 4 normally spaced bits.

    There is one scale per head, entry and 32 channels.

    Source: NF4 of QLoRA (arXiv 2305.14314).
    """
    return _stored("nf4", recent, sure)


def streaming_int8(
    *,
    sinks: Annotated[
        int, Help("Entries kept from the start (our choice: 256, which hold an agent's goal).")
    ] = 256,
    recent: Recent = 64,
    slack: Slack = 0,
    schedule: EvictionSchedule = "always",
    interval: Interval = None,
) -> Policy:
    """Keeps the goal and the newest entries, older ones in int8.

    It looks at neither attention nor confidence, so a policy that does should beat it at equal
    bytes.

    Source: StreamingLLM (arXiv 2309.17453) with the storage of CONF-KV; the union is our choice.
    """
    base = streaming(sinks=sinks, slack=slack, schedule=schedule, interval=interval)
    stored = QuantizeOld(require_count("recent", recent), "int8")
    return replace(base, name="streaming-int8", precision=stored)


def lookback_int8(
    *,
    recent: Recent = 64,
    when: LookWhen = "unsure",
    threshold: LookThreshold = 0.99,
    stretch: LookStretch = 0,
    calm: LookCalm = None,
    similarity: LookSimilarity = 0.8,
    share: LookShare = 0.1,
    blocks: LookBlocks = 8,
    block: LookBlock = 16,
    promotes: LookPromotes = True,
    format: ColdFormat = "int8",
    digests: LookDigests = False,
    slack: Slack = BLOCK - 1,
    schedule: EvictionSchedule = "always",
    interval: Interval = None,
) -> Policy:
    """`lookback` with older hot entries in int8; recommended.

    Source: our choice; see `lookback`, and the storage of CONF-KV (arXiv 2605.24786).
    """
    base = lookback(
        when=when,
        threshold=threshold,
        stretch=stretch,
        calm=calm,
        similarity=similarity,
        share=share,
        blocks=blocks,
        block=block,
        promotes=promotes,
        format=format,
        digests=digests,
        slack=slack,
        schedule=schedule,
        interval=interval,
    )
    stored = QuantizeOld(require_count("recent", recent), "int8")
    return replace(base, name="lookback-int8", precision=stored)


def _stored(format: str, recent: int, sure: float | None) -> Policy:
    stored = QuantizeOld(require_count("recent", recent), format, sure)
    return Policy(format, Unbounded(), Shared(), Age(), TopK(), stored)
