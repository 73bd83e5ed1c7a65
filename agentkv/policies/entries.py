"""The little that passes between a policy and the cache, and the error of both.

A policy never stores, gathers or frees: it is shown rows and answers with the rows that stay; the
rest is the cache's job.

Shapes: H key-value heads, G query heads of each, D head size; T rows that one layer holds for one
sequence; S lanes, that is sets of rows: 1 where all heads of a layer keep the same rows, else H.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor


class PolicyError(ValueError):
    """A policy's name, parameters or budget cannot be used; the message says what can."""


@dataclass(frozen=True, slots=True)
class Entries:
    """What a policy may know of the rows one layer holds for one sequence, in order of position."""

    positions: Tensor
    """(S, T) integers, ascending: the place of each row in the sequence. It is also the generation
    step that recency goes by (our choice: each token of an observation is a step of its own). A
    lane with fewer rows than the longest is padded at its front with -1."""
    num_seen: int
    """Tokens of the sequence that were fed so far, those now gone included."""
    num_heads: int
    """H."""
    sinks: int
    """First rows of every lane that never go."""
    protected: int
    """Newest rows of every lane that never go."""
    tracked: Tensor | None
    """(S, T, n): what the scorer's tracker keeps of each row; None without a tracker."""
    norms: Tensor | None
    """(H, T, n) float32: L1 norm of each row's value after the output projection, n = G for every
    query head by itself or 1 for their mean; None unless the selector asked for it."""
    attention: Callable[[], Tensor]
    """(H, G, w, T) float32: what the last w queries (the scorer's `window`, fewer at the start of a
    sequence) give each row, softmax over all T, later rows hidden; computed when first called."""
    keys_values: Callable[[], tuple[Tensor, Tensor]]
    """Keys and values (H, T, D) float32, read back from whatever they are stored in."""
    num_units: int = 1
    """How many layers and sequences are shown at once, for a scorer that is `segmentwise`: those
    with the same rows to leave, each with as many lanes and heads. S and H are those of all of
    them, one unit after another; rows of different units never compete."""
    is_padded: bool = True
    """Whether some lane may be padded."""

    @property
    def there(self) -> Tensor:
        """(S, T) bool: False where a lane was padded."""
        return self.positions >= 0

    @property
    def candidates(self) -> Tensor:
        """(S, T) bool: the rows that may go."""
        there = self.there
        may_go = there & (there.cumsum(dim=1) > self.sinks)
        may_go[:, max(0, may_go.shape[1] - self.protected) :] = False
        return may_go


@dataclass(frozen=True, slots=True)
class Drop:
    """Entries start..stop - 1 of every lane go, the others stay."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class DropOne:
    """One row of every lane goes."""

    entries: Tensor
    """(S,) int64: which."""


Verdict = Drop | DropOne | Tensor
"""A selector's answer: one run of rows to drop, one row of each lane, or (S, T) bool, True for the
rows that stay."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the new queries of one forward gave the stored rows.

    N lanes, of one or more sequences, W heads in each (1, or all H where they share their rows).
    """

    mass: Tensor
    """(N, T) float32: mean over a lane's query heads and the last `num_queries` queries."""
    num_queries: int
    first: Sequence[int]
    """Of each lane, the place of the first new query in its sequence."""
    num_new: int
    """How many of the T rows, the last ones, were stored in this forward."""
    each: Callable[[int], Tensor]
    """(N, q, T) float32: mean over a lane's query heads, of each of the last q queries."""


@dataclass(frozen=True, slots=True)
class Portion:
    """A number of rows that is known once there is a budget: a part of it, rounded down."""

    of_budget: float
    most: int | None = None
    """Entries at most; None for no bound."""
