"""Triton: entries dropped from their segments, in one launch for any tables of any layers.

Fields are of any dtype and are found by address: an entry is a number of bytes.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from agentkv_kernels.layout import ADDRESS, HEADS, SIZE
from agentkv_kernels.ragged import RaggedLayout, Removal, upload

UNITS = 2048
"""Units of 4 bytes, or of one, that a program holds in registers at once."""

COLUMNS = 11
"""Numbers per job."""


@triton.jit
def _move(target, source, length, up, T: tl.constexpr):
    """Move `length` units to an overlapping target, from the last one on where `up`."""
    chunks = tl.cdiv(length, T)
    for i in range(chunks):
        chunk = tl.where(up != 0, chunks - 1 - i, i)
        at = chunk * T + tl.arange(0, T)
        x = tl.load(source + at, mask=at < length)
        # threads of this program may still have to read what the store covers
        tl.debug_barrier()
        tl.store(target + at, x, mask=at < length)


@triton.jit
def drop_kernel(jobs, picks, C: tl.constexpr, T: tl.constexpr):
    """Program (i, h) serves head h of job i: one field of one segment."""
    job, head = jobs + tl.program_id(0).to(tl.int64) * C, tl.program_id(1)
    if head < tl.load(job + 2):
        address = tl.load(job) + tl.load(job + 1) * head
        size, count = tl.load(job + 3), tl.load(job + 4)
        first, gap = tl.load(job + 5), tl.load(job + 6)
        pick, up = tl.load(job + 7), tl.load(job + 8)
        if pick >= 0:
            first = tl.load(picks + pick)
        target, source = address + first * size, address + (first + gap) * size
        length = (count - first - gap) * size
        if up != 0:
            target, source, length = address + gap * size, address, first * size
        if size % 4 == 0:
            target_words = target.to(tl.pointer_type(tl.int32))
            source_words = source.to(tl.pointer_type(tl.int32))
            _move(target_words, source_words, length // 4, up, T)
        else:
            target_bytes = target.to(tl.pointer_type(tl.int8))
            source_bytes = source.to(tl.pointer_type(tl.int8))
            _move(target_bytes, source_bytes, length, up, T)
        extent = tl.load(job + 9)
        if (head == 0) & (extent != 0):
            start_at = extent.to(tl.pointer_type(tl.int32))
            tl.store(start_at, (tl.load(start_at) + up * gap).to(tl.int32))
            count_at = start_at + tl.load(job + 10)
            tl.store(count_at, (count - gap).to(tl.int32))


def drop_entries(removals: Sequence[Removal], picks: Tensor | None) -> list[RaggedLayout]:
    """Drop entries from tables of one device, moving the remaining ones in place.

    Args:
        removals: entries to drop, every table at most once; the extents on the device are updated.
        picks: (n,) int64 on the device, entries that the host does not know.

    Returns:
        The new layout of each table.
    """
    jobs: list[int] = []
    after, max_heads = [], 1
    for removal in removals:
        layout, fields = removal.layout, removal.table.fields
        assert len(removal.runs) == layout.num_segments
        # all segments move to the same side, so that equal segments stay equal; where the host does
        # not know the entries, the newer ones move, so that it knows all starts
        balance = sum(
            1 if pick >= 0 else 2 * first + gap - count
            for (first, gap, pick), count in zip(removal.runs, layout.counts, strict=True)
            if gap
        )
        is_known = all(pick < 0 for _, gap, pick in removal.runs if gap)
        up = int(is_known and balance <= 0)
        base, starts, counts = 0, list(layout.starts), list(layout.counts)
        extents, stride = layout.extents.data_ptr(), layout.num_segments
        for segment, (first, gap, pick) in enumerate(removal.runs):
            capacity, start, count = layout.capacities[segment], starts[segment], counts[segment]
            if gap:
                # the first job of a segment also updates its extents
                update = (extents + 4 * (2 * stride + segment), stride)
                for field in fields:
                    heads, size = field[HEADS], field[SIZE]
                    if size:
                        at = field[ADDRESS] + (heads * base + start) * size
                        step = capacity * size
                        jobs += (at, step, heads, size, count, first, gap, pick, up, *update)
                        update, max_heads = (0, 0), max(max_heads, heads)
                starts[segment] += up * gap
                counts[segment] -= gap
            base += capacity
        moved = RaggedLayout(layout.extents, layout.capacities, tuple(starts), tuple(counts))
        after.append(moved)
    if jobs:
        device = removals[0].layout.extents.device
        uploaded = upload(jobs, dtype=torch.int64, device=device)
        drop_kernel[(len(jobs) // COLUMNS, max_heads)](
            uploaded,
            # an argument that is not read must still be a pointer
            uploaded if picks is None else picks,
            C=COLUMNS,
            T=UNITS,
            num_warps=8,
        )
    return after
