"""Gates decide how many entries may stay: all, a fixed budget, or by the model's confidence.

They also decide when eviction runs. A field with a `Help` is a parameter of every named policy that
is declared with the gate (`agentkv.policies.declare`).
"""

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal, Self

from torch import Tensor

from agentkv.policies.entries import PolicyError
from agentkv.policies.parameters import (
    Help,
    require_count,
    require_flag,
    require_number,
    require_numbers,
    require_one_of,
    require_part,
    require_positive,
    require_share,
)
from agentkv_kernels.confidence import confidence as confidence_of

Slack = Annotated[
    int, Help("Entries tolerated above the budget before eviction runs (our choice: 0).")
]
Schedule = Annotated[
    Literal["always", "prefill"],
    Help(
        '"always" evicts whenever a layer is over its budget; "prefill" evicts only after a '
        "forward of several tokens, so that the cache grows while decoding. Our choice is "
        '"always", because an agent receives further observations; papers that use a window of '
        'queries compress the prompt alone, which is "prefill".'
    ),
]


@dataclass(frozen=True, slots=True)
class Unbounded:
    """Keeps every entry."""

    needs_logits: ClassVar[bool] = False
    by_turn: ClassVar[bool] = False
    evicts: ClassVar[bool] = False
    slack: ClassVar[int] = 0
    bounded: ClassVar[bool] = False
    whole: ClassVar[bool] = False
    ceiling: ClassVar[int | None] = None

    def fitted(self, budget: int | None) -> Self:
        if budget is not None:
            raise PolicyError("this policy keeps every entry; leave the budget out")
        return self

    def protecting(self, protected: int) -> Self:
        return self

    def budget(self, confidence: float) -> None:
        return None

    def confidence(self, logits: Tensor) -> Tensor:
        return _full_confidence(logits)

    def is_due(self, num_new: int, step: int) -> bool:
        return False

    def target(self, budget: int, num_entries: int) -> int:
        raise AssertionError("an unbounded gate has no target")


@dataclass(frozen=True, slots=True)
class Fixed:
    """Allows the same budget at every step."""

    slack: Slack = 0
    schedule: Schedule = "always"
    interval: Annotated[
        int | None,
        Help(
            "Evict after every `interval` decoded tokens and at no other time; None: by `schedule`."
        ),
    ] = None
    ceiling: int | None = None
    whole: bool = field(default=False, repr=False)
    """Inputs are read whole, whatever the cache's `prefill` says: set by presets of papers."""
    needs_logits: ClassVar[bool] = False
    by_turn: ClassVar[bool] = False
    evicts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_count("slack", self.slack)
        require_one_of("schedule", self.schedule, ("always", "prefill"))
        if self.interval is None:
            return
        require_positive("interval", self.interval)
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
        return replace(self, ceiling=require_positive("budget", budget))

    def protecting(self, protected: int) -> Self:
        return self

    def budget(self, confidence: float) -> int | None:
        return self.ceiling

    def confidence(self, logits: Tensor) -> Tensor:
        return _full_confidence(logits)

    def is_due(self, num_new: int, step: int) -> bool:
        if self.interval is not None:
            return num_new == 1 and step % self.interval == 0
        return self.schedule == "always" or num_new > 1

    def target(self, budget: int, num_entries: int) -> int:
        return budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropping(Fixed):
    """Frees a fraction of the budget at each eviction, so that evictions are rare.

    Source: Scissorhands (arXiv 2305.17118), whose usual m is half of the budget.
    """

    drop: Annotated[
        float,
        Help("Fraction of the budget that eviction frees below the budget (commonly quoted: 0.5)."),
    ] = 0.5
    protected: int = 0
    """Protected entries and sinks per head, filled in by `protecting`; eviction stops there."""

    def __post_init__(self) -> None:
        # slots=True creates a new class, so a bare super() fails
        super(Dropping, self).__post_init__()
        require_part("drop", self.drop)

    def protecting(self, protected: int) -> Self:
        return replace(self, protected=protected)

    def target(self, budget: int, num_entries: int) -> int:
        return max(budget - _whole(self.drop * budget), min(self.protected, budget))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trimming(Fixed):
    """Keeps a fraction of the candidates at each eviction, and at most the budget.

    Source: ARKV, Algorithm 1: floor(alpha * (T - W)) of the past, W the protected window.
    """

    alpha: Annotated[
        float, Help("Fraction of the entries beyond the window that a trim keeps (paper: 0.75).")
    ] = 0.75
    protected: int = 0
    """Protected entries and sinks per head, filled in by `protecting`; the window W."""

    def __post_init__(self) -> None:
        super(Trimming, self).__post_init__()
        require_share("alpha", self.alpha)

    def protecting(self, protected: int) -> Self:
        return replace(self, protected=protected)

    def target(self, budget: int, num_entries: int) -> int:
        kept = _whole(self.alpha * max(0, num_entries - self.protected))
        return min(kept + self.protected, budget)


@dataclass(frozen=True, slots=True)
class Confident:
    """Allows fewer entries while the model is confident of its next token.

    With `by_turn` it decides after the tokens that end a turn, a forward of several, by the mean
    confidence of the tokens decoded before them; in between every layer keeps to the loose budget.

    The model counts as not confident before the first logits, and if the caller never passes any.
    Every forward therefore ends at the loose budget. If its logits are confident, the remaining
    entries are ranked again, with masses and recency rescaled over fewer entries, and cut to the
    tight budget (our choice: the cache is then bounded without logits; the paper ranks once).

    Source: CONF-KV (arXiv 2605.24786), whose formulas are missing; form and weights are our choice.
    """

    threshold: Annotated[
        float,
        Help(
            "The tight budget applies at this confidence or more (paper: 0.7, with 0.8 as the "
            "safer value)."
        ),
    ] = 0.7
    weights: Annotated[
        tuple[float, float, float],
        Help("Weights of entropy, gap and top probability in the confidence (our choice)."),
    ] = (0.4, 0.3, 0.3)
    tight: Annotated[
        int | None,
        Help("Entries while the model is confident; None: half of loose (paper: 256 of 512)."),
    ] = None
    loose: Annotated[int | None, Help("Entries otherwise; None: the cache's budget.")] = None
    slack: Slack = 0
    schedule: Schedule = "always"
    by_turn: Annotated[
        bool,
        Help(
            "Decide once a turn, after the input that ends it, by the mean confidence of the "
            "tokens decoded before; false: after every token (our choice)."
        ),
    ] = False
    whole: bool = field(default=False, repr=False)
    """Inputs are read whole, whatever the cache's `prefill` says: set by presets of papers."""
    needs_logits: ClassVar[bool] = True
    evicts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_number("threshold", self.threshold)
        weights = require_numbers("weights", self.weights, 3)
        if abs(sum(weights) - 1) > 1e-6:
            raise PolicyError(f"weights must be three shares that sum to 1; found {self.weights!r}")
        object.__setattr__(self, "weights", weights)  # a list, or whole numbers, from a file
        for name, value in (("tight", self.tight), ("loose", self.loose)):
            if value is not None:
                require_positive(name, value)
        require_count("slack", self.slack)
        require_one_of("schedule", self.schedule, ("always", "prefill"))
        require_flag("by_turn", self.by_turn)

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
        loose = require_positive("budget", loose)
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

    def target(self, budget: int, num_entries: int) -> int:
        return budget


def _full_confidence(logits: Tensor) -> Tensor:
    return logits.new_ones(logits.shape[0])


def _whole(entries: float) -> int:
    # 0.7 * 10 is a hair below 7
    return int(entries + 1e-9)


def confidence(logits: Tensor, weights: tuple[float, float, float]) -> Tensor:
    """Return the confidence in the next token, (B,) float32 in [0, 1), from raw logits (B, V).

    c = w_H * (1 - H / ln V) + w_m * sigmoid(m) + w_p * p1, with H the entropy, m the gap between
    the two best log-probabilities and p1 the best probability. Sharper logits never lower it, and
    adding a constant to all logits changes nothing. Apply temperature and truncation afterwards.

    Source: the three features are CONF-KV's; their combination is our choice.
    """
    return confidence_of(logits, weights)
