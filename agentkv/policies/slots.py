"""The six slots of a policy, as protocols.

    Gate        decides how many entries a layer may hold now, and when eviction runs
    Allocator   divides this budget among layers, and inside a layer among heads
    Scorer      gives each entry a score
    Selector    chooses the entries that stay
    Precision   chooses the storage format of the entries that stay
    Recall      forgets evicted entries, or keeps them for a look back

Shapes: see `agentkv.policies.entries`.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from agentkv.policies.entries import AttentionUpdate, BudgetFraction, Entries, Selection
from agentkv_kernels.ema import Ema


class Tracker(Protocol):
    """A statistic per entry that every forward updates."""

    @property
    def size(self) -> int:
        """Number of values per entry."""

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the values."""

    def num_queries(self, num_new: int) -> int:
        """Return the number of new queries that `AttentionUpdate.mass` averages over."""

    @property
    def ema(self) -> Ema | None:
        """The rule by which `update` changes the first number of each entry after a single query;
        None: another rule."""

    def update(self, column: Tensor, seen: AttentionUpdate) -> None:
        """Add the attention of one forward. Mutates `column` (N, T, n), zero for new entries."""


class Gate(Protocol):
    """Decides how many entries a layer may hold on average, given the model's confidence."""

    @property
    def needs_logits(self) -> bool:
        """True if the budget depends on the confidence of the next token."""

    @property
    def by_turn(self) -> bool:
        """True if `budget` reads the mean confidence of a whole turn, once it has ended."""

    @property
    def evicts(self) -> bool:
        """True if eviction ever drops entries."""

    @property
    def slack(self) -> int:
        """Entries tolerated above the budget before eviction runs."""

    @property
    def bounded(self) -> bool:
        """True if a layer never holds more than ceiling + slack entries between forwards."""

    @property
    def whole(self) -> bool:
        """True if a cache reads its inputs whole, whatever its `prefill` says, so that eviction
        runs once, after their last token."""

    @property
    def ceiling(self) -> int | None:
        """The largest budget of this gate; None if it has no bound or is not fitted to a budget."""

    def fitted(self, budget: int | None) -> Self:
        """Return this gate with all budget-dependent values filled in. Raises PolicyError."""

    def protecting(self, protected: int) -> Self:
        """Return this gate for a number of entries per head that are never dropped."""

    def confidence(self, logits: Tensor) -> Tensor:
        """Return the model's confidence (B,) from raw logits (B, V)."""

    def budget(self, confidence: float) -> int | None:
        """Return the number of entries allowed now; None if unlimited."""

    def is_due(self, num_new: int, step: int) -> bool:
        """Return whether eviction may run after a forward of `num_new` tokens.

        Args:
            step: forwards of a single token so far, this one included.
        """

    def target(self, budget: int, num_entries: int) -> int:
        """Return the entries per head that eviction keeps, at most `budget`.

        Args:
            num_entries: entries held, more than `budget`.
        """


class Allocator(Protocol):
    """Divides a budget among layers and heads."""

    @property
    def shared(self) -> bool:
        """True if all heads of a layer keep the same entries."""

    @property
    def pools(self) -> bool:
        """True if entries of different heads compete, which requires comparable scores."""

    @property
    def learns(self) -> bool:
        """True if it is a `Learner`."""

    def fitted(self, protected: int) -> Self:
        """Return this allocator for a number of entries per head that are never dropped."""

    def layers(self, budget: int, num_layers: int, num_seen: int) -> tuple[int, ...]:
        """Return the entries per head of each layer. They sum to budget * num_layers, or to less
        (`Linear`)."""

    def heads(self, scores: Tensor, budget: int) -> Tensor:
        """Return the number of candidates that each segment keeps, (S,) int64.

        Args:
            scores: (S, C) float32 of the entries that may be dropped; -inf where there is none.
            budget: average candidates per segment. The counts sum to S * budget, or to the number
                of candidates if that is smaller. No count exceeds its segment's candidates.
        """


EnergyState = Mapping[str, tuple[int, tuple[float, ...]]]
"""Number of contexts and mean energy of every layer, by stream of contexts."""


@runtime_checkable
class Learner(Protocol):
    """An allocator whose shares depend on earlier contexts."""

    @property
    def by_shift(self) -> bool:
        """True if a layer's energy is multiplied by the residual shift of its attention."""

    def update(self, energies: Sequence[float]) -> None:
        """Add the energies of one context. Mutates the state.

        Args:
            energies: per layer, the sum of its scores before any pool; if `by_shift`, times the
                residual shift of its attention (1 - cosine of the residual stream before and
                after).
        """

    @property
    def state(self) -> EnergyState:
        """A copy of the state."""

    def load_state(self, state: EnergyState) -> None:
        """Replace the state. Raises PolicyError."""

    def with_state(self, state: EnergyState) -> Self:
        """Return this allocator with a state of its own, equal to `state`."""


class Scorer(Protocol):
    """Gives each entry a score."""

    @property
    def window(self) -> int:
        """Number of last queries whose attention it reads (`Entries.attention`); 0 for none."""

    @property
    def tracker(self) -> Tracker | None:
        """Statistic that the scores read; None for none."""

    @property
    def by_age(self) -> bool:
        """True if newer entries always score higher, so that no scores are needed."""

    @property
    def comparable(self) -> bool:
        """True if scores of different heads of a layer have the same unit."""

    @property
    def segmentwise(self) -> bool:
        """True if the scores of a segment or head depend on its own entries alone, so that several
        layers and sequences can be scored in one call."""

    def scores(self, entries: Entries) -> Tensor:
        """Return scores (H, T) or (S, T) float32; larger is better, and padding is ignored.

        If heads share entries, the cache uses the mean over the heads of a segment.
        """


@runtime_checkable
class Unpooled(Protocol):
    """A scorer that also gives its scores before the pool."""

    def unpooled(self, entries: Entries) -> Tensor:
        """Return scores as `Scorer.scores` does, without the pool."""


@runtime_checkable
class Phased(Protocol):
    """A scorer that reads two windows of queries: the last ones of forwards of one token, which the
    model wrote, and the last ones of forwards of several tokens, which it read."""

    @property
    def phases(self) -> tuple[str, str]:
        """Names of the two."""


@runtime_checkable
class Predictor(Protocol):
    """A scorer that turns queries to coming positions, which requires rotary embedding whose
    frequencies do not change."""

    @property
    def horizon(self) -> int:
        """Number of coming positions."""


class Selector(Protocol):
    """Chooses the entries that stay within a budget."""

    @property
    def protected(self) -> int | BudgetFraction:
        """Newest entries of every segment, never dropped; always an int once `fitted`."""

    @property
    def sinks(self) -> int:
        """First entries of every segment, never dropped."""

    @property
    def norms(self) -> Literal["mean", "each"] | None:
        """Which `Entries.norms` it reads: the mean over query heads, each head's, or none."""

    @property
    def needs_window(self) -> bool:
        """True if it reads `Entries.attention`, which requires a scorer with a window."""

    def fitted(self, budget: int, tight: int, *, leading: int = 0, pinned: int = 0) -> Self:
        """Return this selector for a largest and a smallest budget. Raises PolicyError.

        Args:
            leading: pinned tokens at the start of the sequence; they count as sinks.
            pinned: other pinned tokens.
        """

    def select(
        self, entries: Entries, scores: Tensor | None, budget: int, allocator: Allocator
    ) -> Selection:
        """Choose S * budget entries to keep, fewer than there are.

        Args:
            scores: (S, T) float32; None if the scorer is `by_age`.
            budget: average entries per segment, protected entries and sinks included.
        """


class Precision(Protocol):
    """Chooses the storage format of the entries that stay."""

    @property
    def format(self) -> str | None:
        """Format of the quantized entries (`agentkv_kernels.formats`); None: all stay dense."""

    @property
    def recent(self) -> int | None:
        """Newest entries that stay dense while older ones are quantized in blocks of 64; None: the
        format does not depend on age."""

    @property
    def sure(self) -> float | None:
        """Least confidence in the next token at which entries are quantized; None: they are after
        every forward."""

    @property
    def by_rank(self) -> bool:
        """True if the format depends on the score: see `quality` and `num_dense`."""

    @property
    def estimates_once(self) -> bool:
        """True if `quality` is evaluated once per sequence and layer, after the prefill, rather
        than at every eviction."""

    def fitted(self, budget: int | None) -> Self: ...

    def quality(self, attention: Tensor) -> float:
        """Return a layer's need for dense entries, in arbitrary units.

        Args:
            attention: as `Entries.attention`, without the window's own entries.
        """

    def num_dense(self, share: float, budget: int) -> int:
        """Return the entries per head that stay dense, protected entries and sinks not counted.

        Args:
            share: the layer's quality over the best layer's, in (0, 1].
            budget: the layer's entries per head, protected entries and sinks included.
        """


Signal = Literal["confidence", "rank", "similarity"]
"""A number per token. confidence: of the next token. rank: of this confidence among the latest ones
of its sequence, from 0 (the lowest) to 1. similarity: mean cosine of the token's queries and those
of the token before."""


@runtime_checkable
class Occasion(Protocol):
    """Decides which tokens look back."""

    @property
    def hears(self) -> Signal | None:
        """The signal that raises the alarm; None: every token looks back."""

    def is_alarm(self, signal: float, position: int, last_alarm: int | None) -> bool:
        """Return whether a token is an alarm.

        Args:
            signal: of the token; see `Signal`.
            position: of the token in its sequence.
            last_alarm: position of the latest alarm before it; None: none yet.
        """

    def looks(self, position: int, last_alarm: int | None) -> bool:
        """Return whether the token at `position` looks back.

        Args:
            last_alarm: position of the latest alarm, this token included; None: none yet.
        """


class Recall(Protocol):
    """Forgets evicted entries, or keeps them for tokens that look back."""

    @property
    def looks_back(self) -> bool:
        """True if evicted entries move to a cold tier, from which tokens fetch some."""

    @property
    def num_queries(self) -> int:
        """Latest queries of each layer that decide which tokens look back; 0 for none."""

    @property
    def promotes(self) -> bool:
        """True if a layer keeps the entries that a token has fetched."""
