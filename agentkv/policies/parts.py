"""The other slots: sharing budgets out, what rows are worth, which stay, how precisely."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from agentkv.policies.policy import Drop, PolicyError, Rows, Scorer, Verdict


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every layer gets the same."""

    def shares(self, budget: int, num_layers: int) -> tuple[int, ...]:
        return (budget,) * num_layers


@dataclass(frozen=True, slots=True)
class Age:
    """Newer is better."""

    decay: float | None = None
    by_age: bool = True

    def scores(self, rows: Rows, start: int, stop: int) -> Tensor:
        return rows.positions[start:stop].to(torch.float32)


@dataclass(frozen=True, slots=True)
class AttentionAndRecency:
    """A blend of how much attention a row has drawn lately and how new it is.

    score = mass_weight * mass + (1 - mass_weight) * recency, both stretched to [0, 1] over the rows
    that may go (all equal: 0).

    Source: CONF-KV; decay and mass_weight are lost there and ours here.
    """

    mass_weight: float
    decay: float | None
    by_age: bool = False

    def scores(self, rows: Rows, start: int, stop: int) -> Tensor:
        assert rows.mass is not None
        recency = _stretched(rows.positions[start:stop].to(torch.float32))
        return torch.lerp(recency, _stretched(rows.mass[start:stop]), self.mass_weight)


def _stretched(x: Tensor) -> Tensor:
    low, high = x.aminmax()
    # all equal gives 0 / tiny = 0
    return (x - low).div_((high - low).clamp_min_(1e-30))


@dataclass(frozen=True, slots=True)
class Best:
    """The first `sinks` and the newest `protected` rows, and the best-scored of the others.

    At equal scores the newer row stays.
    """

    sinks: int = 0
    protected: int | None = 0
    """None: an eighth of the loose budget, at most 64 (the paper's 64 at 512 and 32 at 256)."""

    def fitted(self, budget: int, tight: int) -> "Best":
        protected = min(64, budget // 8) if self.protected is None else self.protected
        protected = min(protected, tight) if self.protected is None else protected
        if self.sinks + protected > tight:
            raise PolicyError(
                f"{self.sinks} sinks and {protected} protected rows do not fit into the smallest "
                f"budget of {tight} rows"
            )
        return replace(self, protected=protected)

    def select(self, rows: Rows, budget: int, scorer: Scorer) -> Verdict:
        assert self.protected is not None and rows.num_rows > budget
        num_dropped = rows.num_rows - budget
        if scorer.by_age:
            return Drop(self.sinks, self.sinks + num_dropped)
        start, stop = self.sinks, rows.num_rows - self.protected
        scores = scorer.scores(rows, start, stop)
        if num_dropped == 1:
            # argmin answers with the first, that is the oldest, of equals
            worst = start + int(scores.argmin())
            return Drop(worst, worst + 1)
        # stable, so that of equals the older one comes first and goes
        order = torch.argsort(scores, stable=True)
        keep = torch.ones(rows.num_rows, dtype=torch.bool, device=scores.device)
        keep[order[:num_dropped] + start] = False
        return keep.nonzero().squeeze(1)


@dataclass(frozen=True, slots=True)
class Native:
    """All rows in the model's own dtype."""

    recent: int | None = None

    def fitted(self, budget: int | None) -> "Native":
        return self


@dataclass(frozen=True, slots=True)
class AgedToInt8:
    """The newest rows in the model's dtype, older ones in 8 bits, quantised once in blocks of 64.

    Rows wait until a block of 64 is full, so up to recent + 63 are in the model's dtype.
    """

    recent: int | None
    """None: half of the budget, at most 256 (the paper's 256 of 512; 128 of 256 is our choice)."""

    def fitted(self, budget: int | None) -> "AgedToInt8":
        if self.recent is not None:
            return self
        return replace(self, recent=256 if budget is None else min(256, budget // 2))
