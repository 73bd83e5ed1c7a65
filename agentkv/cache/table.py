"""Rows of several lanes in tensors that grow and shrink together, with every byte metered.

Shapes: N lanes; a field has w heads per row (1 where it says something of the row itself) and a
row's own dimensions F.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from agentkv_kernels.ops import BLOCK, Boxes

Which = int | slice | None
"""One lane, some in a row, or all."""


@dataclass(slots=True)
class Meter:
    """Bytes that a cache's storage holds now, and the most it ever held."""

    live: int = 0
    peak: int = 0

    def add(self, num_bytes: int) -> None:
        self.live += num_bytes
        if self.live > self.peak:
            self.peak = self.live


Box = tuple[int, int, int]
"""Where a lane's rows are: the first row in use, how many there are, the room for them."""


@dataclass(frozen=True, slots=True)
class Field:
    """One tensor of a table."""

    heads: int
    inner: tuple[int, ...]
    """F."""
    dtype: torch.dtype


class Table:
    """Lanes of rows, one after another in one flat tensor per field.

    A lane is a box (w, room, *F) of which rows start..start + count - 1 of each head are in use, so
    that the rows of a head lie together and lanes of any lengths take what they need: at most
    `spare` + 1 rows per lane are unused at rest.

    Args:
        spare: rows of room a lane gets beyond its rows whenever the table is laid out anew.
        meter: is told of every byte taken and given back; a copy in flight does not count.
    """

    __slots__ = (
        "_bases",
        "_boxes",
        "_meter",
        "_rooms",
        "_starts",
        "counts",
        "fields",
        "spare",
        "tensors",
    )

    def __init__(
        self,
        fields: Sequence[Field],
        num_lanes: int,
        *,
        device: torch.device,
        meter: Meter,
        spare: int = BLOCK - 1,
    ) -> None:
        self.fields, self.spare, self._meter = tuple(fields), spare, meter
        self.tensors = [torch.empty((0, *f.inner), dtype=f.dtype, device=device) for f in fields]
        self.counts = [0] * num_lanes
        """Rows of each lane. Read only."""
        self._bases, self._rooms, self._starts = [0] * num_lanes, [0] * num_lanes, [0] * num_lanes
        self._boxes: Boxes | None = None

    @property
    def num_lanes(self) -> int:
        return len(self.counts)

    @property
    def nbytes(self) -> int:
        """Bytes of all storage, unused room included."""
        return sum(tensor.untyped_storage().nbytes() for tensor in self.tensors)

    @property
    def boxes(self) -> Boxes:
        """Where the rows are, for kernels; kept until a row comes or goes."""
        found, device = self._boxes, self.tensors[0].device
        if (
            found is None
            or found.counts != tuple(self.counts)
            or found.starts != tuple(self._starts)
            or found.rooms != tuple(self._rooms)
        ):
            found = Boxes.of(self._rooms, self._starts, self.counts, device=device)
            self._boxes = found
        return found

    @property
    def is_even(self) -> bool:
        """Whether all lanes are alike, so that `all_rows` can show them as one tensor."""
        return len(self.counts) == 1 or (
            _equal(self.counts) and _equal(self._starts) and _equal(self._rooms)
        )

    def rows(self, field: int, lane: int) -> Tensor:
        """(w, T, *F), a view."""
        heads, room = self.fields[field].heads, self._rooms[lane]
        flat = self.tensors[field].narrow(0, heads * self._bases[lane], heads * room)
        return flat.view(heads, room, *flat.shape[1:]).narrow(
            1, self._starts[lane], self.counts[lane]
        )

    def all_rows(self, field: int) -> Tensor:
        """(N, w, T, *F), a view; only of an even table."""
        flat = self.tensors[field]
        shape = (len(self.counts), self.fields[field].heads, self._rooms[0], *flat.shape[1:])
        return flat.view(shape).narrow(2, self._starts[0], self.counts[0])

    def show(self, field: int, lanes: Which) -> Tensor:
        """(n, w, T, *F) of the lanes in question, a view; several must be even."""
        if isinstance(lanes, int):
            return self.rows(field, lanes)[None]
        return self.all_rows(field) if lanes is None else self.all_rows(field)[lanes]

    def extend(self, counts: int | Sequence[int]) -> None:
        """Lengthen the lanes. The new rows hold anything and must be written."""
        more = [counts] * self.num_lanes if isinstance(counts, int) else counts
        wanted = [count + new for count, new in zip(self.counts, more, strict=True)]
        for start, count, room in zip(self._starts, wanted, self._rooms, strict=True):
            if start + count > room:
                self._lay_out([None] * self.num_lanes, wanted)
                return
        self.counts = wanted

    def drop(self, runs: Sequence[tuple[int, int]]) -> None:
        """Of each lane, rows first..last - 1 go; the oldest go without anything moving."""
        # lanes that are alike stay alike, so that they can be read in one go
        alike = _equal(self.counts) and _equal(list(runs))
        from_start = all(first == 0 for first, _ in runs)
        for lane, (first, last) in enumerate(runs):
            if last > first:
                behind = self.counts[lane] - last
                self._close(lane, first, last, from_start or (alike and first <= behind))
        for room, count in zip(self._rooms, self.counts, strict=True):
            if room - count > self.spare + 1 or (room and not count):
                self._lay_out([None] * self.num_lanes, self.counts)
                return

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
        twin = Table(self.fields, len(lanes), device=device, meter=self._meter, spare=self.spare)
        counts = [self.counts[lane] for lane in lanes]
        twin.fill(
            counts,
            [
                _joined([self.rows(f, lane).flatten(0, 1) for lane in lanes], tensor)
                for f, tensor in enumerate(self.tensors)
            ],
        )
        return twin

    @property
    def layout(self) -> list[Box]:
        """Of each lane: its first row in use, its rows, its room."""
        return list(zip(self._starts, self.counts, self._rooms, strict=True))

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
        self._starts, self.counts = [box[0] for box in layout], [box[1] for box in layout]
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
        self._meter.add(-self.nbytes)

    def check(self) -> None:
        """Audit the structure. Raises AssertionError saying what is broken."""
        for start, count, room in zip(self._starts, self.counts, self._rooms, strict=True):
            assert 0 <= start and 0 <= count and start + count <= room, "rows outside their room"
            assert room - count <= self.spare + 1, f"{room - count} rows of unused room"
        ends = [base + room for base, room in zip(self._bases, self._rooms, strict=True)]
        assert all(a == b for a, b in zip([0, *ends], self._bases, strict=False)), "lanes overlap"
        for field, tensor in zip(self.fields, self.tensors, strict=True):
            assert tensor.shape == (field.heads * (ends[-1] if ends else 0), *field.inner)
            expected = tensor.numel() * tensor.element_size()
            assert tensor.untyped_storage().nbytes() == expected, "memory beyond the tensor"

    def _close(self, lane: int, first: int, last: int, move_older: bool) -> None:
        count, behind = last - first, self.counts[lane] - last
        moved, to, start = (first, count, 0) if move_older else (behind, first, last)
        for f, tensor in enumerate(self.tensors):
            if moved and tensor.numel():
                rows = self.rows(f, lane)
                rows.narrow(1, to, moved).copy_(rows.narrow(1, start, moved).clone())
        if move_older:
            self._starts[lane] += count
        self.counts[lane] -= count

    def _lay_out(
        self,
        picks: Sequence[Tensor | None],
        counts: Sequence[int],
        rooms: Sequence[int] | None = None,
    ) -> None:
        if rooms is None:
            rooms = [count + self.spare if count else 0 for count in counts]
        bases = [0]
        for room in rooms:
            bases.append(bases[-1] + room)
        held, tensors = self.nbytes, []
        for f, field in enumerate(self.fields):
            new = self.tensors[f].new_empty((field.heads * bases[-1], *field.inner))
            for lane, (base, end) in enumerate(pairwise(bases)):
                if base == end:
                    continue
                box = new[field.heads * base : field.heads * end].view(
                    field.heads, end - base, *field.inner
                )
                rows, pick = self.rows(f, lane), picks[lane]
                if pick is not None:
                    box[:, : pick.shape[0]] = rows.index_select(1, pick)
                elif num := min(rows.shape[1], counts[lane]):
                    box[:, :num] = rows[:, :num]
            tensors.append(new)
        self.tensors, self._bases, self._rooms = tensors, bases[:-1], list(rooms)
        self.counts, self._starts = list(counts), [0] * self.num_lanes
        self._meter.add(-held)
        self._meter.add(self.nbytes)


def _equal(numbers: list[Any]) -> bool:
    return not numbers or numbers.count(numbers[0]) == len(numbers)


def _joined(pieces: Sequence[Tensor], like: Tensor) -> Tensor:
    return torch.cat(list(pieces)) if pieces else like[:0]
