"""Recalls: a cache forgets the entries that it evicts, or keeps them for tokens that look back.

A cache whose policy looks back moves what it evicts to a cold tier. The tokens of an input may read
all of it (see `LookBack.reads`). A token that is read alone fetches the best entries if it looks
back: it is computed a second time with them, or fetches them in its only pass.
"""

import hashlib
from dataclasses import dataclass
from typing import ClassVar, Literal

from agentkv.policies.entries import PolicyError
from agentkv.policies.parameters import (
    require_count,
    require_flag,
    require_one_of,
    require_positive,
    require_share,
)
from agentkv.policies.slots import Occasion, Signal
from agentkv_kernels.layout import FORMAT_NUMBERS


@dataclass(frozen=True, slots=True)
class Forget:
    """Forgets evicted entries."""

    looks_back: ClassVar[bool] = False
    promotes: ClassVar[bool] = False
    num_queries: ClassVar[int] = 0


@dataclass(frozen=True, slots=True)
class LookBack:
    """Keeps evicted entries in a cold tier, from which a token may fetch the best.

    The best entries are those that would receive the largest share of attention from any query head
    of the token, over everything that its layer stores. They are fetched with their neighbors, in
    blocks of positions.

    Source: our choice, after ArkVale (NeurIPS 2024), whose evicted blocks come back by their
    digests, and CONF-KV (arXiv 2605.24786), whose confidence decides.
    """

    when: Occasion
    """Which tokens look back."""
    blocks: int = 8
    """Blocks that a segment fetches at once."""
    block: int = 16
    """Positions of a block: 16 stands for 0..15, 16..31 and so on; 1 for single entries."""
    promotes: bool = True
    """True: a layer keeps fetched entries, as its youngest. False: one token alone reads them."""
    format: str = "int8"
    """Format of the cold tier; "dense" stores what the layer stores."""
    digests: bool = False
    """True: a look scans digests of the blocks, which bound the shares of their entries. It reads
    less, and is less sure to find the best blocks. False: it scans all cold keys."""
    representatives: int = 0
    """Entries of each block that stand for it, for each head: a look compares blocks by their keys
    alone. They are those to which the latest queries were closest when the block was evicted. 0: a
    look scans all cold keys, or digests."""
    reads: Literal["hot", "all"] = "all"
    """Entries that an input attends to if a forward reads several of its tokens: hot ones, or all,
    cold ones too. "all" encodes an input as a full cache does, up to the rounding of the cold tier;
    then no token of it looks back."""
    short: int = 0
    """Longest input that is repaired or, with `reads="hot"` and without `repair`, whose tokens may
    all look back, so that `feed` reads them one at a time. Of any other input of several tokens the
    last one may look back, and with `reads="all"` none."""
    draw: float = 0.0
    """A block is fetched only if one of its entries would receive at least this share of attention
    from a query head."""
    repair: int = 0
    """Positions that come back before a short input is read, those that its tokens would attend to
    most; 0: none. See `Cache.repair`."""
    cold: int | None = None
    """Most cold entries of a segment, lent ones included; None: no bound.

    Where more would come, those that were evicted first are dropped until an eighth of the bound is
    free. Lent entries stay: a segment that has lent more than the bound has no others (our choice).
    """
    looks_back: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_positive("blocks", self.blocks)
        require_positive("block", self.block)
        require_flag("promotes", self.promotes)
        require_count("short", self.short)
        require_share("draw", self.draw)
        require_count("repair", self.repair)
        if self.cold is not None:
            require_positive("cold", self.cold)
        if self.repair and not self.promotes:
            raise PolicyError(
                f"repair={self.repair} brings entries back to stay, and promotes=False says that "
                "none do"
            )
        # compiled looks read these
        known = (*(name for name in FORMAT_NUMBERS if name is not None), "dense")
        require_one_of("format", self.format, known)
        require_one_of("reads", self.reads, ("hot", "all"))
        require_flag("digests", self.digests)
        self._check_representatives()
        if not isinstance(self.when, Occasion):
            raise PolicyError(
                "when must be Always(), Unsure(...), Unsurest(...), Turned(...) or AtRandom(...); "
                f"found {self.when!r}"
            )

    def _check_representatives(self) -> None:
        count = require_count("representatives", self.representatives)
        if count > self.block:
            raise PolicyError(
                f"representatives={count} of a block of {self.block} positions; take at most "
                f"{self.block}, or longer blocks"
            )
        if count and self.digests:
            raise PolicyError(
                f"representatives={count} and digests=True choose blocks in two ways; take one"
            )
        if count and self.draw:
            raise PolicyError(
                f"draw={self.draw} is a share of attention, and representatives={count} rank "
                "blocks without one; leave one of them out"
            )

    @property
    def num_queries(self) -> int:
        return max(_QUERIES[self.when.hears], CLOSEST if self.representatives else 0)


CLOSEST = 32
"""Latest queries that choose the representatives of what is evicted (our choice; InfLLM takes those
of its whole window)."""

_QUERIES: dict[Signal | None, int] = {None: 0, "confidence": 0, "rank": 0, "similarity": 2}
"""Latest queries of each layer that a signal needs."""


@dataclass(frozen=True, slots=True)
class Always:
    """Every token looks back.

    It looks in its one pass through the model, layer by layer, wherever nothing needs a first pass
    without looks (see `Cache.looks_at_once`).
    """

    hears: ClassVar[None] = None

    def is_alarm(self, signal: float, position: int, last_alarm: int | None) -> bool:
        return True

    def looks(self, position: int, last_alarm: int | None) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Unsure:
    """A token looks back if the model is unsure of the next one, and so do the tokens after it.

    The confidence is the probability of the most likely next token. It falls after something was
    forgotten (our measurement), so it is an alarm.

    Source: our choice; CONF-KV (arXiv 2605.24786) gates eviction by confidence.
    """

    threshold: float = 0.99
    """A confidence below it is an alarm."""
    stretch: int = 0
    """Tokens after an alarm that look back too."""
    calm: float | None = None
    """Right after an alarm, a confidence below this is one too: looks go on until the model is this
    sure again. None: `threshold`."""
    hears: ClassVar[Signal] = "confidence"

    def __post_init__(self) -> None:
        require_share("threshold", self.threshold)
        require_count("stretch", self.stretch)
        if self.calm is not None and require_share("calm", self.calm) < self.threshold:
            raise PolicyError(
                f"calm={self.calm} is below threshold={self.threshold}; looks end where the model "
                "is at least as sure as where they begin"
            )

    def is_alarm(self, signal: float, position: int, last_alarm: int | None) -> bool:
        if self.calm is not None and last_alarm == position - 1:
            return signal < self.calm
        return signal < self.threshold

    def looks(self, position: int, last_alarm: int | None) -> bool:
        return last_alarm is not None and position - last_alarm <= self.stretch


@dataclass(frozen=True, slots=True)
class Unsurest:
    """A share of the tokens looks back: those whose confidence is lowest.

    A token is compared with the latest ones of its sequence, so that the alarm fits any model and
    any text without a threshold. Where more tokens than 1 - `share` are equally sure, fewer look.

    Source: our choice. Ranks among earlier values hold a share whatever their distribution, as in
    conformal prediction.
    """

    share: float = 0.1
    """Share of the tokens."""
    hears: ClassVar[Signal] = "rank"

    def __post_init__(self) -> None:
        require_share("share", self.share)

    def is_alarm(self, signal: float, position: int, last_alarm: int | None) -> bool:
        return signal < self.share

    def looks(self, position: int, last_alarm: int | None) -> bool:
        return position == last_alarm


@dataclass(frozen=True, slots=True)
class Turned:
    """A token looks back if its queries have turned away from those of the token before.

    Source: FreeKV (arXiv 2505.13109), which corrects the choice of the step before where the cosine
    of the two queries is low; the mean over all layers and heads is our choice.
    """

    similarity: float = 0.8
    """A mean cosine below it is an alarm."""
    hears: ClassVar[Signal] = "similarity"

    def __post_init__(self) -> None:
        require_share("similarity", self.similarity)

    def is_alarm(self, signal: float, position: int, last_alarm: int | None) -> bool:
        return signal < self.similarity

    def looks(self, position: int, last_alarm: int | None) -> bool:
        return position == last_alarm


@dataclass(frozen=True, slots=True)
class AtRandom:
    """A share of the tokens looks back, whatever the confidence: the control of `Unsure` and
    `Unsurest`."""

    share: float
    """Share of the tokens."""
    seed: int = 0
    hears: ClassVar[Signal] = "confidence"

    def __post_init__(self) -> None:
        require_share("share", self.share)
        require_count("seed", self.seed)

    def is_alarm(self, signal: float, position: int, last_alarm: int | None) -> bool:
        # drawn by position, so that copies of a cache draw the same
        digest = hashlib.blake2b(f"{self.seed}/{position}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") < self.share * 2**64

    def looks(self, position: int, last_alarm: int | None) -> bool:
        return position == last_alarm
