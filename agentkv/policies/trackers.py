"""Statistics per entry that every forward updates.

Shapes: N segments, T entries, n numbers per entry; see `slots.Tracker`.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from agentkv.policies.entries import AttentionUpdate
from agentkv.policies.parameters import require_above, require_positive
from agentkv_kernels.ema import Ema

MOVING_QUERIES = 32
"""Number of a chunk's last queries that update an average (our choice)."""

RECURRING_QUERIES = 512
"""Number of a chunk's last queries whose weights `Recurrences` compares with its threshold (our
choice: each takes a number per entry while it does)."""


@dataclass(frozen=True, slots=True)
class MovingMass:
    """Tracks a moving average of the attention that an entry draws per query.

    mass <- decay ** q * mass + (1 - decay ** q) * (mean over the last q queries of a forward), with
    q at most 32. New entries start at their first mean.

    Source: CONF-KV (arXiv 2605.24786), whose formula is missing; the form is our choice.
    """

    decay: float
    size: ClassVar[int] = 1
    dtype: ClassVar[torch.dtype] = torch.float32

    def num_queries(self, num_new: int) -> int:
        return min(num_new, MOVING_QUERIES)

    @property
    def ema(self) -> Ema:
        return Ema(keep=self.decay, gain=1 - self.decay, starts_at_mass=True)

    def update(self, column: Tensor, seen: AttentionUpdate) -> None:
        """Update the averages in `column` (N, T, 1), in place."""
        stored = column[..., 0]
        stored[:, -seen.num_new :] = seen.mass[:, -seen.num_new :]
        stored.lerp_(seen.mass, 1 - self.decay**seen.num_queries)


@dataclass(frozen=True, slots=True)
class SummedMass:
    """Tracks the sum of attention of each entry, over all or about the last `recent` queries.

    With `recent`, a forward of q queries first scales the sum by (1 - 1 / recent) ** q, and only
    the last `recent` queries of a long chunk count (our choice: an exact sum over the last queries
    would need a number per entry and query).
    """

    recent: int | None = None
    """None: all queries count without decay."""
    counts: bool = False
    """True if a second number counts the queries that could see the entry."""
    dtype: ClassVar[torch.dtype] = torch.float32

    @property
    def size(self) -> int:
        return 2 if self.counts else 1

    def num_queries(self, num_new: int) -> int:
        return num_new if self.recent is None else min(num_new, self.recent)

    @property
    def ema(self) -> Ema | None:
        if self.counts:
            return None
        keep = 1.0 if self.recent is None else 1 - 1 / self.recent
        return Ema(keep=keep, gain=1.0, starts_at_mass=False)

    def update(self, column: Tensor, seen: AttentionUpdate) -> None:
        """Add to the sums in `column` (N, T, size), in place."""
        sums = column[..., 0]
        if self.recent is not None:
            sums.mul_((1 - 1 / self.recent) ** seen.num_new)
        sums.add_(seen.mass, alpha=seen.num_queries)
        if self.counts:
            # only later queries and its own query could see a new entry
            column[..., 1] += seen.num_new
            column[:, -seen.num_new :, 1] -= torch.arange(seen.num_new, device=column.device)


@dataclass(frozen=True, slots=True)
class Shortfalls:
    """Tracks which of the last `history` queries gave an entry less than an even share.

    Each entry has one bit per query: query t writes bit t mod history, 1 if its weight for the
    entry is below 1 / (entries it could see). New entries start with zeros: no earlier query
    passed them over (our choice).

    Source: Scissorhands (arXiv 2305.17118); the ring of bits is ours, and exact.

    Raises:
        PolicyError: `history` is not a positive whole number.
    """

    history: int
    dtype: ClassVar[torch.dtype] = torch.uint8
    ema: ClassVar[None] = None

    def __post_init__(self) -> None:
        require_positive("history", self.history)

    @property
    def size(self) -> int:
        return -(-self.history // 8)

    def num_queries(self, num_new: int) -> int:
        # `mass` is read for a single query only; several are read one by one through `each`
        return 1

    def update(self, column: Tensor, seen: AttentionUpdate) -> None:
        """Write the bits of the new queries into `column` (N, T, size), in place."""
        count = min(seen.num_new, self.history)
        below = self._below(seen, count).to(torch.uint8)
        starts = [first + seen.num_new - count for first in seen.first]
        if starts.count(starts[0]) == len(starts):
            self._write(column, below, starts[0])
            return
        # a padded batch: sequences are at different places
        for segment, start in enumerate(starts):
            self._write(column[segment, None], below[segment, None], start)

    def _write(self, column: Tensor, below: Tensor, start: int) -> None:
        """Write the bits `below` (N, count, T) of the queries from place `start` on."""
        count = below.shape[1]
        first_slot = start % self.history
        slots = [(first_slot + i) % self.history for i in range(count)]
        # one query touches one byte of each entry, and that is the common case
        is_whole = first_slot + count > self.history
        low, high = (0, self.size) if is_whole else (slots[0] // 8, slots[-1] // 8 + 1)
        device = column.device
        bits = torch.tensor([1 << slot % 8 for slot in slots], dtype=torch.uint8, device=device)
        places = torch.tensor([slot // 8 - low for slot in slots], device=device)
        # every bit occurs once, so addition equals a bitwise or
        written = bits.new_zeros(high - low).index_add_(0, places, bits)
        packed = bits.new_zeros(column.shape[0], high - low, column.shape[1])
        packed.index_add_(1, places, below * bits[:, None])
        touched = column[..., low:high]
        touched.bitwise_and_(written.bitwise_not()).bitwise_or_(packed.mT)

    def counts(self, column: Tensor) -> Tensor:
        """Count the tracked queries that passed each entry over.

        Maps (..., size) uint8 to (...) float32.
        """
        # set bits of each byte: sums of neighboring pairs, then of fours, then of all eight
        pairs = column - ((column >> 1) & 0x55)
        fours = (pairs & 0x33) + ((pairs >> 2) & 0x33)
        return ((fours + (fours >> 4)) & 0x0F).sum(dim=-1).to(torch.float32)

    @staticmethod
    def _below(seen: AttentionUpdate, count: int) -> Tensor:
        """Mark entries below an even share of each of the last queries, (N, count, T) bool."""
        num_entries = seen.mass.shape[1]
        # entries that each of the queries could see, itself included
        visible = torch.arange(num_entries - count, num_entries, device=seen.mass.device) + 1
        weights = seen.mass[:, None] if seen.num_new == 1 else seen.each(count)
        below = weights * visible[:, None] < 1
        if seen.num_new > 1:
            # a query cannot pass over a later entry
            below &= torch.arange(num_entries, device=visible.device) < visible[:, None]
        return below


@dataclass(frozen=True, slots=True)
class Recurrences:
    """Tracks when a query last activated an entry, and the longest time between two activations.

    A query activates an entry to which it gives at least `threshold`. Times are positions of
    queries. An entry begins as if the query before its own had activated it, and with a longest
    time of 0.

    Source: LazyEviction (arXiv 2506.15969), as its public code tracks decoded tokens. That code
    begins with the first decoded token, and with one time for the whole prompt; here the tokens of
    a page are tracked as they are read (our choice).

    Raises:
        PolicyError: `threshold` is not above 0.
    """

    threshold: float
    size: ClassVar[int] = 2
    dtype: ClassVar[torch.dtype] = torch.int32
    ema: ClassVar[None] = None

    def __post_init__(self) -> None:
        require_above("threshold", self.threshold, 0)

    def num_queries(self, num_new: int) -> int:
        # `mass` is read for a single query only; several are read one by one through `each`
        return 1

    def update(self, column: Tensor, seen: AttentionUpdate) -> None:
        """Write the times of the new queries into `column` (N, T, 2), in place."""
        first = torch.tensor(seen.first, dtype=torch.int32, device=column.device)[:, None]
        last, longest = column[..., 0], column[..., 1]
        new = torch.arange(seen.num_new, dtype=torch.int32, device=column.device)
        last[:, -seen.num_new :] = first + new - 1
        count = min(seen.num_new, RECURRING_QUERIES)
        weights = seen.mass[:, None] if seen.num_new == 1 else seen.each(count)  # (N, q, T)
        is_active, times = weights >= self.threshold, (first + new[-count:])[..., None]
        after = torch.where(is_active, times, last[:, None]).cummax(dim=1).values
        before = torch.cat([last[:, None], after[:, :-1]], dim=1)
        longest.copy_(torch.maximum(longest, ((times - before) * is_active).amax(dim=1)))
        last.copy_(after[:, -1])
