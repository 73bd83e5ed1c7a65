"""Allocators divide a budget among layers, and inside a layer among heads.

    Uniform           equal layers and heads; each head keeps its own entries
    Shared            equal layers; all heads keep the same entries
    Linear            more entries in shallow layers; all heads keep the same entries
    Pyramid           many entries in shallow layers, few in deep ones; each head keeps its own
    Adaptive          the heads of a layer compete
    EnergyAllocator   the heads of a layer compete; the energies of earlier contexts weight layers

All counts are entries per head. `layers` includes protected entries and sinks, `heads` does not.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from agentkv.policies.entries import PolicyError
from agentkv.policies.parameters import (
    require_at_least,
    require_count,
    require_flag,
    require_numbers,
    require_one_of,
    require_part,
    require_share,
)
from agentkv.policies.rounding import (
    clamped,
    counts_of_best,
    evenly,
    num_candidates_of,
    rounded,
    rounded_segments,
    with_guaranteed,
    within,
)
from agentkv.policies.slots import EnergyState


@dataclass(frozen=True, slots=True)
class Uniform:
    """Gives every layer and every head the same number of entries."""

    shared: ClassVar[bool] = False
    pools: ClassVar[bool] = False
    learns: ClassVar[bool] = False

    def fitted(self, protected: int) -> Self:
        return self

    def layers(self, budget: int, num_layers: int, num_seen: int) -> tuple[int, ...]:
        return (budget,) * num_layers

    def heads(self, scores: Tensor, budget: int) -> Tensor:
        return evenly(num_candidates_of(scores), budget)


@dataclass(frozen=True, slots=True)
class Shared(Uniform):
    """Gives every layer the same number of entries; all heads keep the same ones."""

    shared: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Linear(Shared):
    """Decreases the budget linearly with depth; all heads of a layer keep the same entries.

    Layer l of L gets budget * (first - (first - last) * l / (L - 1)), with (first, last) the slope.
    The layers sum to L * budget * (first + last) / 2: to L * budget for (1.25, 0.75), to three
    quarters of it for (1.0, 0.5). Every layer gets at least one entry beyond protected entries and
    sinks (or the budget, if that is less); the other layers give up as much while they can.

    Source: CONF-KV-L (arXiv 2605.24786), whose formula and constants are lost: our choice.
    """

    slope: tuple[float, float] = (1.25, 0.75)
    protected: int = 0
    """Protected entries and sinks per head, filled in by `fitted`."""

    def __post_init__(self) -> None:
        first, last = require_numbers("slope", self.slope, 2)
        if not first or not last or first + last > 2 + 1e-9:
            raise PolicyError(
                "slope must be the shares of the budget for the first and the last layer, both "
                f"more than 0, together at most 2; found {self.slope!r}"
            )
        object.__setattr__(self, "slope", (first, last))  # a list, or whole numbers, from a file

    def fitted(self, protected: int) -> Self:
        return replace(self, protected=protected)

    def layers(self, budget: int, num_layers: int, num_seen: int) -> tuple[int, ...]:
        first, last = self.slope
        wanted = [budget * (first - (first - last) * part) for part in _depths(num_layers)]
        least = min(budget, self.protected + 1)
        total = max(round(budget * num_layers * (first + last) / 2), least * num_layers)
        most = max(budget, math.ceil(max(wanted)))
        return rounded(clamped(wanted, total, least, most), total)


@dataclass(frozen=True, slots=True)
class Pyramid(Uniform):
    """Decreases the budget steeply with depth; all heads of a layer get the same number.

    Let e be the budget without protected entries and sinks. The last layer gets e / beta and the
    first 2e - e / beta. If fewer tokens were seen than the first layer may keep, it keeps all of
    them and the last layer gets more. The budget is uniform while nothing exceeds it, and until 2e
    tokens were seen.

    Source: PyramidKV (arXiv 2406.02069); T counts all tokens seen, and the layers sum to
    the budget exactly, where its code loses up to L - 1 entries (both our choice).
    """

    beta: float = 20
    """Steepness; 1 is flat."""
    protected: int = 0
    """Protected entries and sinks per head, filled in by `fitted`."""

    def __post_init__(self) -> None:
        require_at_least("beta", self.beta, 1)

    def fitted(self, protected: int) -> Self:
        return replace(self, protected=protected)

    def layers(self, budget: int, num_layers: int, num_seen: int) -> tuple[int, ...]:
        average = budget - self.protected
        if average <= 0 or num_seen <= budget or num_seen < 2 * average or num_layers == 1:
            return (budget,) * num_layers
        first = min(2 * average - average / self.beta, num_seen - self.protected)
        last = 2 * average - first
        wanted = [first - (first - last) * part for part in _depths(num_layers)]
        return tuple(self.protected + entries for entries in rounded(wanted, average * num_layers))


@dataclass(frozen=True, slots=True)
class Adaptive:
    """Lets the heads of a layer compete for its entries, with a floor for each head.

    Ranking the candidates of all heads together gives the number that each head wins. With "mix" a
    head gets (1 - floor) of this number plus floor of an equal share, which is the same for every
    head; entries that a head cannot use go to the others (our choice). With "guarantee" a head
    keeps its best int(floor * budget) entries, protected entries and sinks included, and the rest
    compete.

    Source: Ada-KV (arXiv 2407.11550); `mix` is the paper's, `guarantee` is kvpress's meaning.
    """

    floor: float = 0.2
    safeguard: Literal["mix", "guarantee"] = "mix"
    over: Uniform = field(default_factory=Uniform)
    """Divides the budget among layers: Uniform() or Pyramid()."""
    protected: int = 0
    """Protected entries and sinks per head, filled in by `fitted`."""
    shared: ClassVar[bool] = False
    pools: ClassVar[bool] = True
    learns: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_share("floor", self.floor)
        require_one_of("safeguard", self.safeguard, ("mix", "guarantee"))
        if self.over.shared:
            raise PolicyError(
                f"{type(self.over).__name__} keeps one set of entries for all heads, and here they "
                "compete; use over=Uniform() or over=Pyramid()"
            )

    def fitted(self, protected: int) -> Self:
        return replace(self, over=self.over.fitted(protected), protected=protected)

    def layers(self, budget: int, num_layers: int, num_seen: int) -> tuple[int, ...]:
        return self.over.layers(budget, num_layers, num_seen)

    def heads(self, scores: Tensor, budget: int) -> Tensor:
        if self.safeguard == "guarantee":
            # kvpress lets the protected entries compete with scores above all others
            guaranteed = max(0, int(self.floor * (budget + self.protected)) - self.protected)
            return counts_of_best(with_guaranteed(scores, guaranteed), budget)
        won = counts_of_best(scores, budget)
        if self.floor == 0:
            return won
        available = num_candidates_of(scores)
        if self.floor == 1:
            return evenly(available, budget)
        mixed = (1 - self.floor) * won.to(torch.float64) + self.floor * budget
        return rounded_segments(within(mixed, available), won.sum())


@dataclass(frozen=True, slots=True)
class EnergyAllocator:
    """Divides the budget in proportion to layer energies; inside a layer the heads compete.

    `update` takes the energies of one context. Their mean over all contexts so far shares the
    budget out in proportion. Every layer keeps at least its protected entries and `least` more, and
    none gets more than the tokens seen; what that frees goes to the others in proportion. The first
    context is shared out equally. Inside a layer the best entries of all heads stay, without a
    floor. Budgets count whole entries per head; the paper counts pairs of head and entry.

    Copies that `fitted` and `replace` make share one memory.

    Source: TADA (with EDIE), equations 12 to 18. The paper does not define a context
    (`agentkv.cache.eviction.energy`), the first context, the bounds, the moving average and the
    keys; they are our choice.
    """

    least: int = 0
    """Entries per head that every layer keeps beyond its protected ones."""
    decay: float | None = None
    """Decay of a moving average over contexts; None: the plain mean of the paper."""
    key: str = ""
    """Stream of contexts that energies belong to; other streams do not count."""
    by_shift: bool = True
    """Energies are multiplied by residual shifts; False: the paper's ablation without cosine
    dissimilarity."""
    protected: int = 0
    """Protected entries and sinks per head, filled in by `fitted`."""
    memory: dict[str, tuple[int, tuple[float, ...]]] = field(
        default_factory=dict, compare=False, repr=False
    )
    """Number of contexts and mean energies so far, by key. Mutable, and no part of the value: the
    caches of a policy learn together."""
    shared: ClassVar[bool] = False
    pools: ClassVar[bool] = True
    learns: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_count("least", self.least)
        if self.decay is not None:
            require_part("decay", self.decay)
        require_flag("by_shift", self.by_shift)
        if not isinstance(self.key, str):
            raise PolicyError(f"key must be the name of a stream of contexts; found {self.key!r}")

    @property
    def state(self) -> EnergyState:
        """Number of contexts and mean energy of every layer, by key: a copy."""
        return dict(self.memory)

    def with_state(self, state: EnergyState) -> Self:
        """Return this allocator with a memory of its own that holds `state`."""
        return replace(self, memory=dict(state))

    def load_state(self, state: EnergyState) -> None:
        """Replace the memory's content by `state`. Raises PolicyError."""
        checked: dict[str, tuple[int, tuple[float, ...]]] = {}
        for key, (count, means) in state.items():
            if require_count(f"contexts of {key!r}", count) < 1 or not means:
                raise PolicyError(f"the state under {key!r} is empty")
            checked[key] = (count, require_numbers(f"energies of {key!r}", means, len(means)))
        self.memory.clear()
        self.memory.update(checked)

    def update(self, energies: Sequence[float]) -> None:
        """Take the energies of one context. Mutates the memory."""
        assert all(math.isfinite(energy) and energy >= 0 for energy in energies), energies
        count, before = self.memory.get(self.key) or (0, tuple(energies))
        self._check_layers(len(energies), before)
        share = 1 / (count + 1) if self.decay is None or not count else 1 - self.decay
        means = tuple(old + (new - old) * share for old, new in zip(before, energies, strict=True))
        self.memory[self.key] = (count + 1, means)

    def fitted(self, protected: int) -> Self:
        return replace(self, protected=protected)

    def layers(self, budget: int, num_layers: int, num_seen: int) -> tuple[int, ...]:
        _, means = self.memory.get(self.key) or (0, (1.0,) * num_layers)
        self._check_layers(num_layers, means)
        if budget >= num_seen or not any(means):
            return (budget,) * num_layers
        total = budget * num_layers
        # a layer without energy still takes its part of what the others cannot use
        weights = [max(mean / max(means), 1e-12) for mean in means]
        least = min(budget, self.protected + self.least)
        wanted = [total * weight / sum(weights) for weight in weights]
        return rounded(clamped(wanted, total, least, num_seen), total)

    def heads(self, scores: Tensor, budget: int) -> Tensor:
        return counts_of_best(scores, budget)

    def _check_layers(self, num_layers: int, means: Sequence[float]) -> None:
        if len(means) != num_layers:
            raise PolicyError(
                f"the energies under {self.key!r} belong to a model with {len(means)} layers; this "
                f"one has {num_layers}: give another key="
            )


def _depths(num_layers: int) -> list[float]:
    """Return the relative depth of each layer, 0 to 1; 0.5 for a single layer."""
    if num_layers == 1:
        return [0.5]
    return [layer / (num_layers - 1) for layer in range(num_layers)]
