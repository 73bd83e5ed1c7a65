"""How many rows may stay now: always all, always the budget, or by the model's confidence."""

import math
from dataclasses import dataclass, replace

from torch import Tensor

from agentkv.policies.policy import PolicyError


@dataclass(frozen=True, slots=True)
class Unbounded:
    """Everything stays."""

    needs_logits: bool = False
    slack: int = 0
    ceiling: int | None = None

    def fitted(self, budget: int | None) -> "Unbounded":
        if budget is not None:
            raise PolicyError("this policy keeps every row; leave the budget out")
        return self

    def budget(self, confidence: float) -> None:
        return None

    def confidence(self, logits: Tensor) -> Tensor:
        return _sure(logits)


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same budget at every step."""

    slack: int = 0
    ceiling: int | None = None
    needs_logits: bool = False

    def fitted(self, budget: int | None) -> "Fixed":
        if budget is None:
            raise PolicyError("this policy needs a budget: tokens per layer and KV head, or bytes")
        return replace(self, ceiling=require_rows("budget", budget))

    def budget(self, confidence: float) -> int | None:
        return self.ceiling

    def confidence(self, logits: Tensor) -> Tensor:
        return _sure(logits)


@dataclass(frozen=True, slots=True)
class Confident:
    """Few rows while the model is sure of its next token, more while it is not.

    Before the first logits, and for anyone who never hands them over, the model counts as unsure.

    Source: CONF-KV (arXiv 2605.24786), whose formulas are lost; the form and the weights are ours.
    """

    threshold: float
    weights: tuple[float, float, float]
    tight: int | None
    """Rows while the confidence is at least `threshold`; None: half of loose."""
    loose: int | None
    """Rows otherwise; None: the cache's budget."""
    slack: int = 0
    needs_logits: bool = True

    @property
    def ceiling(self) -> int | None:
        return self.loose

    def fitted(self, budget: int | None) -> "Confident":
        if budget is not None and self.loose is not None and budget != self.loose:
            raise PolicyError(
                f"loose={self.loose} and a budget of {budget} were given; the budget is loose"
            )
        loose = self.loose if self.loose is not None else budget
        if loose is None:
            raise PolicyError("this policy needs a budget, or its own loose=")
        loose = require_rows("budget", loose)
        tight = require_rows("tight", max(1, loose // 2) if self.tight is None else self.tight)
        if tight > loose:
            raise PolicyError(f"tight={tight} is more than the loose budget of {loose}")
        return replace(self, tight=tight, loose=loose)

    def budget(self, confidence: float) -> int | None:
        return self.tight if confidence >= self.threshold else self.loose

    def confidence(self, logits: Tensor) -> Tensor:
        return confidence(logits, self.weights)


def _sure(logits: Tensor) -> Tensor:
    return logits.new_ones(logits.shape[0])


def require_rows(name: str, value: int) -> int:
    """`value`, if it is a number of rows. Raises PolicyError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PolicyError(f"{name} must be a whole number of tokens, at least 1; found {value!r}")
    return value


def confidence(logits: Tensor, weights: tuple[float, float, float]) -> Tensor:
    """How sure the model is of its next token, in [0, 1): (B,) float32 from raw logits (B, V).

    c = w_H * (1 - H / ln V) + w_m * sigmoid(m) + w_p * p1, with H the entropy, m the gap between
    the two best log-probabilities and p1 the best probability. Sharper logits never lower it, and
    adding a constant to all logits changes nothing. Temperature and truncation must come after.

    Source: the three features are CONF-KV's; their combination is our choice.
    """
    best = logits.topk(2).values.float()  # (B, 2)
    # -inf (a forbidden token) would make 0 * inf; e**-1000 is 0 as well
    below = (logits.float() - best[:, :1]).clamp_min_(-1000)
    odds = below.exp()
    total = odds.sum(-1)
    entropy = total.log() - odds.mul_(below).sum(-1) / total
    gap = (best[:, 0] - best[:, 1]).sigmoid()
    w_entropy, w_gap, w_top = weights
    certain = 1 - entropy / math.log(logits.shape[-1])
    return w_entropy * certain + w_gap * gap + w_top / total
