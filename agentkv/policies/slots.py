"""The five slots of a policy, as protocols: any value that answers like this fits.

    Gate        how many rows a layer may hold now, and whether now is the time to drop some
    Allocator   how that is shared out over layers, and inside a layer over heads
    Scorer      what each row is worth
    Selector    which rows that keeps
    Precision   how kept rows are stored

Shapes: as in `rows`.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from agentkv.policies.entries import Entries, Portion, Seen, Verdict
from agentkv_kernels.ema import Ema


class Tracker(Protocol):
    """A statistic that rows carry along from forward to forward."""

    @property
    def size(self) -> int:
        """Numbers per row."""
        ...

    @property
    def dtype(self) -> torch.dtype: ...

    def num_queries(self, num_new: int) -> int:
        """Over how many of the new queries `Seen.mass` is to average."""
        ...

    @property
    def ema(self) -> Ema | None:
        """What `update` does with the first number of each row after a single query, where that is
        all it does; None: something else."""
        ...

    def update(self, column: Tensor, seen: Seen) -> None:
        """Take in what was seen. Mutates `column` (N, T, n), in which new rows hold zeros."""
        ...


class Gate(Protocol):
    """How many rows a layer may hold on average, given how sure the model is."""

    @property
    def needs_logits(self) -> bool: ...

    @property
    def evicts(self) -> bool:
        """Whether rows ever go."""
        ...

    @property
    def slack(self) -> int:
        """Entries over the budget that are let be before eviction goes back to it."""
        ...

    @property
    def bounded(self) -> bool:
        """Whether a layer never holds more than ceiling + slack rows between forwards."""
        ...

    @property
    def ceiling(self) -> int | None:
        """The most the gate ever allows; None if it has no bound or was not fitted to a budget."""
        ...

    def fitted(self, budget: int | None) -> Self:
        """This gate with everything that depends on the budget filled in. Raises PolicyError."""
        ...

    def protecting(self, protected: int) -> Self:
        """This gate, told how many rows of every head are kept whatever their score."""
        ...

    def confidence(self, logits: Tensor) -> Tensor:
        """(B,) how sure the model is, from raw logits (B, V)."""
        ...

    def budget(self, confidence: float) -> int | None:
        """Entries allowed now; None for any number."""
        ...

    def is_due(self, num_new: int, step: int) -> bool:
        """Whether rows may go after a forward of `num_new` tokens; `step` counts the forwards of a
        single token, this one included."""
        ...

    def target(self, budget: int, num_rows: int) -> int:
        """Entries per head that eviction leaves of `num_rows`, which are more than `budget` allows;
        at most `budget`."""
        ...


class Allocator(Protocol):
    """Shares a budget out over layers and heads."""

    @property
    def shared(self) -> bool:
        """Whether all heads of a layer keep the same rows."""
        ...

    @property
    def pools(self) -> bool:
        """Whether rows of different heads compete, so that their scores must be in one unit."""
        ...

    @property
    def learns(self) -> bool:
        """Whether it is a `Learner`."""
        ...

    def fitted(self, protected: int) -> Self:
        """This allocator, told how many rows of every head are kept whatever their score."""
        ...

    def layers(self, budget: int, num_layers: int, num_seen: int) -> tuple[int, ...]:
        """Entries per head in each layer; they sum to budget * num_layers, or to less
        (`Linear`)."""
        ...

    def heads(self, scores: Tensor, budget: int) -> Tensor:
        """How many candidates each lane keeps, (S,) int64.

        Args:
            scores: (S, C) float32 of the rows that may go; -inf where there is none.
            budget: candidates a lane keeps on average; the answer sums to S * budget, or to all
                there are if they are fewer. No lane is given more than it has.
        """
        ...


EnergyState = Mapping[str, tuple[int, tuple[float, ...]]]
"""Per stream of contexts: how many there were, and what they showed of every layer."""


@runtime_checkable
class Learner(Protocol):
    """What an allocator does besides if what it is told of earlier contexts moves its shares."""

    def update(self, energies: Sequence[float]) -> None:
        """Take in one context: per layer, the sum of its scores before any pool, times how far its
        attention turned the residual stream (1 - cosine of the stream before and after). Mutates
        what is remembered.
        """
        ...

    @property
    def state(self) -> EnergyState:
        """All that was learned, a copy."""
        ...

    def load_state(self, remembered: EnergyState) -> None:
        """Know this and nothing else. Mutates. Raises PolicyError."""
        ...

    def with_state(self, remembered: EnergyState) -> Self:
        """This allocator with a memory of its own, which is this."""
        ...


class Scorer(Protocol):
    """What each row is worth."""

    @property
    def window(self) -> int:
        """How many of the last queries it looks back through (`Entries.attention`); 0 for none."""
        ...

    @property
    def tracker(self) -> Tracker | None: ...

    @property
    def by_age(self) -> bool:
        """Whether newer always means better, so that nothing needs to be scored."""
        ...

    @property
    def comparable(self) -> bool:
        """Whether scores of different heads of a layer are in one unit."""
        ...

    @property
    def segmentwise(self) -> bool:
        """Whether a lane's scores, or a head's, depend on nothing but its own rows, so that those
        of several layers and sequences can be worked out at once."""
        ...

    def scores(self, rows: Entries) -> Tensor:
        """(H, T) or (S, T) float32, larger is better; what stands at filled-up places is ignored.

        Where heads share their rows, the mean over a lane's heads is used.
        """
        ...


@runtime_checkable
class Unpooled(Protocol):
    """What a scorer that pools can say besides."""

    def unpooled(self, rows: Entries) -> Tensor:
        """What each row is worth by itself: as `Scorer.scores`, before the pool."""
        ...


class Selector(Protocol):
    """Which rows a budget keeps."""

    @property
    def protected(self) -> int | Portion:
        """Newest rows of every lane that never go; always an int once `fitted`."""
        ...

    @property
    def sinks(self) -> int:
        """First rows of every lane that never go."""
        ...

    @property
    def norms(self) -> Literal["mean", "each"] | None:
        """Whether it reads `Entries.norms`, and for which query heads."""
        ...

    @property
    def needs_window(self) -> bool:
        """Whether it reads `Entries.attention` itself, so that the scorer has to keep a window."""
        ...

    def fitted(self, budget: int, tight: int) -> Self:
        """This selector for a largest and a smallest budget. Raises PolicyError."""
        ...

    def select(
        self, rows: Entries, scores: Tensor | None, budget: int, allocator: Allocator
    ) -> Verdict:
        """Which rows stay; S * budget of them, fewer than there are.

        Args:
            scores: (S, T) float32; None where newer always means better.
            budget: rows a lane keeps on average, those that never go included.
        """
        ...


class Precision(Protocol):
    """How kept rows are stored."""

    @property
    def format(self) -> str | None:
        """Of the rows that are not kept in the model's dtype (`agentkv_kernels.formats`)."""
        ...

    @property
    def recent(self) -> int | None:
        """Newest rows that stay in the model's dtype while older ones are quantised, in blocks of
        64; None: age decides nothing."""
        ...

    @property
    def by_rank(self) -> bool:
        """Whether the score decides: see `quality` and `num_dense`."""
        ...

    @property
    def estimates_once(self) -> bool:
        """Whether `quality` is asked once for each sequence and layer, after the prefill, and not
        whenever rows go."""
        ...

    def fitted(self, budget: int | None) -> Self: ...

    def quality(self, attention: Tensor) -> float:
        """How much of a layer's budget deserves the model's dtype, in the layer's own unit.

        Args:
            attention: as `Entries.attention`, with the window's own rows left out.
        """
        ...

    def num_dense(self, share: float, budget: int) -> int:
        """Entries per head that keep the model's dtype, those that never go not counted.

        Args:
            share: the layer's quality over the best layer's, in (0, 1].
            budget: the layer's rows per head, those that never go included.
        """
        ...
