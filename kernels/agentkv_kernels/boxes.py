"""Rows of many lanes of different lengths in flat tensors, as the kernels for a device take them.

A lane is a box of (w, room) rows, w being 1 where a field says something of the row itself, not of
each head. Boxes lie one after another, so row t of head h is flat row w * base + h * room + start
+ t. All flat tensors are contiguous; room beyond a lane's rows may hold anything, NaN included.

Shapes: N lanes, each with W key-value heads; S lanes in a sequence, so S * W heads in all; D head
size; R flat rows of a field.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from agentkv_kernels.index import Index


@dataclass(frozen=True, slots=True)
class Boxes:
    """Where the rows of each lane lie in the flat tensors of one table."""

    table: Tensor
    """(4, N) int32: base, room, start and count of each lane, on the device of the rows, so that
    kernels need not ask the host."""
    rooms: tuple[int, ...]
    starts: tuple[int, ...]
    counts: tuple[int, ...]
    """The same for the host, which lays out launches by them and need not ask the device."""

    @classmethod
    def of(
        cls,
        rooms: Sequence[int],
        starts: Sequence[int],
        counts: Sequence[int],
        *,
        device: torch.device | str,
    ) -> "Boxes":
        """Boxes one after another."""
        columns = [_bases(rooms), list(rooms), list(starts), list(counts)]
        table = uploaded(columns, dtype=torch.int32, device=torch.device(device))
        return cls(table, tuple(rooms), tuple(starts), tuple(counts))

    @property
    def num_lanes(self) -> int:
        return len(self.counts)

    @property
    def most(self) -> int:
        """Rows of the longest lane."""
        return max(self.counts, default=0)

    def rows(self, flat: Tensor, lane: int, num_heads: int) -> Tensor:
        """(w, T, ...) of one lane, a view."""
        room, base = self.rooms[lane], sum(self.rooms[:lane])
        box = flat[num_heads * base : num_heads * (base + room)]
        in_box = box.view(num_heads, room, *flat.shape[1:])
        return in_box.narrow(1, self.starts[lane], self.counts[lane])

    def used(self, starts: Sequence[int], counts: Sequence[int]) -> "Boxes":
        """The same boxes with other rows of them in use, which must lie inside."""
        self._check(starts, counts)
        return Boxes.of(self.rooms, starts, counts, device=self.table.device)

    def gone_on(self, left: Sequence[int], more: Sequence[int], table: Tensor | None) -> "Boxes":
        """The same boxes after so many rows of each lane left at its start, its count having
        changed by `more`.

        Args:
            table: what `table` is to be, if a kernel wrote it already.
        """
        starts = [start + by for start, by in zip(self.starts, left, strict=True)]
        counts = [count + by for count, by in zip(self.counts, more, strict=True)]
        if table is None:
            return self.used(starts, counts)
        self._check(starts, counts)
        return Boxes(table, self.rooms, tuple(starts), tuple(counts))

    def _check(self, starts: Sequence[int], counts: Sequence[int]) -> None:
        for start, count, room in zip(starts, counts, self.rooms, strict=True):
            assert 0 <= start and 0 <= count and start + count <= room, "rows outside their room"


def _bases(rooms: Sequence[int]) -> list[int]:
    return [0, *accumulate(rooms)][: len(rooms)]


def uploaded(
    numbers: Sequence[int] | Sequence[Sequence[int]], *, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Numbers on a device, without waiting for it."""
    if device.type != "cuda":
        return torch.tensor(numbers, dtype=dtype, device=device)
    # torch uses pinned memory again only when what was sent from it has arrived
    return torch.tensor(numbers, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


@dataclass(frozen=True, slots=True)
class DenseRows:
    """Rows in the model's dtype."""

    boxes: Boxes
    keys: Tensor
    """(R, D), already rotated; W heads in a lane."""
    values: Tensor
    """(R, D)."""


@dataclass(frozen=True, slots=True)
class Int8Rows:
    """Rows in the format `int8`: codes, and exponents that blocks of rows share."""

    boxes: Boxes
    keys: Tensor
    """(R, D) int8; W heads in a lane."""
    values: Tensor
    """(R, D) int8."""
    block_ids: Tensor
    """(R,) int32, one head in a lane: which of its lane's blocks a row belongs to. Rows of a block
    lie together, or reading is slow."""
    blocks: Boxes
    key_exponents: Tensor
    """(R, D) int8, a row of each block; W heads in a lane."""
    value_exponents: Tensor
    """(R, D) int8."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What the lanes of a layer hold. A lane's rows are first its quantised ones, then those in
    the model's dtype."""

    num_heads: int
    """W."""
    boxes: Boxes
    """Of what is known of each row."""
    positions: Tensor
    """(R,) int32, one head in a lane; -1 marks a row that is not there."""
    dense: DenseRows
    coded: Int8Rows | None
    """None where nothing is quantised."""
    is_padded: bool = False
    """Whether any position is -1. Rows that are not there may hold anything but a block id of no
    block."""

    @property
    def num_lanes(self) -> int:
        return self.boxes.num_lanes

    @property
    def head_dim(self) -> int:
        return self.dense.keys.shape[1]


@dataclass(frozen=True, slots=True)
class Drawn:
    """What `attend_lanes` returns."""

    output: Tensor
    """(N, W * G, D) in the dtype of the queries."""
    mass: Tensor | None
    """(R,) float32 in the boxes of the positions: attention each row drew, the mean over all query
    heads of its lane. A sink's share is left out. Room that no row uses holds anything."""


@dataclass(frozen=True, slots=True)
class Average:
    """A number that every row carries along, moved with each step's mass.

    new = keep * old + gain * mass. A moving average of decay d has keep d and gain 1 - d; a sum has
    keep 1 and gain 1.
    """

    numbers: Tensor
    """(R, k), one head in a lane; of float32. Only the first of the k is moved, in place."""
    keep: float
    gain: float
    starts_at_mass: bool
    """Whether the newest row takes its mass as it is, whatever its number was."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """Rows that go from one table."""

    index: Index
    """Where its fields are."""
    boxes: Boxes
    """Where its rows are. The table on the device moves on with the rows."""
    runs: Sequence[tuple[int, int, int]]
    """Of each lane: the first row that goes, how many do, and -1; or anything, 1 and the number of
    the pick that says which row."""
