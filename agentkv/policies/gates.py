"""How many rows may stay now: all, always the budget, or by the model's confidence.

And when rows go: `schedule` is "always" (whenever a layer is over its budget) or "prefill" (only
after a forward of several tokens; what is decoded then grows, as in the papers that compress the
prompt once). Ours are agents, whose every observation is such a forward.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from torch import Tensor

from agentkv.policies.entries import PolicyError
from agentkv.policies.parameters import (
    require_count,
    require_number,
    require_numbers,
    require_one_of,
    require_part,
    require_rows,
    require_share,
)
from agentkv_kernels.confidence import confidence as confidence_of

Schedule = Literal["always", "prefill"]


@dataclass(frozen=True, slots=True)
class Unbounded:
    """Everything stays."""

    needs_logits: ClassVar[bool] = False
    evicts: ClassVar[bool] = False
    slack: ClassVar[int] = 0
    bounded: ClassVar[bool] = False
    ceiling: ClassVar[int | None] = None

    def fitted(self, budget: int | None) -> Self:
        if budget is not None:
            raise PolicyError("this policy keeps every row; leave the budget out")
        return self

    def protecting(self, protected: int) -> Self:
        return self

    def budget(self, confidence: float) -> None:
        return None

    def confidence(self, logits: Tensor) -> Tensor:
        return _sure(logits)

    def is_due(self, num_new: int, step: int) -> bool:
        return False

    def target(self, budget: int, num_rows: int) -> int:
        raise AssertionError("without a budget there is nothing to go back to")


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same budget at every step."""

    slack: int = 0
    schedule: Schedule = "always"
    interval: int | None = None
    """Entries go after every so many decoded tokens, and at no other time; None: by the
    schedule."""
    ceiling: int | None = None
    needs_logits: ClassVar[bool] = False
    evicts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_count("slack", self.slack)
        require_one_of("schedule", self.schedule, ("always", "prefill"))
        if self.interval is None:
            return
        require_rows("interval", self.interval)
        if self.schedule != "always":
            raise PolicyError(
                f"interval={self.interval} evicts while decoding, schedule={self.schedule!r} never "
                "does; give one of the two"
            )

    @property
    def bounded(self) -> bool:
        return self.schedule == "always" and self.interval is None

    def fitted(self, budget: int | None) -> Self:
        if budget is None:
            raise PolicyError("this policy needs a budget: tokens per layer and KV head, or bytes")
        return replace(self, ceiling=require_rows("budget", budget))

    def protecting(self, protected: int) -> Self:
        return self

    def budget(self, confidence: float) -> int | None:
        return self.ceiling

    def confidence(self, logits: Tensor) -> Tensor:
        return _sure(logits)

    def is_due(self, num_new: int, step: int) -> bool:
        if self.interval is not None:
            return num_new == 1 and step % self.interval == 0
        return self.schedule == "always" or num_new > 1

    def target(self, budget: int, num_rows: int) -> int:
        return budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropping(Fixed):
    """Over the budget a share of it goes at once, so that the next time is far off.

    Source: Scissorhands (arXiv 2305.17118), whose usual m is half of the budget.
    """

    drop: float = 0.5
    """Share of the budget that eviction frees below it."""
    protected: int = 0
    """Entries that never go, filled in by `protecting`; eviction stops there."""

    def __post_init__(self) -> None:
        # slots make a new class, of which a bare super() knows nothing
        super(Dropping, self).__post_init__()
        require_part("drop", self.drop)

    def protecting(self, protected: int) -> Self:
        return replace(self, protected=protected)

    def target(self, budget: int, num_rows: int) -> int:
        return max(budget - _whole(self.drop * budget), min(self.protected, budget))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trimming(Fixed):
    """Over the budget only a share of the rows that may go stays, and no more than the budget.

    Source: ARKV, Algorithm 1: floor(alpha * (T - W)) of the past, W the protected window.
    """

    alpha: float = 0.75
    """Share of the rows that may go that stays."""
    protected: int = 0
    """Entries that never go, filled in by `protecting`; the window W."""

    def __post_init__(self) -> None:
        super(Trimming, self).__post_init__()
        require_share("alpha", self.alpha)

    def protecting(self, protected: int) -> Self:
        return replace(self, protected=protected)

    def target(self, budget: int, num_rows: int) -> int:
        kept = _whole(self.alpha * max(0, num_rows - self.protected))
        return min(kept + self.protected, budget)


@dataclass(frozen=True, slots=True)
class Confident:
    """Few rows while the model is sure of its next token, more while it is not.

    Before the first logits, and for anyone who never hands them over, the model counts as unsure.
    So every forward ends at the loose budget, and if its logits are sure, what is left is ranked
    anew, with masses and recency stretched over fewer rows, and cut to the tight one (our choice:
    the cache is then bounded without logits; the paper ranks once).

    Source: CONF-KV (arXiv 2605.24786), whose formulas are lost; the form and the weights are ours.
    """

    threshold: float
    weights: tuple[float, float, float]
    tight: int | None
    """Entries while the confidence is at least `threshold`; None: half of loose."""
    loose: int | None
    """Entries otherwise; None: the cache's budget."""
    slack: int = 0
    schedule: Schedule = "always"
    needs_logits: ClassVar[bool] = True
    evicts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_number("threshold", self.threshold)
        if abs(sum(require_numbers("weights", self.weights, 3)) - 1) > 1e-6:
            raise PolicyError(f"weights must be three shares that sum to 1; found {self.weights!r}")
        for name, value in (("tight", self.tight), ("loose", self.loose)):
            if value is not None:
                require_rows(name, value)
        require_count("slack", self.slack)
        require_one_of("schedule", self.schedule, ("always", "prefill"))

    @property
    def ceiling(self) -> int | None:
        return self.loose

    @property
    def bounded(self) -> bool:
        return self.schedule == "always"

    def fitted(self, budget: int | None) -> Self:
        if budget is not None and self.loose is not None and budget != self.loose:
            raise PolicyError(
                f"loose={self.loose} and a budget of {budget} were given; the budget is loose"
            )
        loose = self.loose if self.loose is not None else budget
        if loose is None:
            raise PolicyError("this policy needs a budget, or its own loose=")
        loose = require_rows("budget", loose)
        tight = max(1, loose // 2) if self.tight is None else self.tight
        if tight > loose:
            raise PolicyError(f"tight={tight} is more than the loose budget of {loose}")
        return replace(self, tight=tight, loose=loose)

    def protecting(self, protected: int) -> Self:
        return self

    def budget(self, confidence: float) -> int | None:
        return self.tight if confidence >= self.threshold else self.loose

    def confidence(self, logits: Tensor) -> Tensor:
        return confidence(logits, self.weights)

    def is_due(self, num_new: int, step: int) -> bool:
        return self.schedule == "always" or num_new > 1

    def target(self, budget: int, num_rows: int) -> int:
        return budget


def _sure(logits: Tensor) -> Tensor:
    return logits.new_ones(logits.shape[0])


def _whole(rows: float) -> int:
    # 0.7 * 10 is a hair below 7
    return int(rows + 1e-9)


def confidence(logits: Tensor, weights: tuple[float, float, float]) -> Tensor:
    """How sure the model is of its next token, in [0, 1): (B,) float32 from raw logits (B, V).

    c = w_H * (1 - H / ln V) + w_m * sigmoid(m) + w_p * p1, with H the entropy, m the gap between
    the two best log-probabilities and p1 the best probability. Sharper logits never lower it, and
    adding a constant to all logits changes nothing. Temperature and truncation must come after.

    Source: the three features are CONF-KV's; their combination is our choice.
    """
    return confidence_of(logits, weights)
