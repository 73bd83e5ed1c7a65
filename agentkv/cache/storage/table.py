"""Tables: entries of several segments in tensors that grow and shrink, with every byte metered.

Shapes: N segments; a field has w heads per entry (1 for what describes an entry and not each of its
heads) and an entry's own dimensions F.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from agentkv.cache.storage.cold_memory import IN_MEMORY, ColdMemory
from agentkv.cache.storage.shared_file import MappedEntries, SharedEntries
from agentkv_kernels.formats import BLOCK
from agentkv_kernels.layout import (
    BASE,
    CAPACITY,
    COUNT,
    START,
    Addressed,
    Field,
    TableDescriptor,
    bytes_of_entry,
)
from agentkv_kernels.ragged import RaggedLayout

Which = int | slice | None
"""One segment, consecutive ones, or all."""

Run = tuple[int, int]
"""Entries first..last - 1."""

Extent = tuple[int, int, int]
"""Place of a segment's entries: first entry in use, number of entries, capacity."""


@dataclass(slots=True)
class Meter:
    """Bytes that a cache's storage holds now, and the most it ever held.

    Storage is everything that holds entries: tables, both copies of a table while it is laid out
    anew, and temporary copies of entries. Work space of attention, scores and encoding is excluded.
    """

    live: int = 0
    peak: int = 0

    def add(self, num_bytes: int) -> None:
        self.live += num_bytes
        if self.live > self.peak:
            self.peak = self.live

    @contextmanager
    def counting(self, *copies: Tensor) -> Iterator[None]:
        """Count temporary copies inside the context; none may share its storage with a table."""
        held = sum(copy.untyped_storage().nbytes() for copy in copies)
        self.add(held)
        try:
            yield
        finally:
            self.add(-held)


class EntryTable(Addressed):
    """Segments of entries, one after another in one flat tensor per field.

    A segment owns a box (w, capacity, *F) in which entries start..start + count - 1 of each head
    are in use. So the entries of a head lie together, and segments of any length take what they
    need: at rest few entries are unused.

    Args:
        spare: unused entries that a segment gets whenever the table is laid out anew; at rest it
            has at most one more.
        growth: the same as a share of the segment's entries, where that is more.
        idle: further unused entries that compiled code may leave to a segment at rest; `trim` does
            not.
        tolerated: the same for each entry in use.
        most: entries up to which a segment may get unused ones; None: any number.
        memory: where the tensors are.
        meter: counts every byte taken and returned, temporary copies included.
    """

    def __init__(
        self,
        fields: Sequence[Field],
        num_segments: int,
        *,
        device: torch.device,
        meter: Meter,
        spare: int = BLOCK - 1,
        growth: float = 0.0,
        idle: int = 0,
        tolerated: int = 0,
        most: int | None = None,
        memory: ColdMemory = IN_MEMORY,
    ) -> None:
        self.fields, self.spare, self.meter = tuple(fields), spare, meter
        self.idle, self.tolerated, self.most = idle, tolerated, most
        self.growth, self.memory = growth, memory
        self.num_segments = num_segments
        self.tensors = [torch.empty((0, *f.inner), dtype=f.dtype, device=device) for f in fields]
        self.descriptor = TableDescriptor(num_segments, fields)
        """Extents and addresses; compiled code appends and drops entries in it."""
        self._layout: RaggedLayout | None = None
        self._shared: _Shared | None = None
        self._entry_nbytes = bytes_of_entry(self.fields)

    @property
    def counts(self) -> list[int]:
        """Entries of each segment."""
        return self.descriptor.column(COUNT)

    @property
    def nbytes(self) -> int:
        """Bytes of all storage, unused capacity included, and of shared entries too.

        Unused capacity beside shared entries is address space, and is left out.
        """
        if self._shared is None:
            return sum(tensor.untyped_storage().nbytes() for tensor in self.tensors)
        return self._num_entries * self._entry_nbytes

    @property
    def own_nbytes(self) -> int:
        """Those of them that are not bytes of shared entries."""
        if self._shared is None:
            return self.nbytes
        return (self._num_entries - sum(self._shared.counts)) * self._entry_nbytes

    def _field_nbytes(self, f: int) -> int:
        if self._shared is None:
            return self.tensors[f].untyped_storage().nbytes()
        return self._num_entries * self.fields[f].heads * self.fields[f].num_bytes

    @property
    def _num_entries(self) -> int:
        return self.descriptor.count(0, self.num_segments)

    @property
    def layout(self) -> RaggedLayout:
        """Extents for kernels on devices, kept until an entry comes or goes."""
        found, device = self._layout, self.tensors[0].device
        now = [tuple(self.descriptor.column(which)) for which in (CAPACITY, START, COUNT)]
        if found is None or [found.capacities, found.starts, found.counts] != now:
            found = self._layout = RaggedLayout.of(*now, device=device)
        return found

    def set_layout(self, layout: RaggedLayout) -> None:
        """Take over the extents after a kernel has appended or dropped entries."""
        self.descriptor.set_column(START, layout.starts)
        self.descriptor.set_column(COUNT, layout.counts)
        self._layout = layout

    @property
    def is_even(self) -> bool:
        """True if all segments have equal extents, so that one tensor can show them."""
        column = self.descriptor.column
        return self.num_segments == 1 or all(
            _all_equal(column(each)) for each in (CAPACITY, START, COUNT)
        )

    def entries(self, field: int, segment: int) -> Tensor:
        """Return a view (w, T, *F) of one segment."""
        base, capacity, start, count = self.descriptor.extent(segment)
        return self._strided(field, base, capacity, start, (count,))

    def view(self, field: int, which: Which) -> Tensor:
        """Return a view (n, w, T, *F) of some segments; several must be even."""
        if isinstance(which, int):
            return self.entries(field, which)[None]
        base, capacity, start, count = self.descriptor.extent(0)
        shown = self._strided(field, base, capacity, start, (self.num_segments, count))
        return shown if which is None else shown[which]

    def _strided(
        self, field: int, base: int, capacity: int, start: int, sizes: tuple[int, ...]
    ) -> Tensor:
        """Return entries of one segment, sizes (T,), or of all, sizes (N, T)."""
        shape = self.fields[field]
        heads, cells = shape.heads, math.prod(shape.inner)
        steps = (heads * capacity * cells, capacity * cells, cells)[-1 - len(sizes) :]
        return self.tensors[field].as_strided(
            (*sizes[:-1], heads, sizes[-1], *shape.inner),
            (*steps, *((1,) if shape.inner else ())),
            (heads * base + start) * cells,
        )

    def extend(self, counts: int | Sequence[int]) -> None:
        """Lengthen the segments. The new entries hold anything and must be written."""
        more = [counts] * self.num_segments if isinstance(counts, int) else counts
        wanted = [count + new for count, new in zip(self.counts, more, strict=True)]
        if self._make_room(wanted):
            self.descriptor.set_column(COUNT, wanted)
        else:
            self._lay_out([None] * self.num_segments, wanted)

    def reserve(self, more: int = 1) -> None:
        """Give every segment capacity for `more` entries."""
        self._reserve([count + more for count in self.counts])

    def reserve_in(self, segment: int, count: int) -> None:
        """Give a segment capacity for `count` entries in all, and some more if it lacks it."""
        wanted = self.counts
        wanted[segment] = max(wanted[segment], count)
        self._reserve(wanted)

    def _reserve(self, wanted: Sequence[int]) -> None:
        """Give each segment capacity for `wanted` entries, with unused ones if one lacks it."""
        if not self._make_room(wanted):
            capacities = [count + self._spare_of(count) for count in wanted]
            self._lay_out([None] * self.num_segments, self.counts, capacities)

    def reserve_for(self, more: Sequence[int]) -> None:
        """Give each segment capacity for `more` entries and no others, until the next `trim`."""
        counts = self.counts
        wanted = [count + new for count, new in zip(counts, more, strict=True)]
        if not self._make_room(wanted):
            self._lay_out([None] * self.num_segments, counts, wanted)

    def _spare_of(self, count: int) -> int:
        """Return how many unused entries a segment of `count` entries gets."""
        spare = max(self.spare, int(self.growth * count))
        return spare if self.most is None else min(spare, max(0, self.most - count))

    def _most_unused(self, count: int) -> int:
        """Return how many unused entries a segment of `count` entries has at rest, at most."""
        return self._spare_of(count) + 1 + self.idle + self.tolerated * count

    def _make_room(self, counts: Sequence[int]) -> bool:
        """Return whether the segments have capacity for `counts` entries, once those that they hold
        are moved to their fronts if need be."""
        starts, capacities = self.descriptor.column(START), self.descriptor.column(CAPACITY)
        if all(map(_fits, starts, counts, capacities)):
            return True
        if not all(map(_fits, [0] * len(starts), counts, capacities)):
            return False
        for segment, start in enumerate(starts):
            base, capacity, _, count = self.descriptor.extent(segment)
            for f, tensor in enumerate(self.tensors):
                if start and count and tensor.numel():
                    moving = self.entries(f, segment).clone()
                    with self.meter.counting(moving):
                        self._strided(f, base, capacity, 0, (count,)).copy_(moving)
                        del moving
            self.descriptor.set_used(segment, 0, count)
        return True

    def drop(self, runs: Sequence[Run]) -> None:
        """Drop entries first..last - 1 of each segment; dropping the oldest moves nothing."""
        counts = self.counts
        if self._shared is not None and any(
            first < last < count for (first, last), count in zip(runs, counts, strict=True)
        ):
            self.own()
        self.count_growth()
        # equal segments stay equal, so that one tensor can show them
        is_even = _all_equal(counts) and _all_equal(list(runs))
        from_start = all(first == 0 for first, _ in runs)
        for segment, (first, last) in enumerate(runs):
            if last > first:
                behind = counts[segment] - last
                move_older = from_start or (is_even and first <= behind)
                self._close_gap(segment, first, last, move_older)
        if self._shared is not None:
            self._shared.limit(self.counts)
            if not self.shares_half_of(self._shared.mapped.entries.counts):
                self.own()  # or what it forgot would stay in memory
        self.count_growth()
        self.trim()

    def trim(self) -> None:
        """Return unused memory, except for half of what a new layout gets (our choice)."""
        if self._shared is not None:
            return
        counts = self.counts
        both = zip(self.descriptor.column(CAPACITY), counts, strict=True)
        if any(
            capacity - count > self._most_unused(count) - self.idle or (capacity and not count)
            for capacity, count in both
        ):
            capacities = [count + self._spare_of(count) // 2 if count else 0 for count in counts]
            self._lay_out([None] * self.num_segments, counts, capacities)

    def keep(self, picks: Sequence[Tensor | None]) -> None:
        """Keep only the entries of each segment with these numbers (n,), in this order; None:
        all."""
        if any(pick is not None for pick in picks):
            counts = [
                count if pick is None else pick.shape[0]
                for pick, count in zip(picks, self.counts, strict=True)
            ]
            self._lay_out(picks, counts)

    def take(self, segments: Sequence[int]) -> "EntryTable":
        """Return an independent copy of these segments, on the same meter."""
        device, counts = self.tensors[0].device, self.counts
        copy = EntryTable(
            self.fields,
            len(segments),
            device=device,
            meter=self.meter,
            spare=self.spare,
            growth=self.growth,
            idle=self.idle,
            tolerated=self.tolerated,
            most=self.most,
            memory=self.memory,
        )
        wanted = [counts[segment] for segment in segments]
        copy._lay_out([None] * len(segments), wanted, source=(self, segments))
        return copy

    # ---- entries that forks share

    @property
    def can_share(self) -> bool:
        """True if forks can share the entries: they are in host memory, outside any folder."""
        return self.tensors[0].device.type == "cpu" and self.memory.folder is None

    @property
    def shared(self) -> SharedEntries | None:
        """The entries that it maps; None if all memory is its own."""
        return None if self._shared is None else self._shared.mapped.entries

    @property
    def num_shared(self) -> list[int]:
        """Entries of each segment that are still those of `shared`."""
        return [0] * self.num_segments if self._shared is None else list(self._shared.counts)

    def shares_half_of(self, counts: Sequence[int]) -> bool:
        """Return whether it shares at least half as many entries as `counts` of each segment."""
        return self._shared is not None and 2 * sum(self._shared.counts) >= sum(counts)

    def use_shared(self, mapped: MappedEntries) -> None:
        """Hold entries that a file has, in a mapping of this table's cache alone, and further ones.

        Until an entry other than the newest is dropped, or one is changed, nothing is copied.
        """
        entries = mapped.entries
        self.count_growth()
        self.meter.add(-self.nbytes)
        self.tensors = entries.tensors(mapped.view)
        self._leave_shared()
        columns = (
            (BASE, [0, *accumulate(entries.capacities)][:-1]),
            (CAPACITY, entries.capacities),
            (START, [0] * self.num_segments),
            (COUNT, mapped.counts),
        )
        for which, numbers in columns:
            self.descriptor.set_column(which, numbers)
        self.descriptor.point(self.tensors)
        self._layout, self._shared = None, _Shared(mapped, list(mapped.counts), 0)
        entries.tables.add(self)
        self._append(mapped.more)
        self.count_growth()

    def _append(self, more: Sequence[Sequence[Tensor]]) -> None:
        """Append entries (w, n, *F) of each segment and field; nothing for no segments."""
        if not more:
            return
        self.extend([fields[0].shape[1] for fields in more])
        for segment, fields in enumerate(more):
            for f, new in enumerate(fields):
                held = self.entries(f, segment)
                held[:, held.shape[1] - new.shape[1] :] = new

    def note_shared(self) -> None:
        """Take all entries as shared, after those that it lacked were added to the file."""
        assert self._shared is not None
        self._shared.counts = self.counts
        self._shared.forget_writes()

    def own(self) -> None:
        """Copy shared entries to the table's own memory. Call it before an entry changes in place,
        or before compiled code drops one."""
        if self._shared is not None:
            self._lay_out([None] * self.num_segments, self.counts)

    def count_growth(self) -> None:
        """Count the bytes of entries that were appended to shared ones by compiled code."""
        if self._shared is not None:
            now = self.nbytes
            self.meter.add(now - self._shared.metered)
            self._shared.metered = now

    @property
    def extents(self) -> list[Extent]:
        """First entry in use, number of entries and capacity of each segment.

        Segments with shared entries have the capacity that a new layout would give them.
        """
        column, counts = self.descriptor.column, self.counts
        capacities = column(CAPACITY)
        if self._shared is not None:
            capacities = self._new_capacities(counts)
        return list(zip(column(START), counts, capacities, strict=True))

    def _new_capacities(self, counts: Sequence[int]) -> list[int]:
        return [count + self._spare_of(count) if count else 0 for count in counts]

    def packed(self, field: int) -> Tensor:
        """Return a copy of all entries without unused capacity: (w * sum T, *F), segment by segment
        and head by head."""
        pieces = [
            self.entries(field, segment).flatten(0, 1) for segment in range(self.num_segments)
        ]
        return torch.cat(pieces) if pieces else self.tensors[field][:0]

    def fill(self, extents: Sequence[Extent], packed: Sequence[Tensor]) -> None:
        """Hold the entries that `packed` returned, each where `extents` had it.

        Places matter: the rounding of attention may depend on how memory is divided.

        Raises:
            ValueError: extents and entries do not fit this table. Nothing has changed.
        """
        self._require_fit(extents, packed)
        empty = [0] * self.num_segments
        capacities = [capacity for _, _, capacity in extents]
        self._lay_out([None] * self.num_segments, empty, capacities)
        self.descriptor.set_column(START, [start for start, _, _ in extents])
        self.descriptor.set_column(COUNT, [count for _, count, _ in extents])
        for f, (field, tensor) in enumerate(zip(self.fields, packed, strict=True)):
            first = 0
            for segment, count in enumerate(self.counts):
                piece = tensor.narrow(0, first, field.heads * count)
                self.entries(f, segment).copy_(piece.view(field.heads, count, *field.inner))
                first += field.heads * count

    def _require_fit(self, extents: Sequence[Extent], packed: Sequence[Tensor]) -> None:
        if len(extents) != self.num_segments:
            raise ValueError(f"found {len(extents)} segments, expected {self.num_segments}")
        for start, count, capacity in extents:
            most = count + self._most_unused(count) if count else 0
            if min(start, count) < 0 or not start + count <= capacity <= most:
                raise ValueError(
                    f"found entries {start} to {start + count} in a capacity of {capacity}, "
                    f"expected a capacity of {count} to {most}"
                )
        num_entries = sum(count for _, count, _ in extents)
        found = [(tuple(tensor.shape), tensor.dtype) for tensor in packed]
        expected = [((f.heads * num_entries, *f.inner), f.dtype) for f in self.fields]
        if found != expected:
            raise ValueError(f"found tensors {found}, expected {expected}")

    def release(self) -> None:
        """Return all memory; the table must not be used afterwards."""
        self.count_growth()
        self.meter.add(-self.nbytes)
        self.tensors = [tensor.new_empty((0, *tensor.shape[1:])) for tensor in self.tensors]
        self._leave_shared()

    def check(self) -> None:
        """Audit the structure. Raises AssertionError naming what is broken."""
        column = self.descriptor.column
        for start, count, capacity in self.extents:
            assert 0 <= start and 0 <= count and start + count <= capacity, "entries out of bounds"
            unused = capacity - count
            assert unused <= self._most_unused(count), f"{unused} entries unused"
        ends = [base + size for base, size in zip(column(BASE), column(CAPACITY), strict=True)]
        assert all(a == b for a, b in zip([0, *ends], column(BASE), strict=False)), (
            "segments overlap"
        )
        assert all(map(int.__le__, self.num_shared, self.counts)), "shared entries were dropped"
        assert self.descriptor.points_at(self.tensors), "compiled code has other addresses"
        for field, tensor in zip(self.fields, self.tensors, strict=True):
            assert tensor.shape == (field.heads * (ends[-1] if ends else 0), *field.inner)
            assert tensor.untyped_storage().nbytes() == tensor.nbytes, "memory beyond the tensor"

    def _close_gap(self, segment: int, first: int, last: int, move_older: bool) -> None:
        _, _, start, held = self.descriptor.extent(segment)
        gap, behind = last - first, held - last
        length, target, source = (first, gap, 0) if move_older else (behind, first, last)
        for f, tensor in enumerate(self.tensors):
            if not length or not tensor.numel():
                continue
            entries = self.entries(f, segment)
            moving = entries.narrow(1, source, length)
            if length > abs(target - source):  # a copy in place would overwrite what it still reads
                moving = moving.clone()
                with self.meter.counting(moving):
                    entries.narrow(1, target, length).copy_(moving)
                    del moving
            else:
                entries.narrow(1, target, length).copy_(moving)
        self.descriptor.set_used(segment, start + gap if move_older else start, held - gap)

    def _lay_out(
        self,
        picks: Sequence[Tensor | None],
        counts: Sequence[int],
        capacities: Sequence[int] | None = None,
        source: "tuple[EntryTable, Sequence[int]] | None" = None,
    ) -> None:
        """Move entries to new memory, field by field, so that one field at most exists twice.

        Args:
            picks: entries to keep per segment; None: the first ones.
            counts: entries per segment afterwards; those that are not copied must be written.
            source: another table, and the segment of it that each segment copies; None: this one.
        """
        table, segments = source or (self, range(self.num_segments))
        self.count_growth()
        if capacities is None:
            capacities = self._new_capacities(counts)
        bases = [0]
        for capacity in capacities:
            bases.append(bases[-1] + capacity)
        for f, field in enumerate(self.fields):
            shape, old = (field.heads * bases[-1], *field.inner), self.tensors[f]
            with torch.inference_mode(False):  # or nothing could be written outside of that mode
                new = self.memory.empty(shape, old.dtype, old.device)
            if field.num_bytes:
                self.meter.add(new.nbytes)
                for segment, (base, end) in enumerate(pairwise(bases)):
                    if base < end:
                        box = new[field.heads * base : field.heads * end]
                        table._copy_out(f, segments[segment], picks[segment], counts[segment], box)
                        del box
                self.meter.add(-self._field_nbytes(f))
            self.tensors[f] = new
            del old
        self._leave_shared()
        columns = ((BASE, bases[:-1]), (CAPACITY, capacities), (COUNT, counts))
        for which, numbers in columns:
            self.descriptor.set_column(which, numbers)
        self.descriptor.set_column(START, [0] * self.num_segments)
        self.descriptor.point(self.tensors)

    def _leave_shared(self) -> None:
        """Map nothing any more; no tensor of this table is in the file."""
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.mapped.entries.tables.discard(self)
            shared.forget_writes()

    def _copy_out(self, f: int, segment: int, pick: Tensor | None, count: int, box: Tensor) -> None:
        """Copy entries of a segment, those of `pick` or the first `count`, to the front of a
        box."""
        field, entries = self.fields[f], self.entries(f, segment)
        by_head = box.view(field.heads, box.shape[0] // field.heads, *field.inner)
        if pick is not None:
            torch.index_select(entries, 1, pick, out=by_head[:, : pick.shape[0]])
        elif num := min(entries.shape[1], count):
            by_head[:, :num] = entries[:, :num]


@dataclass(slots=True)
class _Shared:
    """Entries of a table that others may map too."""

    mapped: MappedEntries
    counts: list[int]
    """Entries of each segment that are still those of the file."""
    metered: int
    """Bytes of the table that its meter has counted."""

    def limit(self, counts: Sequence[int]) -> None:
        """Take no more than `counts` entries of each segment as those of the file."""
        self.counts = list(map(min, self.counts, counts))

    def forget_writes(self) -> None:
        """Return the memory of what was written since, which nobody reads any more."""
        entries = self.mapped.entries
        self.mapped.view.forget_writes(entries.start, entries.start + entries.size)


def _fits(start: int, count: int, capacity: int) -> bool:
    return start + count <= capacity


def _all_equal(numbers: list[Any]) -> bool:
    return not numbers or numbers.count(numbers[0]) == len(numbers)
