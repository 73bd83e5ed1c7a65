"""Statistics that rows carry along while forwards go by.

Shapes: N lanes, T rows, n numbers per row; see `slots.Tracker`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from agentkv.policies.entries import Seen
from agentkv.policies.parameters import require_rows
from agentkv_kernels.ema import Ema

MOVING_QUERIES = 32
"""How many of a chunk's last queries move an average (our choice)."""


@dataclass(frozen=True, slots=True)
class MovingMass:
    """A moving average of the attention each row draws from one query.

    mass <- decay ** q * mass + (1 - decay ** q) * (mean over the last q queries of a forward), with
    q at most 32. New rows start at the mean they were first given.

    Source: CONF-KV (arXiv 2605.24786), whose formula is lost; the form is our choice.
    """

    decay: float

    @property
    def size(self) -> int:
        return 1

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    def num_queries(self, num_new: int) -> int:
        return min(num_new, MOVING_QUERIES)

    @property
    def ema(self) -> Ema:
        return Ema(keep=self.decay, gain=1 - self.decay, starts_at_mass=True)

    def update(self, column: Tensor, seen: Seen) -> None:
        """Move the averages in `column` (N, T, 1), in place."""
        stored = column[..., 0]
        stored[:, -seen.num_new :] = seen.mass[:, -seen.num_new :]
        stored.lerp_(seen.mass, 1 - self.decay**seen.num_queries)


@dataclass(frozen=True, slots=True)
class SummedMass:
    """All the attention each row ever drew, or that of about the last `recent` queries.

    With `recent`, what was summed before a forward of q queries shrinks by (1 - 1 / recent) ** q,
    and of a long chunk only the last `recent` queries count (our choice: a sum over exactly the
    last ones would need a number per row and query).
    """

    recent: int | None = None
    """None: every query counts, for ever."""
    counts: bool = False
    """Whether a second number says how many queries could see the row."""

    @property
    def size(self) -> int:
        return 2 if self.counts else 1

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    def num_queries(self, num_new: int) -> int:
        return num_new if self.recent is None else min(num_new, self.recent)

    @property
    def ema(self) -> Ema | None:
        if self.counts:
            return None
        keep = 1.0 if self.recent is None else 1 - 1 / self.recent
        return Ema(keep=keep, gain=1.0, starts_at_mass=False)

    def update(self, column: Tensor, seen: Seen) -> None:
        """Add to the sums in `column` (N, T, size), in place."""
        sums = column[..., 0]
        if self.recent is not None:
            sums.mul_((1 - 1 / self.recent) ** seen.num_new)
        sums.add_(seen.mass, alpha=seen.num_queries)
        if self.counts:
            # a new row was seen by those that came after it, and by itself
            column[..., 1] += seen.num_new
            column[:, -seen.num_new :, 1] -= torch.arange(seen.num_new, device=column.device)


@dataclass(frozen=True, slots=True)
class Shortfalls:
    """Which of the last `history` queries gave a row less than an even share.

    One bit per row and query: query t writes bit t mod history of every row, 1 where the weight it
    gave is below 1 / (rows it could see). Entries start with zeros: before they were there, nobody
    passed them over (our choice).

    Source: Scissorhands (arXiv 2305.17118); the ring of bits is ours, and exact.

    Raises:
        PolicyError: a history that is not a number of queries.
    """

    history: int

    def __post_init__(self) -> None:
        require_rows("history", self.history)

    @property
    def size(self) -> int:
        return -(-self.history // 8)

    @property
    def dtype(self) -> torch.dtype:
        return torch.uint8

    def num_queries(self, num_new: int) -> int:
        # the mass is read where there is one query; of more, each is looked at by itself
        return 1

    @property
    def ema(self) -> None:
        return None

    def update(self, column: Tensor, seen: Seen) -> None:
        """Write the bits of the new queries into `column` (N, T, size), in place."""
        count = min(seen.num_new, self.history)
        below = self._below(seen, count).to(torch.uint8)
        starts = [first + seen.num_new - count for first in seen.first]
        if starts.count(starts[0]) == len(starts):
            self._write(column, below, starts[0])
            return
        # a padded batch: sequences are at different places
        for lane, start in enumerate(starts):
            self._write(column[lane, None], below[lane, None], start)

    def _write(self, column: Tensor, below: Tensor, start: int) -> None:
        """Write the bits `below` (N, count, T) of the queries from place `start` on."""
        count = below.shape[1]
        first_slot = start % self.history
        slots = [(first_slot + i) % self.history for i in range(count)]
        # one query touches one byte of each row, and that is the common case
        is_whole = first_slot + count > self.history
        low, high = (0, self.size) if is_whole else (slots[0] // 8, slots[-1] // 8 + 1)
        device = column.device
        bits = torch.tensor([1 << slot % 8 for slot in slots], dtype=torch.uint8, device=device)
        places = torch.tensor([slot // 8 - low for slot in slots], device=device)
        # every bit is there once, so that adding them joins them
        written = bits.new_zeros(high - low).index_add_(0, places, bits)
        packed = bits.new_zeros(column.shape[0], high - low, column.shape[1])
        packed.index_add_(1, places, below * bits[:, None])
        touched = column[..., low:high]
        touched.bitwise_and_(written.bitwise_not()).bitwise_or_(packed.mT)

    def counts(self, column: Tensor) -> Tensor:
        """How many of the remembered queries passed each row over: (..., size) uint8 to (...)
        float32."""
        # set bits of each byte: sums of neighbouring pairs, then of fours, then of all eight
        pairs = column - ((column >> 1) & 0x55)
        fours = (pairs & 0x33) + ((pairs >> 2) & 0x33)
        return ((fours + (fours >> 4)) & 0x0F).sum(dim=-1).to(torch.float32)

    @staticmethod
    def _below(seen: Seen, count: int) -> Tensor:
        """(N, count, T) bool: who got less than an even share of each last query."""
        num_rows = seen.mass.shape[1]
        # rows that each of the queries could see, itself included
        visible = torch.arange(num_rows - count, num_rows, device=seen.mass.device) + 1
        weights = seen.mass[:, None] if seen.num_new == 1 else seen.each(count)
        below = weights * visible[:, None] < 1
        if seen.num_new > 1:
            # rows that came after a query were not passed over by it
            below &= torch.arange(num_rows, device=visible.device) < visible[:, None]
        return below
