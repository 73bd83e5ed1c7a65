"""Storage of one layer: its tables, and their entries as views.

Every sequence has one segment for all KV heads, if they keep the same entries, or one per head. In
storage order, a segment's quantized entries come first, then those in the model's dtype. The latter
ascend in position; so do the former unless rank decides what is quantized. Entries that came back
from a cold tier stand behind those that were there before.

Shapes: B sequences, S segments of each (1 or H), N = B * S; W heads per segment (H or 1), D head
size; T entries of a segment.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from agentkv.cache.storage.cold_memory import IN_MEMORY, ColdMemory
from agentkv.cache.storage.query_window import QueryWindow
from agentkv.cache.storage.table import EntryTable, Meter, Which
from agentkv_kernels.entries import DensePart, Part, Quantized
from agentkv_kernels.formats import BLOCK
from agentkv_kernels.layout import (
    BLOCK_IDS,
    IDLE,
    KEY_SCALES,
    KEYS,
    NORMS,
    POSITION,
    TOLERATED_BLOCKS,
    TRACKED,
    VALUE_SCALES,
    VALUES,
    Addressed,
    Field,
    LayerDescriptor,
    Layout,
)

SCALES_GROWTH = 1.0
"""Unused share of the scales of a storage that grows (our choice)."""


class LayerStorage(Addressed):
    """Tables of one layer. A `Backend` changes them; all bytes are metered.

    Args:
        batch: B.
        meter: counts the bytes.
        growth, most, memory: as in `EntryTable`.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        batch: int,
        device: torch.device,
        meter: Meter,
        growth: float = 0.0,
        most: int | None = None,
        memory: ColdMemory = IN_MEMORY,
    ) -> None:
        num_segments = batch * layout.segments_per_sequence
        self.layout, self.num_segments, self.device = layout, num_segments, device

        def table(
            fields: Sequence[Field],
            spare: int = BLOCK - 1,
            growth: float = growth,
            idle: int = 0,
            tolerated: int = 0,
            most: int | None = most,
        ) -> EntryTable:
            return EntryTable(
                fields,
                num_segments,
                device=device,
                meter=meter,
                spare=spare,
                growth=growth,
                idle=idle,
                tolerated=tolerated,
                most=most,
                memory=memory,
            )

        # looks fetch, evict and quantize blocks, and need their capacity again
        idle = IDLE if layout.promotes and not growth else 0
        self.metadata = table(layout.metadata, idle=idle)
        self.dense = table(layout.dense, idle=idle)
        self.codes: EntryTable | None = None
        """Quantized entries; None without a format."""
        self.scales: EntryTable | None = None
        """Scales that blocks of entries share; None if each entry has its own."""
        if layout.codes:
            self.codes = table(layout.codes, idle=idle)
        if layout.scales:
            tolerated = TOLERATED_BLOCKS if layout.promotes and not growth else 0
            # in a cold tier, blocks come with every eviction, and are merged now and then
            own_growth = SCALES_GROWTH if growth else 0.0
            most_blocks = None if most is None else max_blocks(most)
            self.scales = table(layout.scales, 0, own_growth, tolerated=tolerated, most=most_blocks)
        self.queries: QueryWindow | None = None
        """Latest queries; None for a policy that reads none."""
        self.queries_of_chunks: QueryWindow | None = None
        """Latest queries of forwards of several tokens, which `queries` then does not hold; None
        unless the policy tells phases apart."""
        if layout.query_window:
            self.queries = QueryWindow(layout, batch, device=device, meter=meter)
        if layout.by_phase:
            self.queries_of_chunks = QueryWindow(layout, batch, device=device, meter=meter)
        self.relative_positions: tuple[list[int], Tensor] | None = None
        """Latest upload of `TritonBackend`: each segment's position relative to the first one."""
        self._describe()

    def _describe(self) -> None:
        tables = self.tables
        names = ("metadata", "dense", "codes", "scales", "queries")
        found = [tables[name].descriptor if name in tables else None for name in names]
        self.descriptor = LayerDescriptor(self.layout, self.batch, found)

    @property
    def batch(self) -> int:
        """B."""
        return self.num_segments // self.layout.segments_per_sequence

    @property
    def tables(self) -> dict[str, EntryTable]:
        """All tables by name, always in the same order."""
        named = {"metadata": self.metadata, "dense": self.dense}
        if self.codes is not None:
            named["codes"] = self.codes
        if self.scales is not None:
            named["scales"] = self.scales
        if self.queries is not None:
            named["queries"] = self.queries.table
        if self.queries_of_chunks is not None:
            named["queries of chunks"] = self.queries_of_chunks.table
        return named

    @property
    def nbytes(self) -> int:
        """Bytes of all tables, unused capacity included."""
        return sum(table.nbytes for table in self.tables.values())

    @property
    def counts(self) -> list[int]:
        """Entries of each segment."""
        return self.metadata.counts

    @property
    def num_quantized(self) -> list[int]:
        """Quantized entries of each segment, the first ones in storage order."""
        return [0] * self.num_segments if self.codes is None else self.codes.counts

    def num_entries(self, sequence: int) -> int:
        """Return the number of entries in all segments of a sequence."""
        per = self.layout.segments_per_sequence
        return self.metadata.descriptor.count(sequence * per, per)

    def segments(self, sequence: int) -> range:
        """Return the segments of a sequence."""
        per = self.layout.segments_per_sequence
        return range(sequence * per, (sequence + 1) * per)

    @property
    def is_even(self) -> bool:
        """True if one attention call can serve all segments."""
        tables = (self.metadata, self.dense, self.codes, self.scales)
        return all(table.is_even for table in tables if table is not None)

    def reserve(self, more: int = 1) -> None:
        """Give every table that gains entries in each step capacity for `more`."""
        for table in (self.metadata, self.dense):
            table.reserve(more)
        if self.queries is not None:
            self.queries.table.reserve(more)

    def note_queries(
        self,
        q: Tensor,
        *,
        first: Sequence[int],
        columns: Sequence[Tensor] | None,
        spared: int = 0,
    ) -> None:
        """Append the queries of a forward to the window that takes them; see
        `QueryWindow.append`."""
        window = self.queries
        if self.queries_of_chunks is not None and q.shape[2] > 1:
            window = self.queries_of_chunks
        if window is not None:
            window.append(q, first=first, columns=columns, spared=spared)

    def forget_queries(self, fed: Sequence[int]) -> None:
        """Drop the queries of tokens that come after the first `fed` of each sequence."""
        for window in (self.queries, self.queries_of_chunks):
            if window is not None:
                window.forget(fed)

    def trim_queries(self) -> None:
        """Drop the queries that were spared."""
        for window in (self.queries, self.queries_of_chunks):
            if window is not None:
                window.trim()

    def last_queries(self, sequence: int) -> tuple[Tensor, Tensor]:
        """Return the queries (H * G, w, D) of a sequence in all windows, and their positions (w,),
        which ascend."""
        assert self.queries is not None, "the policy's scorer has no window"
        queries, positions = self.queries.of(sequence)
        if self.queries_of_chunks is None:
            return queries, positions
        others = self.queries_of_chunks.of(sequence)
        positions, order = torch.cat([positions, others[1]]).sort()
        return torch.cat([queries, others[0]], dim=1)[:, order], positions

    @property
    def is_consecutive(self) -> bool:
        """True if no position between a segment's first entry and its last is missing; waits for
        the device."""
        positions = map(self.positions, range(self.num_segments))
        return all(bool((each.diff() == 1).all()) for each in positions)

    # ---- views

    def positions(self, segment: int) -> Tensor:
        """Return positions (T,) int32 in storage order."""
        return self.metadata.entries(POSITION, segment)[0]

    def all_positions(self, which: Which = None) -> Tensor:
        """Return positions (n, T) int32 in storage order; several segments must be even."""
        return self.metadata.view(POSITION, which)[:, 0]

    def tracked(self, which: Which = None) -> Tensor:
        """Return the statistic (n, T, k) that a tracker keeps; several segments must be even."""
        return self.metadata.view(TRACKED, which)[:, 0]

    def norms(self, which: Which = None) -> Tensor:
        """Return value norms (n, W, T, k) float32; several segments must be even."""
        return self.metadata.view(NORMS, which)

    def parts(self, which: Which = None) -> list[Part]:
        """Return the entries for attention, segments as its batch; several must be even."""
        first = which if isinstance(which, int) else 0
        positions, num_quantized = self.all_positions(which), self.num_quantized[first]
        parts: list[Part] = []
        if num_quantized:
            parts.append(self._quantized(which, positions[:, :num_quantized]))
        if positions.shape[1] > num_quantized or not parts:
            keys, values = self.dense.view(KEYS, which), self.dense.view(VALUES, which)
            parts.append(DensePart(keys, values, positions[:, num_quantized:]))
        return parts

    def read(self, field: int, segment: int, pick: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a decoded copy (W, n, D) of the keys or values of some entries.

        Args:
            field: `KEYS` or `VALUES`.
            pick: their numbers (n,) in storage order, ascending.
        """
        parts, num_quantized, own = self.parts(segment), self.num_quantized[segment], [pick]
        if len(parts) > 1:
            own = [pick[pick < num_quantized], pick[pick >= num_quantized] - num_quantized]
        found = [
            part.pick(index).decode(dtype)[0 if field == KEYS else 1][0]
            for part, index in zip(parts, own, strict=True)
        ]
        return torch.cat(found, dim=1)

    def _quantized(self, which: Which, positions: Tensor) -> Quantized:
        assert self.codes is not None and self.layout.format is not None
        table, key_scales, value_scales = self.scale_fields
        return Quantized(
            self.layout.format,
            self.codes.view(KEYS, which),
            self.codes.view(VALUES, which),
            table.view(key_scales, which),
            table.view(value_scales, which),
            None if self.scales is None else self.codes.view(BLOCK_IDS, which)[:, 0],
            positions,
        )

    @property
    def scale_fields(self) -> tuple[EntryTable, int, int]:
        """The table with the scales, and its fields for keys and values."""
        assert self.codes is not None
        if self.scales is not None:
            return self.scales, KEYS, VALUES
        return self.codes, KEY_SCALES, VALUE_SCALES

    # ---- as a whole

    def take(self, sequences: Sequence[int]) -> "LayerStorage":
        """Return an independent copy of these sequences, on the same meter."""
        copy = object.__new__(LayerStorage)
        copy.layout, copy.device = self.layout, self.device
        segments = [segment for sequence in sequences for segment in self.segments(sequence)]
        copy.num_segments = len(segments)
        copy.metadata, copy.dense = self.metadata.take(segments), self.dense.take(segments)
        copy.codes = None if self.codes is None else self.codes.take(segments)
        copy.scales = None if self.scales is None else self.scales.take(segments)
        copy.queries = None if self.queries is None else self.queries.take(sequences)
        chunks = self.queries_of_chunks
        copy.queries_of_chunks = None if chunks is None else chunks.take(sequences)
        copy.relative_positions = None
        copy._describe()
        return copy

    def own(self) -> None:
        """Copy shared entries to own memory. Call it before compiled code changes one in place."""
        for table in (self.metadata, self.dense, self.codes, self.scales):
            if table is not None:
                table.own()

    def release(self) -> None:
        """Return all memory; the storage must not be used afterwards."""
        for table in self.tables.values():
            table.release()

    def check(self) -> None:
        """Audit the structure. Raises AssertionError naming what is broken."""
        for table in self.tables.values():
            table.check()
        for segment, count in enumerate(self.counts):
            num_quantized, num_dense = self.num_quantized[segment], self.dense.counts[segment]
            assert num_quantized + num_dense == count, (
                f"{num_quantized} + {num_dense} entries, {count} positions"
            )
            positions = self.positions(segment)
            assert bool((positions >= 0).all()), "an entry without a position"
            if not self.layout.promotes:
                assert bool((positions[num_quantized:].diff() > 0).all()), "positions do not ascend"
            assert bool((positions.sort().values.diff() > 0).all()), "a position is stored twice"
            if self.layout.tracked.dtype.is_floating_point:
                assert bool(self.tracked(segment).isfinite().all()), "a statistic is not finite"
            if self.scales is not None and self.codes is not None:
                num_blocks = self.scales.counts[segment]
                assert num_blocks <= max_blocks(num_quantized), (
                    f"{num_blocks} blocks of scales for {num_quantized} entries"
                )
                if num_quantized:
                    ids = self.codes.entries(BLOCK_IDS, segment)[0]
                    assert 0 <= int(ids.min()) and int(ids.max()) < num_blocks, (
                        "a block id without scales"
                    )


def max_blocks(num_entries: int) -> int:
    """Return how many blocks of scales may serve this many entries: twice what full blocks need.

    Merging blocks less often rounds less (our choice).
    """
    return 2 * -(-num_entries // BLOCK)
