"""The values that a policy and the cache exchange, and the error of both.

A policy never stores, gathers or frees memory. The cache shows it entries, and the policy answers
with the entries that stay.

Shapes: H key-value heads, G query heads per key-value head, D head size; T entries that one layer
holds for one sequence; S segments. A segment is the set of entries that one head keeps: S is 1 if
all heads of a layer keep the same entries, else H.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor


class PolicyError(ValueError):
    """A policy's name, parameters or budget are invalid; the message names valid ones."""


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive tokens of a sequence under one label, such as a page or a reply."""

    label: str
    start: int
    """Position of the first token."""
    stop: int | None = None
    """Position after the last token; None: the span ends with the newest token."""


@dataclass(frozen=True, slots=True)
class Queries:
    """The last w queries of one sequence, in the layers that a policy is shown."""

    rotated: Tensor
    """(H, G, w, D) float32: each at its own position, scaled, so that its product with a key is the
    logit."""
    positions: Tensor
    """(w,) integers, ascending."""
    frequencies: Tensor
    """(H, D / 2) float32: angles in radians by which rotary embedding turns channels i and
    i + D / 2 of a query from one position to the next; (H, 0) without rotary embedding."""


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries that one layer holds for one sequence, in order of position."""

    positions: Tensor
    """(S, T) integers, ascending: position of each entry in the sequence. Recency uses it as the
    generation step (our choice: each token of an observation is one step). Shorter segments are
    padded with -1 at the front."""
    num_seen: int
    """Tokens of the sequence so far, dropped ones included."""
    num_heads: int
    """H."""
    sinks: int
    """First entries of every segment, which are never dropped."""
    protected: int
    """Newest entries of every segment, which are never dropped."""
    tracked: Tensor | None
    """(S, T, n): statistics of the scorer's tracker; None without a tracker."""
    norms: Tensor | None
    """(H, T, n) float32: L1 norm of each entry's value after the output projection. n is G (one per
    query head) or 1 (their mean); None unless the selector asks for norms."""
    attention: Callable[[], Tensor]
    """(H, G, w, T) float32: attention weights of the last w queries (w is the scorer's `window`, or
    less at the start of a sequence). The softmax is causal over all T. Computed on first call."""
    keys_values: Callable[[], tuple[Tensor, Tensor]]
    """Keys and values (H, T, D) float32, dequantized."""
    queries: Callable[[], Queries]
    """The last w queries, of which `attention` has the weights."""
    num_units: int = 1
    """Number of layers and sequences in this view, more than 1 only for a `segmentwise` scorer. All
    units have the same number of entries to keep, of segments and of heads. S and H count all
    units, one unit after another; entries of different units never compete."""
    is_padded: bool = True
    """True if a segment may be padded; False promises that none is."""
    pinned: Tensor | None = None
    """(S, T) bool: entries that are never dropped because someone pinned them, sinks and protected
    entries excluded. All segments of a unit have the same number. None: no entry is pinned."""
    spans: Sequence[Span] = ()
    """Labelled spans of the sequence, in order; they may start after its newest token."""

    @property
    def present(self) -> Tensor:
        """(S, T) bool: False at padding."""
        return self.positions >= 0

    @property
    def candidates(self) -> Tensor:
        """(S, T) bool: the entries that may be dropped."""
        present = self.present
        may_go = present & (present.cumsum(dim=1) > self.sinks)
        may_go[:, max(0, may_go.shape[1] - self.protected) :] = False
        return may_go if self.pinned is None else may_go & ~self.pinned


@dataclass(frozen=True, slots=True)
class Drop:
    """Drop entries start..stop - 1 of every segment."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class DropOne:
    """Drop one entry of every segment."""

    entries: Tensor
    """(S,) int64: its index in each segment."""


Selection = Drop | DropOne | Tensor
"""A selector's answer: one range to drop, one entry of each segment to drop, or (S, T) bool, True
for the entries that stay."""


@dataclass(frozen=True, slots=True)
class AttentionUpdate:
    """The attention that the new queries of one forward gave to the stored entries.

    N segments of one or more sequences, with W heads each (1, or H if all heads share entries).
    """

    mass: Tensor
    """(N, T) float32: mean over the query heads of a segment and the last `num_queries` queries."""
    num_queries: int
    first: Sequence[int]
    """(N,): position of the first new query in the sequence of each segment."""
    num_new: int
    """Number of entries that this forward stored; they are the last of the T."""
    each: Callable[[int], Tensor]
    """(N, q, T) float32: mean over the query heads of a segment, for each of the last q queries."""


@dataclass(frozen=True, slots=True)
class BudgetFraction:
    """A number of entries as a fraction of the budget, rounded down once the budget is known."""

    of_budget: float
    most: int | None = None
    """Upper bound in entries; None for no bound."""
