"""Triton: attention of one new token per lane over rows of mixed precision, first of two stages.

Each program reads a share of the rows of one key-value head, for all G query heads that use it, and
leaves what `combine` puts together. Logits are in base 2: s = (q . k) * scale * log2(e).

Shapes as in `boxes`; G query heads per key-value head, M that number filled up to what a product
takes, E head size filled up to a power of two, t rows worked on at once (a tile). Tiles of a lane
are counted through: those of the quantised rows, then those of the others.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from agentkv_kernels.boxes import Average, Drawn, Stored
from agentkv_kernels.triton.combine import Parted, combine
from agentkv_kernels.triton.numbers import box_of, power
from agentkv_kernels.triton.tiling import splits, tiling, units_of

FLOOR = tl.constexpr(-1e30)
"""The logit of a row that cannot be seen. Finite: where a share of rows is empty, -inf - -inf would
be NaN."""

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
def _seen(
    s,
    there,
    inside,
    top,
    total,
    shares,
    share_row,
    share_room,
    share_tops,
    G: tl.constexpr,
    M: tl.constexpr,
    MASS: tl.constexpr,
):
    """One step of the online softmax: p, how much older sums shrink, the new top and total.

    For the mass, p is kept in float16, in which it cannot overflow, and the top it is relative to.
    """
    s = tl.where(there[None, :], s, FLOOR)
    new_top = tl.maximum(top, tl.max(s, axis=1))
    p = tl.where(there[None, :], tl.exp2(s - new_top[:, None]), 0.0)
    shrink = tl.exp2(top - new_top)
    if MASS:
        heads = tl.arange(0, M)
        where = heads.to(tl.int64)[:, None] * share_room + share_row[None, :]
        mask = (heads < G)[:, None] & inside[None, :]
        tl.store(shares + where, p.to(tl.float16), mask=mask)
        tl.store(share_tops + heads, new_top, mask=heads < G)
    return p, shrink, new_top, total * shrink + tl.sum(p, axis=1)


@triton.jit(do_not_specialize=["num_lanes", "num_splits", "num_tiles"])
def attend_kernel(
    q,
    positions,
    boxes,
    dense_keys,
    dense_values,
    dense_boxes,
    keys,
    values,
    block_ids,
    code_boxes,
    key_exponents,
    value_exponents,
    block_boxes,
    sums,
    tops,
    totals,
    shares,
    share_tops,
    factor,
    num_lanes,
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
    PADDED: tl.constexpr,
    MASS: tl.constexpr,
):
    """Program (i, j): share j of `num_splits` of the tiles of head i mod W of lane i // W.

    Leaves sums (N W, splits, G, D) of p v, tops (N W, splits, G) of the logits in base 2 and totals
    (N W, splits, G) of p, all float32, p being relative to the top. With MASS also `shares`, p in
    float16 for every row, in boxes of W * G heads laid out as the positions' but with the first row
    at 0, each tile relative to its `share_tops` (N W, num_tiles, G).
    """
    lane_head, split = tl.program_id(0), tl.program_id(1)
    lane, head = lane_head // W, lane_head % W
    heads, columns, rows = tl.arange(0, M), tl.arange(0, E), tl.arange(0, T)
    is_head, is_column = heads < G, columns < D
    q_mask = is_head[:, None] & is_column[None, :]
    q_at = q + lane_head.to(tl.int64) * (G * D) + heads[:, None] * D + columns[None, :]
    query = tl.load(q_at, mask=q_mask, other=0.0)

    first_place, _ = box_of(boxes, lane, num_lanes, 0, 1)
    share_base = tl.load(boxes + lane).to(tl.int64) * (W * G)
    share_room = tl.load(boxes + num_lanes + lane).to(tl.int64)
    share_base += share_room * (head * G)
    tops_at = share_tops + lane_head.to(tl.int64) * num_tiles * G
    first_dense, num_dense = box_of(dense_boxes, lane, num_lanes, head, W)
    num_coded = 0
    if CODED:
        first_code, num_coded = box_of(code_boxes, lane, num_lanes, head, W)
        first_id, _ = box_of(code_boxes, lane, num_lanes, 0, 1)
        first_block, _ = box_of(block_boxes, lane, num_lanes, head, W)
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
            row = tile * T + rows
            inside = row < num_coded
            there = inside
            if PADDED:
                there &= tl.load(positions + first_place + row, mask=inside, other=-1) >= 0
            mask = there[:, None] & is_column[None, :]
            at = (first_code + row)[:, None] * D + columns[None, :]
            k = tl.load(keys + at, mask=mask, other=0)
            v = tl.load(values + at, mask=mask, other=0)
            ids = tl.load(block_ids + first_id + row, mask=there, other=-1)
            # rows of a block lie together, so a tile has few blocks: as a rule one or two
            low = tl.min(tl.where(there, ids, 2147483647), axis=0)
            high = tl.max(ids, axis=0)
            s = tl.zeros((M, T), tl.float32)
            for block in range(low, high + 1):
                of_block = (first_block + block) * D + columns
                exponents = tl.load(key_exponents + of_block, mask=is_column, other=0)
                # a power of two: exact in every dtype that holds the product
                scaled = (query.to(tl.float32) * power(exponents)[None, :]).to(query.dtype)
                s = tl.where((ids == block)[None, :], _logits(scaled, k, DOT), s)
            p, shrink, top, total = _seen(
                s * factor,
                there,
                inside,
                top,
                total,
                shares,
                share_base + row,
                share_room,
                tops_at + tile * G,
                G,
                M,
                MASS,
            )
            acc *= shrink[:, None]
            # codes are exact in float16, and p is more so than in bfloat16
            v_codes = v.to(tl.float16)
            for block in range(low, high + 1):
                of_block = (first_block + block) * D + columns
                exponents = tl.load(value_exponents + of_block, mask=is_column, other=0)
                mine = tl.where((ids == block)[None, :], p, 0.0)
                acc += _mixed(mine, v_codes, DOT) * power(exponents)[None, :]
    for tile in range(tl.maximum(first_tile, coded_tiles), last_tile):
        row = (tile - coded_tiles) * T + rows
        inside = row < num_dense
        there = inside
        if PADDED:
            place = first_place + num_coded + row
            there &= tl.load(positions + place, mask=inside, other=-1) >= 0
        mask = there[:, None] & is_column[None, :]
        at = (first_dense + row)[:, None] * D + columns[None, :]
        k = tl.load(dense_keys + at, mask=mask, other=0.0)
        v = tl.load(dense_values + at, mask=mask, other=0.0)
        p, shrink, top, total = _seen(
            _logits(query, k, DOT) * factor,
            there,
            inside,
            top,
            total,
            shares,
            share_base + num_coded + row,
            share_room,
            tops_at + tile * G,
            G,
            M,
            MASS,
        )
        acc = acc * shrink[:, None] + _mixed(p, v, DOT)

    slot = (lane_head * num_splits + split).to(tl.int64) * G
    tl.store(sums + (slot + heads)[:, None] * D + columns[None, :], acc, mask=q_mask)
    tl.store(tops + slot + heads, top, mask=is_head)
    tl.store(totals + slot + heads, total, mask=is_head)


def attend_lanes(
    q: Tensor,
    stored: Stored,
    *,
    scale: float,
    sinks: Tensor | None = None,
    with_mass: bool = False,
    average: Average | None = None,
    num_splits: int | None = None,
) -> Drawn:
    """As `lanes.attend_lanes`, without asking the device anything.

    Args:
        num_splits: shares of a head's rows; None: as the device needs.
    """
    num_lanes, num_q_heads, head_dim = q.shape
    heads, dense, coded = stored.num_heads, stored.dense, stored.coded
    group, num_programs = num_q_heads // heads, num_lanes * heads
    assert q.dtype == dense.keys.dtype, f"queries in {q.dtype}, rows in {dense.keys.dtype}"
    shape = tiling(group, head_dim, q.dtype)
    most = dense.boxes.most, 0 if coded is None else coded.boxes.most
    if num_splits is None:
        num_splits = splits(num_programs, sum(most), units_of(q.device))
    num_tiles = sum(-(-count // shape.rows) for count in most)
    q = q.contiguous()
    sums = q.new_empty(num_programs, num_splits, group, head_dim, dtype=torch.float32)
    tops = q.new_empty(num_programs, num_splits, group, dtype=torch.float32)
    totals = torch.empty_like(tops)
    wants_mass = with_mass or average is not None
    num_shares = stored.positions.shape[0] * num_q_heads if wants_mass else 0
    shares = q.new_empty(num_shares, dtype=torch.float16)
    share_tops = q.new_empty(num_programs, max(num_tiles, 1), group, dtype=torch.float32)
    # what is not read still needs a pointer
    codes = dense if coded is None else coded
    attend_kernel[(num_programs, num_splits)](
        q,
        stored.positions,
        stored.boxes.table,
        dense.keys,
        dense.values,
        dense.boxes.table,
        codes.keys,
        codes.values,
        stored.positions if coded is None else coded.block_ids,
        codes.boxes.table,
        dense.keys if coded is None else coded.key_exponents,
        dense.keys if coded is None else coded.value_exponents,
        stored.boxes.table if coded is None else coded.blocks.table,
        sums,
        tops,
        totals,
        shares,
        share_tops,
        scale * LOG2_E,
        num_lanes,
        num_splits,
        max(num_tiles, 1),
        W=heads,
        G=group,
        M=shape.heads,
        D=head_dim,
        E=shape.columns,
        T=shape.rows,
        DOT=shape.uses_dot,
        CODED=coded is not None,
        PADDED=stored.is_padded,
        MASS=wants_mass,
        num_warps=shape.warps,
    )
    parted = Parted(sums, tops, totals, shares, share_tops, shape.rows)
    return combine(parted, q, stored, sinks=sinks, with_mass=with_mass, average=average)
