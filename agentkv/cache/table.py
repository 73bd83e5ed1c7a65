"""Rows of several lanes in tensors that grow and shrink together, with every byte metered.

Shapes: N lanes; a field has w heads per row (1 where it says something of the row itself) and a
row's own dimensions F.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from agentkv.cache.meter import Meter as Meter
from agentkv_kernels.index import BASE, COUNT, ROOM, START, Addressed, Index
from agentkv_kernels.ops import BLOCK, Boxes

Which = int | slice | None
"""One lane, some in a row, or all."""

Box = tuple[int, int, int]
"""Where a lane's rows are: the first row in use, how many there are, the room for them."""


@dataclass(frozen=True, slots=True)
class Field:
    """One tensor of a table."""

    heads: int
    inner: tuple[int, ...]
    """F."""
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Of a row of one head."""
        return self.dtype.itemsize * math.prod(self.inner)


class Table(Addressed):
    """Lanes of rows, one after another in one flat tensor per field.

    A lane is a box (w, room, *F) of which rows start..start + count - 1 of each head are in use, so
    that the rows of a head lie together and lanes of any lengths take what they need: at most
    `spare` + 1 rows per lane are unused at rest.

    Args:
        spare: rows of room a lane gets beyond its rows whenever the table is laid out anew.
        meter: is told of every byte taken and given back, copies on their way included.
    """

    __slots__ = ("_boxes", "fields", "index", "meter", "num_lanes", "spare", "tensors")

    def __init__(
        self,
        fields: Sequence[Field],
        num_lanes: int,
        *,
        device: torch.device,
        meter: Meter,
        spare: int = BLOCK - 1,
    ) -> None:
        self.fields, self.spare, self.meter = tuple(fields), spare, meter
        self.num_lanes = num_lanes
        self.tensors = [torch.empty((0, *f.inner), dtype=f.dtype, device=device) for f in fields]
        self.index = Index(num_lanes, [(f.heads, f.num_bytes) for f in fields])
        """Where the rows are; compiled code adds and drops rows in it."""
        self._boxes: Boxes | None = None

    @property
    def counts(self) -> list[int]:
        """Rows of each lane."""
        return self.index.column(COUNT)

    @property
    def nbytes(self) -> int:
        """Bytes of all storage, unused room included."""
        return sum(tensor.untyped_storage().nbytes() for tensor in self.tensors)

    @property
    def boxes(self) -> Boxes:
        """Where the rows are, for kernels; kept until a row comes or goes."""
        found, device = self._boxes, self.tensors[0].device
        now = [tuple(self.index.column(which)) for which in (ROOM, START, COUNT)]
        if found is None or [found.rooms, found.starts, found.counts] != now:
            found = self._boxes = Boxes.of(*now, device=device)
        return found

    def use(self, boxes: Boxes) -> None:
        """Take in that kernels wrote rows, or let some go: `boxes` as they are now."""
        self.index.put(START, boxes.starts)
        self.index.put(COUNT, boxes.counts)
        self._boxes = boxes

    @property
    def is_even(self) -> bool:
        """Whether all lanes are alike, so that `all_rows` can show them as one tensor."""
        column = self.index.column
        return self.num_lanes == 1 or all(_equal(column(each)) for each in (ROOM, START, COUNT))

    def rows(self, field: int, lane: int) -> Tensor:
        """(w, T, *F), a view."""
        base, room, start, count = self.index.box(lane)
        return self._strided(field, base, room, start, (count,))

    def all_rows(self, field: int) -> Tensor:
        """(N, w, T, *F), a view; only of an even table."""
        base, room, start, count = self.index.box(0)
        return self._strided(field, base, room, start, (self.num_lanes, count))

    def _strided(
        self, field: int, base: int, room: int, start: int, sizes: tuple[int, ...]
    ) -> Tensor:
        """Rows of one lane, or of all: sizes (T,) or (N, T)."""
        about = self.fields[field]
        heads, cells = about.heads, math.prod(about.inner)
        steps = (heads * room * cells, room * cells, cells)[-1 - len(sizes) :]
        return self.tensors[field].as_strided(
            (*sizes[:-1], heads, sizes[-1], *about.inner),
            (*steps, *((1,) if about.inner else ())),
            (heads * base + start) * cells,
        )

    def show(self, field: int, lanes: Which) -> Tensor:
        """(n, w, T, *F) of the lanes in question, a view; several must be even."""
        if isinstance(lanes, int):
            return self.rows(field, lanes)[None]
        return self.all_rows(field) if lanes is None else self.all_rows(field)[lanes]

    def extend(self, counts: int | Sequence[int]) -> None:
        """Lengthen the lanes. The new rows hold anything and must be written."""
        more = [counts] * self.num_lanes if isinstance(counts, int) else counts
        wanted = [count + new for count, new in zip(self.counts, more, strict=True)]
        if self._has_room(wanted):
            self.index.put(COUNT, wanted)
        else:
            self._lay_out([None] * self.num_lanes, wanted)

    def make_room(self) -> None:
        """See to it that every lane has room for one more row."""
        wanted = [count + 1 for count in self.counts]
        if not self._has_room(wanted):
            rooms = [count + self.spare for count in wanted]
            self._lay_out([None] * self.num_lanes, self.counts, rooms)

    def _has_room(self, counts: Sequence[int]) -> bool:
        column = self.index.column
        return all(map(_fits, column(START), counts, column(ROOM)))

    def drop(self, runs: Sequence[tuple[int, int]]) -> None:
        """Of each lane, rows first..last - 1 go; the oldest go without anything moving."""
        # lanes that are alike stay alike, so that they can be read in one go
        counts = self.counts
        alike = _equal(counts) and _equal(list(runs))
        from_start = all(first == 0 for first, _ in runs)
        for lane, (first, last) in enumerate(runs):
            if last > first:
                behind = counts[lane] - last
                self._close(lane, first, last, from_start or (alike and first <= behind))
        self.trim()

    def trim(self) -> None:
        """Give memory back where rows have gone, but for half of `spare` (our choice)."""
        counts = self.counts
        both = zip(self.index.column(ROOM), counts, strict=True)
        if any(room - count > self.spare + 1 or (room and not count) for room, count in both):
            rooms = [count + self.spare // 2 if count else 0 for count in counts]
            self._lay_out([None] * self.num_lanes, counts, rooms)

    def keep(self, picks: Sequence[Tensor | None]) -> None:
        """Of each lane only the rows with these numbers (n,) stay, in their order; None: all."""
        if any(pick is not None for pick in picks):
            counts = [
                count if pick is None else pick.shape[0]
                for pick, count in zip(picks, self.counts, strict=True)
            ]
            self._lay_out(picks, counts)

    def take(self, lanes: Sequence[int]) -> "Table":
        """An independent copy of these lanes, on the same meter."""
        device = self.tensors[0].device
        twin = Table(self.fields, len(lanes), device=device, meter=self.meter, spare=self.spare)
        counts = self.counts
        twin._lay_out([None] * len(lanes), [counts[lane] for lane in lanes], of=(self, lanes))
        return twin

    @property
    def layout(self) -> list[Box]:
        """Of each lane: its first row in use, its rows, its room."""
        column = self.index.column
        return list(zip(column(START), self.counts, column(ROOM), strict=True))

    def packed(self, field: int) -> Tensor:
        """A copy of the rows of all lanes and nothing else, as `fill` takes them: (w * sum T, *F),
        the lanes one after another, the heads of a lane one after another."""
        pieces = [self.rows(field, lane).flatten(0, 1) for lane in range(self.num_lanes)]
        return _joined(pieces, self.tensors[field])

    def fill(self, counts: Sequence[int], packed: Sequence[Tensor]) -> None:
        """Hold these rows and no others. `packed` is copied, onto the table's device."""
        self._lay_out([None] * self.num_lanes, [0] * self.num_lanes)
        self.extend(counts)
        self._copy_in(packed)

    def fill_again(self, layout: Sequence[Box], packed: Sequence[Tensor]) -> None:
        """As `fill`, every row at the place that `layout` gave for it, so that arithmetic, which
        may depend on how memory is divided, goes on exactly as it would have."""
        empty = [0] * self.num_lanes
        self._lay_out([None] * self.num_lanes, empty, [room for _, _, room in layout])
        self.index.put(START, [start for start, _, _ in layout])
        self.index.put(COUNT, [count for _, count, _ in layout])
        self._copy_in(packed)

    def _copy_in(self, packed: Sequence[Tensor]) -> None:
        for f, (field, tensor) in enumerate(zip(self.fields, packed, strict=True)):
            start = 0
            for lane, count in enumerate(self.counts):
                piece = tensor.narrow(0, start, field.heads * count)
                self.rows(f, lane).copy_(piece.view(field.heads, count, *field.inner))
                start += field.heads * count

    def release(self) -> None:
        """Give all memory back; the table is of no use afterwards."""
        self.meter.add(-self.nbytes)
        self.tensors = [tensor.new_empty((0, *tensor.shape[1:])) for tensor in self.tensors]

    def check(self) -> None:
        """Audit the structure. Raises AssertionError saying what is broken."""
        column = self.index.column
        for start, count, room in self.layout:
            assert 0 <= start and 0 <= count and start + count <= room, "rows outside their room"
            assert room - count <= self.spare + 1, f"{room - count} rows of unused room"
        ends = [base + room for base, room in zip(column(BASE), column(ROOM), strict=True)]
        assert all(a == b for a, b in zip([0, *ends], column(BASE), strict=False)), "lanes overlap"
        assert self.index.points_at(self.tensors), "compiled code looks for the rows elsewhere"
        for field, tensor in zip(self.fields, self.tensors, strict=True):
            assert tensor.shape == (field.heads * (ends[-1] if ends else 0), *field.inner)
            assert tensor.untyped_storage().nbytes() == tensor.nbytes, "memory beyond the tensor"

    def _close(self, lane: int, first: int, last: int, move_older: bool) -> None:
        _, _, at, held = self.index.box(lane)
        count, behind = last - first, held - last
        moved, to, start = (first, count, 0) if move_older else (behind, first, last)
        for f, tensor in enumerate(self.tensors):
            if not moved or not tensor.numel():
                continue
            rows = self.rows(f, lane)
            moving = rows.narrow(1, start, moved)
            if moved > abs(to - start):  # they would be written over before they are read
                moving = moving.clone()
                with self.meter.passing(moving):
                    rows.narrow(1, to, moved).copy_(moving)
                    del moving
            else:
                rows.narrow(1, to, moved).copy_(moving)
        self.index.use(lane, at + count if move_older else at, held - count)

    def _lay_out(
        self,
        picks: Sequence[Tensor | None],
        counts: Sequence[int],
        rooms: Sequence[int] | None = None,
        of: "tuple[Table, Sequence[int]] | None" = None,
    ) -> None:
        """Hold so many rows of each lane in memory of their own, one field after another, so that
        no more than one is there twice.

        Args:
            picks: of each lane, which of its rows; None: the first of them.
            of: another table, and which of its lanes each lane is a copy of; None: this one.
        """
        source, lanes = of or (self, range(self.num_lanes))
        if rooms is None:
            rooms = [count + self.spare if count else 0 for count in counts]
        bases = [0]
        for room in rooms:
            bases.append(bases[-1] + room)
        for f, field in enumerate(self.fields):
            new = self.tensors[f].new_empty((field.heads * bases[-1], *field.inner))
            self.meter.add(new.untyped_storage().nbytes())
            for lane, (base, end) in enumerate(pairwise(bases)):
                if base < end:
                    box = new[field.heads * base : field.heads * end]
                    source._copy_out(f, lanes[lane], picks[lane], counts[lane], box)
                    del box
            self.meter.add(-self.tensors[f].untyped_storage().nbytes())
            self.tensors[f] = new
        for which, numbers in ((BASE, bases[:-1]), (ROOM, rooms), (COUNT, counts)):
            self.index.put(which, numbers)
        self.index.put(START, [0] * self.num_lanes)
        self.index.point(self.tensors)

    def _copy_out(self, f: int, lane: int, pick: Tensor | None, count: int, box: Tensor) -> None:
        """Copy rows of a lane, those of `pick` or the first `count`, to the front of a box."""
        field, rows = self.fields[f], self.rows(f, lane)
        by_head = box.view(field.heads, box.shape[0] // field.heads, *field.inner)
        if pick is not None:
            torch.index_select(rows, 1, pick, out=by_head[:, : pick.shape[0]])
        elif num := min(rows.shape[1], count):
            by_head[:, :num] = rows[:, :num]


def _fits(start: int, count: int, room: int) -> bool:
    return start + count <= room


def _equal(numbers: list[Any]) -> bool:
    return not numbers or numbers.count(numbers[0]) == len(numbers)


def _joined(pieces: Sequence[Tensor], like: Tensor) -> Tensor:
    return torch.cat(list(pieces)) if pieces else like[:0]
