"""Triton: one new entry at the end of every segment, in one launch.

Shapes as in `ragged`; E head size rounded up to a power of two.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from agentkv_kernels.ragged import StoredEntries
from agentkv_kernels.triton.numbers import extent_of


@triton.jit
def _count_one_more(old, new, segment, num_segments):
    """Write a segment's column of the new extents: the old one with one more entry."""
    for row in tl.static_range(4):
        number = tl.load(old + row * num_segments + segment)
        tl.store(new + row * num_segments + segment, number + (1 if row == 3 else 0))


@triton.jit(do_not_specialize=["num_segments", "plus"])
def append_kernel(
    new_keys,
    new_values,
    new_positions,
    positions,
    tracked,
    extents,
    keys,
    values,
    dense_extents,
    next_extents,
    next_dense_extents,
    plus,
    num_segments,
    W: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    K: tl.constexpr,
    KP: tl.constexpr,
    TRACKED: tl.constexpr,
):
    """Program i appends to head i mod W of segment i // W.

    Extents are read from the old tables and written to new ones, as other programs of the segment
    may not have read the old ones yet.
    """
    segment, head = tl.program_id(0) // W, tl.program_id(0) % W
    columns = tl.arange(0, E)
    is_column = columns < D
    source = tl.program_id(0).to(tl.int64) * D + columns
    k = tl.load(new_keys + source, mask=is_column, other=0.0)
    v = tl.load(new_values + source, mask=is_column, other=0.0)
    first_dense, num_dense = extent_of(dense_extents, segment, num_segments, head, W)
    target = (first_dense + num_dense) * D + columns
    tl.store(keys + target, k, mask=is_column)
    tl.store(values + target, v, mask=is_column)
    if head == 0:
        first, count = extent_of(extents, segment, num_segments, 0, 1)
        tl.store(positions + first + count, tl.load(new_positions + segment) + plus)
        if TRACKED:
            inner = tl.arange(0, KP)
            zeros = tl.zeros((KP,), tracked.dtype.element_ty)
            tl.store(tracked + (first + count) * K + inner, zeros, mask=inner < K)
        _count_one_more(extents, next_extents, segment, num_segments)
        _count_one_more(dense_extents, next_dense_extents, segment, num_segments)


def append_entry(
    stored: StoredEntries,
    keys: Tensor,
    values: Tensor,
    *,
    positions: Tensor,
    plus: int = 0,
    tracked: Tensor | None = None,
) -> StoredEntries:
    """Append one entry to every segment, in place, into capacity that must be there, without
    waiting for the device.

    Args:
        keys, values: (N, W, D) in the model's dtype.
        positions: (N,) int32; the new entries have these positions plus `plus`.
        tracked: (R, k) in the layout of the metadata; the new entries get 0.

    Returns:
        The same memory under layouts that count the new entries.
    """
    num_segments, heads, head_dim = keys.shape
    dense = stored.dense
    extents, dense_extents = stored.layout.extents, dense.layout.extents
    next_extents, next_dense_extents = torch.empty_like(extents), torch.empty_like(dense_extents)
    width = 0 if tracked is None else tracked.shape[1]
    append_kernel[(num_segments * heads,)](
        keys.contiguous(),
        values.contiguous(),
        positions,
        stored.positions,
        # an argument that is not read must still be a pointer
        stored.positions if tracked is None else tracked,
        extents,
        dense.keys,
        dense.values,
        dense_extents,
        next_extents,
        next_dense_extents,
        plus,
        num_segments,
        W=heads,
        D=head_dim,
        E=triton.next_power_of_2(head_dim),
        K=max(width, 1),
        KP=triton.next_power_of_2(max(width, 1)),
        TRACKED=width > 0,
        num_warps=4 if head_dim <= 128 else 8,
    )
    return stored.grown(next_extents, next_dense_extents)
