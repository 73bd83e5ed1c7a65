"""Triton: one new row at the end of every lane, and the block that thereby leaves the rows in the
model's dtype quantised, in one launch.

Shapes as in `boxes`; E head size filled up to a power of two.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from agentkv_kernels.boxes import Boxes, Stored
from agentkv_kernels.formats import BLOCK
from agentkv_kernels.lanes import grown
from agentkv_kernels.triton.numbers import box_of, power, to_even


@triton.jit
def _encoded(x):
    """Codes (t, E) int8 and exponents (E,) int8 of rows (t, E) float32: `formats.Int8.encode`."""
    top = tl.max(tl.abs(x), axis=0)
    bits = top.to(tl.int32, bitcast=True)
    # the smallest e with top <= 127 * 2**e, and 127 = 1.984375 * 2**6
    above = (bits & 0x7FFFFF) > 0x7E0000
    exponents = tl.maximum((bits >> 23) - 133 + above.to(tl.int32), -126)
    codes = to_even(x * power(-exponents)[None, :])
    codes = tl.minimum(tl.maximum(codes, -127.0), 127.0)
    return codes.to(tl.int8), exponents.to(tl.int8)


@triton.jit
def _quantise(x, new, count, codes, exponents, D: tl.constexpr, E: tl.constexpr, B: tl.constexpr):
    """The first B of `count` rows x and of `new`, which stands behind them: to codes and their
    exponents."""
    columns, rows = tl.arange(0, E), tl.arange(0, B)
    is_column = (columns < D)[None, :]
    at = rows[:, None] * D + columns[None, :]
    held = tl.load(x + at, mask=(rows < count)[:, None] & is_column, other=0.0).to(tl.float32)
    # other threads may not see yet what was stored of the new row
    held = tl.where((rows == count)[:, None], new.to(tl.float32)[None, :], held)
    made, scale = _encoded(held)
    tl.store(codes + at, made, mask=(rows < B)[:, None] & is_column)
    tl.store(exponents + columns, scale, mask=columns < D)


@triton.jit
def _advance(old, new, lane, num_lanes, start_by, count_by):
    """The lane's column of a table of boxes, moved on."""
    for row in tl.static_range(4):
        number = tl.load(old + row * num_lanes + lane)
        if row == 2:
            number += start_by
        if row == 3:
            number += count_by
        tl.store(new + row * num_lanes + lane, number)


@triton.jit(do_not_specialize=["num_lanes", "recent", "plus"])
def append_kernel(
    new_keys,
    new_values,
    new_positions,
    positions,
    numbers,
    boxes,
    keys,
    values,
    dense_boxes,
    key_codes,
    value_codes,
    block_ids,
    code_boxes,
    key_exponents,
    value_exponents,
    block_boxes,
    next_boxes,
    next_dense_boxes,
    next_code_boxes,
    next_block_boxes,
    plus,
    recent,
    num_lanes,
    W: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    K: tl.constexpr,
    KP: tl.constexpr,
    B: tl.constexpr,
    NUMBERS: tl.constexpr,
    QUANTISES: tl.constexpr,
):
    """Program i: head i mod W of lane i // W. Boxes are read from the old tables and written to
    new ones, as other programs of the lane may not have read them yet."""
    lane, head = tl.program_id(0) // W, tl.program_id(0) % W
    columns = tl.arange(0, E)
    is_column = columns < D
    source = tl.program_id(0).to(tl.int64) * D + columns
    k = tl.load(new_keys + source, mask=is_column, other=0.0)
    v = tl.load(new_values + source, mask=is_column, other=0.0)
    first_dense, num_dense = box_of(dense_boxes, lane, num_lanes, head, W)
    target = (first_dense + num_dense) * D + columns
    tl.store(keys + target, k, mask=is_column)
    tl.store(values + target, v, mask=is_column)
    leaving = 0
    if QUANTISES:
        is_due = num_dense + 1 - recent >= B
        leaving = tl.where(is_due, B, 0)
        first_code, num_coded = box_of(code_boxes, lane, num_lanes, head, W)
        first_block, num_blocks = box_of(block_boxes, lane, num_lanes, head, W)
        if is_due:
            codes_at, block_at = (first_code + num_coded) * D, (first_block + num_blocks) * D
            k_codes, k_exponents = key_codes + codes_at, key_exponents + block_at
            v_codes, v_exponents = value_codes + codes_at, value_exponents + block_at
            oldest = first_dense * D
            _quantise(keys + oldest, k, num_dense, k_codes, k_exponents, D, E, B)
            _quantise(values + oldest, v, num_dense, v_codes, v_exponents, D, E, B)
            if head == 0:
                first_id, _ = box_of(code_boxes, lane, num_lanes, 0, 1)
                rows = tl.arange(0, B)
                ids = tl.zeros((B,), tl.int32) + num_blocks
                tl.store(block_ids + first_id + num_coded + rows, ids)
    if head == 0:
        first, count = box_of(boxes, lane, num_lanes, 0, 1)
        tl.store(positions + first + count, tl.load(new_positions + lane) + plus)
        if NUMBERS:
            inner = tl.arange(0, KP)
            zeros = tl.zeros((KP,), numbers.dtype.element_ty)
            tl.store(numbers + (first + count) * K + inner, zeros, mask=inner < K)
        _advance(boxes, next_boxes, lane, num_lanes, 0, 1)
        _advance(dense_boxes, next_dense_boxes, lane, num_lanes, leaving, 1 - leaving)
        if QUANTISES:
            _advance(code_boxes, next_code_boxes, lane, num_lanes, 0, leaving)
            _advance(block_boxes, next_block_boxes, lane, num_lanes, 0, leaving // B)


def append_row(
    stored: Stored,
    keys: Tensor,
    values: Tensor,
    *,
    positions: Tensor,
    plus: int = 0,
    recent: int | None = None,
    numbers: Tensor | None = None,
) -> Stored:
    """As `lanes.append_row`, without asking the device anything."""
    num_lanes, heads, head_dim = keys.shape
    dense, coded = stored.dense, stored.coded
    due = recent is not None and any(n + 1 - recent >= BLOCK for n in dense.boxes.counts)
    assert coded is not None or not due, "nothing to hold quantised rows"
    tables = [stored.boxes, dense.boxes]
    tables += [] if coded is None else [coded.boxes, coded.blocks]
    moved = [torch.empty_like(boxes.table) for boxes in tables]
    # what is not read still needs a pointer
    codes = dense if coded is None else coded
    blocks: Boxes = dense.boxes if coded is None else coded.blocks
    width = 1 if numbers is None else numbers.shape[1]
    append_kernel[(num_lanes * heads,)](
        keys.contiguous(),
        values.contiguous(),
        positions,
        stored.positions,
        stored.positions if numbers is None else numbers,
        stored.boxes.table,
        dense.keys,
        dense.values,
        dense.boxes.table,
        codes.keys,
        codes.values,
        stored.positions if coded is None else coded.block_ids,
        codes.boxes.table,
        codes.keys if coded is None else coded.key_exponents,
        codes.values if coded is None else coded.value_exponents,
        blocks.table,
        moved[0],
        moved[1],
        moved[-2],
        moved[-1],
        plus,
        0 if recent is None else recent,
        num_lanes,
        W=heads,
        D=head_dim,
        E=triton.next_power_of_2(head_dim),
        K=width,
        KP=triton.next_power_of_2(width),
        B=BLOCK,
        NUMBERS=numbers is not None and width > 0,
        QUANTISES=due,
        num_warps=warps_for(head_dim),
    )
    return grown(stored, recent, moved if due else moved[:2])


def warps_for(head_dim: int) -> int:
    """Warps that hold 64 rows of a head in their registers."""
    return 4 if head_dim <= 128 else 8
