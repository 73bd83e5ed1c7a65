"""Entries of ragged segments in flat tensors, as kernels for devices read them.

A segment owns (w, capacity) flat entries, w being 1 for what describes an entry and not each of its
heads. Segments lie one after another; `layout.BASE` says which flat entry is which. All flat
tensors are contiguous. Capacity beyond a segment's entries may hold anything, NaN included.

Shapes: N segments with W key-value heads each; S segments per sequence; D head size; R flat entries
of a field.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from agentkv_kernels.layout import TableDescriptor


@dataclass(frozen=True, slots=True)
class RaggedLayout:
    """Extents of a table's segments, on the device and on the host."""

    extents: Tensor
    """(4, N) int32 on the device of the entries: columns of `layout.BASE` to `layout.COUNT`."""
    capacities: tuple[int, ...]
    starts: tuple[int, ...]
    counts: tuple[int, ...]
    """The same for the host, which sizes launches without asking the device."""

    @classmethod
    def of(
        cls,
        capacities: Sequence[int],
        starts: Sequence[int],
        counts: Sequence[int],
        *,
        device: torch.device | str,
    ) -> "RaggedLayout":
        """Lay segments of these capacities out one after another."""
        bases = [0, *accumulate(capacities)][: len(capacities)]
        columns = [bases, list(capacities), list(starts), list(counts)]
        extents = upload(columns, dtype=torch.int32, device=torch.device(device))
        return cls(extents, tuple(capacities), tuple(starts), tuple(counts))

    @property
    def num_segments(self) -> int:
        """N."""
        return len(self.counts)

    @property
    def max_count(self) -> int:
        """Entries of the longest segment."""
        return max(self.counts, default=0)

    def entries(self, flat: Tensor, segment: int, num_heads: int) -> Tensor:
        """Return a view (w, T, ...) of one segment's entries."""
        capacity, base = self.capacities[segment], sum(self.capacities[:segment])
        owned = flat[num_heads * base : num_heads * (base + capacity)]
        by_head = owned.view(num_heads, capacity, *flat.shape[1:])
        return by_head.narrow(1, self.starts[segment], self.counts[segment])

    def grown(self, extents: Tensor | None) -> "RaggedLayout":
        """Return the layout after each segment gained one entry.

        Args:
            extents: the new extents, where a kernel has written them; None: upload them.
        """
        counts = [count + 1 for count in self.counts]
        for start, count, capacity in zip(self.starts, counts, self.capacities, strict=True):
            assert start + count <= capacity, "an entry beyond the capacity of its segment"
        if extents is None:
            device = self.extents.device
            return RaggedLayout.of(self.capacities, self.starts, counts, device=device)
        return RaggedLayout(extents, self.capacities, self.starts, tuple(counts))


def upload(
    numbers: Sequence[int] | Sequence[Sequence[int]], *, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Copy numbers to a device without waiting for it."""
    if device.type != "cuda":
        return torch.tensor(numbers, dtype=dtype, device=device)
    # torch reuses pinned memory only once the copy has arrived
    return torch.tensor(numbers, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


@dataclass(frozen=True, slots=True)
class DenseEntries:
    """Entries in the model's dtype."""

    layout: RaggedLayout
    keys: Tensor
    """(R, D), already rotated; W heads per segment."""
    values: Tensor
    """(R, D)."""


@dataclass(frozen=True, slots=True)
class Int8Entries:
    """Entries in the format `int8`: codes, and exponents that blocks of entries share."""

    layout: RaggedLayout
    keys: Tensor
    """(R, D) int8; W heads per segment."""
    values: Tensor
    """(R, D) int8."""
    block_ids: Tensor
    """(R,) int32, one head per segment: the block of each entry. Reading is slow unless the entries
    of a block lie together."""
    blocks: RaggedLayout
    key_exponents: Tensor
    """(R, D) int8, one per block; W heads per segment."""
    value_exponents: Tensor
    """(R, D) int8."""


@dataclass(frozen=True, slots=True)
class StoredEntries:
    """Everything the segments of a layer store: quantized entries first, then dense ones."""

    num_heads: int
    """W."""
    layout: RaggedLayout
    """Layout of the metadata."""
    positions: Tensor
    """(R,) int32, one head per segment."""
    dense: DenseEntries
    coded: Int8Entries | None
    """None if nothing is quantized."""

    @property
    def num_segments(self) -> int:
        """N."""
        return self.layout.num_segments

    @property
    def head_dim(self) -> int:
        """D."""
        return self.dense.keys.shape[1]

    def grown(self, metadata: Tensor | None = None, dense: Tensor | None = None) -> "StoredEntries":
        """Return the same memory under layouts that count one more entry in every segment.

        Args:
            metadata, dense: the new extents of both tables, where a kernel has written them.
        """
        entries = replace(self.dense, layout=self.dense.layout.grown(dense))
        return replace(self, layout=self.layout.grown(metadata), dense=entries)


@dataclass(frozen=True, slots=True)
class SegmentAttention:
    """Result of attention over segments."""

    output: Tensor
    """(N, W * G, D) in the dtype of the queries."""
    mass: Tensor | None
    """(R,) float32 in the layout of the metadata: attention that each entry received, the mean over
    the query heads of its segment. The share of a sink logit is left out. Unused capacity holds
    anything."""


@dataclass(frozen=True, slots=True)
class Removal:
    """Entries that leave one table."""

    table: TableDescriptor
    layout: RaggedLayout
    """Layout of the table; the kernel updates the extents on the device."""
    runs: Sequence[tuple[int, int, int]]
    """Per segment: first entry to remove, how many, and -1; or 0, 1 and the index of the pick that
    names the entry."""
