"""Triton: attention of one new token per segment over entries of mixed precision, stage one of two.

Each program reads a share of the entries of one key-value head for all G query heads that use it;
`combine` adds the shares up. Logits are in base 2: s = (q . k) * scale * log2(e).

Shapes as in `ragged`; G query heads per key-value head, M that number rounded up to what a product
takes, E head size rounded up to a power of two, t entries per tile. Tiles of a segment are numbered
consecutively, those of quantized entries first.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from agentkv_kernels.ema import Ema
from agentkv_kernels.ragged import SegmentAttention, StoredEntries
from agentkv_kernels.triton.combine import Parted, combine
from agentkv_kernels.triton.numbers import extent_of, power
from agentkv_kernels.triton.tiling import splits, tiling, units_of

FLOOR = tl.constexpr(-1e30)
"""Logit of an entry outside of a tile. It is finite because -inf - -inf of an empty share would be
NaN."""

LOG2_E = 1.4426950408889634


@triton.jit
def _logits(q, k, DOT: tl.constexpr):
    """(M, E) and (t, E) to (M, t) float32."""
    if DOT:
        return tl.dot(q, tl.trans(k.to(q.dtype)))
    return tl.sum(q.to(tl.float32)[:, None, :] * k.to(tl.float32)[None, :, :], axis=2)


@triton.jit
def _mixed(p, v, DOT: tl.constexpr):
    """(M, t) and (t, E) to (M, E) float32."""
    if DOT:
        return tl.dot(p.to(v.dtype), v)
    return tl.sum(p[:, :, None] * v.to(tl.float32)[None, :, :], axis=1)


@triton.jit
def _softmax_step(
    s,
    inside,
    top,
    total,
    shares,
    share_entry,
    share_capacity,
    share_tops,
    G: tl.constexpr,
    M: tl.constexpr,
    MASS: tl.constexpr,
):
    """Take one step of the online softmax: return p, the factor for older sums, top and total.

    For the mass, p is stored in float16, in which it cannot overflow, with the top it refers to.
    """
    s = tl.where(inside[None, :], s, FLOOR)
    new_top = tl.maximum(top, tl.max(s, axis=1))
    p = tl.where(inside[None, :], tl.exp2(s - new_top[:, None]), 0.0)
    shrink = tl.exp2(top - new_top)
    if MASS:
        heads = tl.arange(0, M)
        where = heads.to(tl.int64)[:, None] * share_capacity + share_entry[None, :]
        mask = (heads < G)[:, None] & inside[None, :]
        tl.store(shares + where, p.to(tl.float16), mask=mask)
        tl.store(share_tops + heads, new_top, mask=heads < G)
    return p, shrink, new_top, total * shrink + tl.sum(p, axis=1)


@triton.jit(do_not_specialize=["num_segments", "num_splits", "num_tiles"])
def attend_kernel(
    q,
    extents,
    dense_keys,
    dense_values,
    dense_extents,
    keys,
    values,
    block_ids,
    code_extents,
    key_exponents,
    value_exponents,
    block_extents,
    sums,
    tops,
    totals,
    shares,
    share_tops,
    factor,
    num_segments,
    num_splits,
    num_tiles,
    W: tl.constexpr,
    G: tl.constexpr,
    M: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    T: tl.constexpr,
    DOT: tl.constexpr,
    CODED: tl.constexpr,
    MASS: tl.constexpr,
):
    """Program (i, j): share j of `num_splits` of the tiles of head i mod W of segment i // W.

    Leaves sums (N W, splits, G, D) of p v, tops (N W, splits, G) of the logits in base 2 and totals
    (N W, splits, G) of p, all float32, p being relative to the top. With MASS also `shares`, p in
    float16 for every entry, in extents of W * G heads laid out as the positions' but with the first
    entry at 0, each tile relative to its `share_tops` (N W, num_tiles, G).
    """
    segment_head, split = tl.program_id(0), tl.program_id(1)
    segment, head = segment_head // W, segment_head % W
    heads, columns, entries = tl.arange(0, M), tl.arange(0, E), tl.arange(0, T)
    is_head, is_column = heads < G, columns < D
    q_mask = is_head[:, None] & is_column[None, :]
    q_at = q + segment_head.to(tl.int64) * (G * D) + heads[:, None] * D + columns[None, :]
    query = tl.load(q_at, mask=q_mask, other=0.0)

    share_base = tl.load(extents + segment).to(tl.int64) * (W * G)
    share_capacity = tl.load(extents + num_segments + segment).to(tl.int64)
    share_base += share_capacity * (head * G)
    tops_at = share_tops + segment_head.to(tl.int64) * num_tiles * G
    first_dense, num_dense = extent_of(dense_extents, segment, num_segments, head, W)
    num_coded = 0
    if CODED:
        first_code, num_coded = extent_of(code_extents, segment, num_segments, head, W)
        first_id, _ = extent_of(code_extents, segment, num_segments, 0, 1)
        first_block, _ = extent_of(block_extents, segment, num_segments, head, W)
    coded_tiles = tl.cdiv(num_coded, T)
    tiles = coded_tiles + tl.cdiv(num_dense, T)
    each = tl.cdiv(tiles, num_splits)
    first_tile = tl.minimum(split * each, tiles)
    last_tile = tl.minimum(first_tile + each, tiles)

    top = tl.full((M,), FLOOR, tl.float32)
    total = tl.zeros((M,), tl.float32)
    acc = tl.zeros((M, E), tl.float32)
    if CODED:
        for tile in range(first_tile, tl.minimum(last_tile, coded_tiles)):
            entry = tile * T + entries
            inside = entry < num_coded
            mask = inside[:, None] & is_column[None, :]
            at = (first_code + entry)[:, None] * D + columns[None, :]
            k = tl.load(keys + at, mask=mask, other=0)
            v = tl.load(values + at, mask=mask, other=0)
            ids = tl.load(block_ids + first_id + entry, mask=inside, other=-1)
            # entries of a block lie together, so that a tile has one or two blocks as a rule
            low = tl.min(tl.where(inside, ids, 2147483647), axis=0)
            high = tl.max(ids, axis=0)
            s = tl.zeros((M, T), tl.float32)
            for block in range(low, high + 1):
                of_block = (first_block + block) * D + columns
                exponents = tl.load(key_exponents + of_block, mask=is_column, other=0)
                # a power of two: exact in every dtype that holds the product
                scaled = (query.to(tl.float32) * power(exponents)[None, :]).to(query.dtype)
                s = tl.where((ids == block)[None, :], _logits(scaled, k, DOT), s)
            p, shrink, top, total = _softmax_step(
                s * factor,
                inside,
                top,
                total,
                shares,
                share_base + entry,
                share_capacity,
                tops_at + tile * G,
                G,
                M,
                MASS,
            )
            acc *= shrink[:, None]
            # codes are exact in float16, and p has more bits there than in bfloat16
            v_codes = v.to(tl.float16)
            for block in range(low, high + 1):
                of_block = (first_block + block) * D + columns
                exponents = tl.load(value_exponents + of_block, mask=is_column, other=0)
                of_block_p = tl.where((ids == block)[None, :], p, 0.0)
                acc += _mixed(of_block_p, v_codes, DOT) * power(exponents)[None, :]
    for tile in range(tl.maximum(first_tile, coded_tiles), last_tile):
        entry = (tile - coded_tiles) * T + entries
        inside = entry < num_dense
        mask = inside[:, None] & is_column[None, :]
        at = (first_dense + entry)[:, None] * D + columns[None, :]
        k = tl.load(dense_keys + at, mask=mask, other=0.0)
        v = tl.load(dense_values + at, mask=mask, other=0.0)
        p, shrink, top, total = _softmax_step(
            _logits(query, k, DOT) * factor,
            inside,
            top,
            total,
            shares,
            share_base + num_coded + entry,
            share_capacity,
            tops_at + tile * G,
            G,
            M,
            MASS,
        )
        acc = acc * shrink[:, None] + _mixed(p, v, DOT)

    slot = (segment_head * num_splits + split).to(tl.int64) * G
    tl.store(sums + (slot + heads)[:, None] * D + columns[None, :], acc, mask=q_mask)
    tl.store(tops + slot + heads, top, mask=is_head)
    tl.store(totals + slot + heads, total, mask=is_head)


def attend_segments(
    q: Tensor,
    stored: StoredEntries,
    *,
    scale: float,
    sinks: Tensor | None = None,
    with_mass: bool = False,
    ema: Ema | None = None,
    tracked: Tensor | None = None,
    num_splits: int | None = None,
) -> SegmentAttention:
    """Attend with one new token per segment over every entry of its segment, its own included,
    without waiting for the device.

    A segment without entries yields zeros.

    Args:
        q: (N, W * G, D), rotated; query head h * G + g of a segment reads its head h.
        scale: factor on the logits before the softmax.
        sinks: (S * W * G,), a logit per query head of a sequence that joins the softmax and has no
            value. Segment i is segment i mod S of its sequence.
        with_mass: whether to return the mass.
        ema: rule by which the mass updates the first number of `tracked`, in place.
        tracked: (R, k) float32 in the layout of the metadata.
        num_splits: shares per head; None: as many as keep the device busy.
    """
    num_segments, num_q_heads, head_dim = q.shape
    heads, dense, coded = stored.num_heads, stored.dense, stored.coded
    group, num_programs = num_q_heads // heads, num_segments * heads
    assert q.dtype == dense.keys.dtype, f"queries in {q.dtype}, entries in {dense.keys.dtype}"
    shape = tiling(group, head_dim, q.dtype)
    max_count = dense.layout.max_count, 0 if coded is None else coded.layout.max_count
    if num_splits is None:
        num_splits = splits(num_programs, sum(max_count), units_of(q.device))
    num_tiles = sum(-(-count // shape.entries) for count in max_count)
    q = q.contiguous()
    sums = q.new_empty(num_programs, num_splits, group, head_dim, dtype=torch.float32)
    tops = q.new_empty(num_programs, num_splits, group, dtype=torch.float32)
    totals = torch.empty_like(tops)
    wants_mass = with_mass or ema is not None
    num_shares = stored.positions.shape[0] * num_q_heads if wants_mass else 0
    shares = q.new_empty(num_shares, dtype=torch.float16)
    share_tops = q.new_empty(num_programs, max(num_tiles, 1), group, dtype=torch.float32)
    # an argument that is not read must still be a pointer
    codes = dense if coded is None else coded
    attend_kernel[(num_programs, num_splits)](
        q,
        stored.layout.extents,
        dense.keys,
        dense.values,
        dense.layout.extents,
        codes.keys,
        codes.values,
        stored.positions if coded is None else coded.block_ids,
        codes.layout.extents,
        dense.keys if coded is None else coded.key_exponents,
        dense.keys if coded is None else coded.value_exponents,
        stored.layout.extents if coded is None else coded.blocks.extents,
        sums,
        tops,
        totals,
        shares,
        share_tops,
        scale * LOG2_E,
        num_segments,
        num_splits,
        max(num_tiles, 1),
        W=heads,
        G=group,
        M=shape.heads,
        D=head_dim,
        E=shape.columns,
        T=shape.entries,
        DOT=shape.uses_dot,
        CODED=coded is not None,
        MASS=wants_mass,
        num_warps=shape.warps,
    )
    parted = Parted(sums, tops, totals, shares, share_tops, shape.entries)
    return combine(parted, q, stored, sinks=sinks, with_mass=with_mass, ema=ema, tracked=tracked)
