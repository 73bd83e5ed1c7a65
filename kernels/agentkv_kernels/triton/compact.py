"""Triton: the rows that stay, gathered into boxes that fit them, one launch for each table; and
blocks of quantised rows merged, one launch.

Shapes as in `boxes`; E head size filled up to a power of two, t rows moved by one program.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from agentkv_kernels.boxes import Boxes, Int8Rows, Stored, uploaded
from agentkv_kernels.formats import BLOCK
from agentkv_kernels.lanes_kept import boxes_of_blocks, boxes_of_picks
from agentkv_kernels.triton.numbers import box_of, power, to_even

ROWS = 64


@triton.jit
def _move(
    old,
    new,
    old_boxes,
    new_boxes,
    lane,
    num_lanes,
    head,
    pick,
    row,
    stays,
    H: tl.constexpr,
    C: tl.constexpr,
    CP: tl.constexpr,
):
    """Rows `pick` of a head of a field of H heads, C numbers each, to rows `row` of its new box."""
    if head < H:
        columns = tl.arange(0, CP)
        source, _ = box_of(old_boxes, lane, num_lanes, head, H)
        target, _ = box_of(new_boxes, lane, num_lanes, head, H)
        mask = stays[:, None] & (columns < C)[None, :]
        x = tl.load(old + (source + pick)[:, None] * C + columns[None, :], mask=mask)
        tl.store(new + (target + row)[:, None] * C + columns[None, :], x, mask=mask)


@triton.jit(do_not_specialize=["num_picks", "num_lanes"])
def gather_kernel(
    picks,
    old_boxes,
    new_boxes,
    old_codes,
    new_codes,
    a,
    b,
    c,
    new_a,
    new_b,
    new_c,
    num_picks,
    num_lanes,
    HA: tl.constexpr,
    CA: tl.constexpr,
    PA: tl.constexpr,
    HB: tl.constexpr,
    CB: tl.constexpr,
    PB: tl.constexpr,
    HC: tl.constexpr,
    CC: tl.constexpr,
    PC: tl.constexpr,
    T: tl.constexpr,
    BEHIND: tl.constexpr,
):
    """Program (i, j, h): rows j T .. of lane i, head h of each of three fields that has so many.

    With BEHIND the table holds only the rows behind the quantised ones, whose picks come first.
    """
    lane, head = tl.program_id(0), tl.program_id(2)
    row = tl.program_id(1) * T + tl.arange(0, T)
    stays = row < tl.load(new_boxes + 3 * num_lanes + lane)
    skipped, passed = 0, 0
    if BEHIND:
        skipped = tl.load(new_codes + 3 * num_lanes + lane)
        passed = tl.load(old_codes + 3 * num_lanes + lane)
    at = lane.to(tl.int64) * num_picks + skipped + row
    pick = tl.load(picks + at, mask=stays, other=0) - passed
    _move(a, new_a, old_boxes, new_boxes, lane, num_lanes, head, pick, row, stays, HA, CA, PA)
    _move(b, new_b, old_boxes, new_boxes, lane, num_lanes, head, pick, row, stays, HB, CB, PB)
    _move(c, new_c, old_boxes, new_boxes, lane, num_lanes, head, pick, row, stays, HC, CC, PC)


@triton.jit
def _merged(
    codes, exponents, ids, inside, new_exponents, D: tl.constexpr, E: tl.constexpr, B: tl.constexpr
):
    """B rows of codes brought to one exponent per channel, in place: `formats.merge`."""
    columns, rows = tl.arange(0, E), tl.arange(0, B)
    mask = inside[:, None] & (columns < D)[None, :]
    at = ids.to(tl.int64)[:, None] * D + columns[None, :]
    own = tl.load(exponents + at, mask=mask, other=-126).to(tl.int32)
    largest = tl.max(own, axis=0)
    tl.store(new_exponents + columns, largest.to(tl.int8), mask=columns < D)
    # a shift of 8 or more leaves at most a rounding of 127 / 256, which is 0
    shift = tl.maximum(own - largest[None, :], -9)
    at = rows[:, None] * D + columns[None, :]
    held = tl.load(codes + at, mask=mask, other=0).to(tl.float32)
    tl.store(codes + at, to_even(held * power(shift)).to(tl.int8), mask=mask)


@triton.jit
def _copied(exponents, new_exponents, D: tl.constexpr, E: tl.constexpr):
    columns = tl.arange(0, E)
    x = tl.load(exponents + columns, mask=columns < D)
    tl.store(new_exponents + columns, x, mask=columns < D)


@triton.jit(do_not_specialize=["num_lanes"])
def merge_kernel(
    keys,
    values,
    block_ids,
    boxes,
    key_exponents,
    value_exponents,
    blocks,
    new_ids,
    new_key_exponents,
    new_value_exponents,
    new_blocks,
    merges,
    num_lanes,
    W: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    B: tl.constexpr,
):
    """Program (i, j): rows j B .. of head i mod W of lane i // W become block j where the lane
    merges, and else its block j is copied."""
    lane, head, part = tl.program_id(0) // W, tl.program_id(0) % W, tl.program_id(1)
    first, count = box_of(boxes, lane, num_lanes, head, W)
    first_id, _ = box_of(boxes, lane, num_lanes, 0, 1)
    first_old, num_blocks = box_of(blocks, lane, num_lanes, head, W)
    first_new, _ = box_of(new_blocks, lane, num_lanes, head, W)
    row = part * B + tl.arange(0, B)
    inside = row < count
    ids = tl.load(block_ids + first_id + row, mask=inside, other=0)
    new_at = (first_new + part) * D
    if tl.load(merges + lane) != 0:
        if part * B < count:
            at, old_at = (first + part * B) * D, first_old * D
            k_new, v_new = new_key_exponents + new_at, new_value_exponents + new_at
            _merged(keys + at, key_exponents + old_at, ids, inside, k_new, D, E, B)
            _merged(values + at, value_exponents + old_at, ids, inside, v_new, D, E, B)
        ids = tl.zeros((B,), tl.int32) + part
    elif part < num_blocks:
        old_at = (first_old + part) * D
        _copied(key_exponents + old_at, new_key_exponents + new_at, D, E)
        _copied(value_exponents + old_at, new_value_exponents + new_at, D, E)
    if head == 0:
        tl.store(new_ids + first_id + row, ids, mask=inside)


def compact(
    stored: Stored,
    picks: Tensor,
    *,
    counts: Sequence[int],
    coded_counts: Sequence[int],
    spare: int,
    carried: Sequence[Tensor] = (),
) -> tuple[Stored, list[Tensor]]:
    """As `lanes.compact`, without asking the device anything. At most two fields are carried."""
    assert len(carried) <= 2, "the launch moves three fields"
    new = boxes_of_picks(stored, counts, coded_counts, spare)
    coded, heads = stored.coded, stored.num_heads
    codes = (new.rows, new.rows) if coded is None else (coded.boxes, new.codes)
    about = [(field, field.shape[0] // stored.positions.shape[0]) for field in carried]
    positions, *others = _gathered(
        picks, stored.boxes, new.rows, codes, [(stored.positions, 1), *about], behind=False
    )
    dense = stored.dense
    fields = [(dense.keys, heads), (dense.values, heads)]
    keys, values = _gathered(picks, dense.boxes, new.dense, codes, fields, behind=coded is not None)
    dense = replace(dense, boxes=new.dense, keys=keys, values=values)
    if coded is not None:
        fields = [(coded.keys, heads), (coded.values, heads), (coded.block_ids, 1)]
        keys, values, ids = _gathered(picks, coded.boxes, new.codes, codes, fields, behind=False)
        coded = replace(coded, boxes=new.codes, keys=keys, values=values, block_ids=ids)
    after = replace(stored, boxes=new.rows, positions=positions, dense=dense, coded=coded)
    return after, others


def _gathered(
    picks: Tensor,
    old: Boxes,
    new: Boxes,
    codes: tuple[Boxes, Boxes],
    fields: Sequence[tuple[Tensor, int]],
    *,
    behind: bool,
) -> list[Tensor]:
    """The picked rows of up to three fields, each with so many heads, in new boxes."""
    made = [x.new_empty(heads * sum(new.rooms), *x.shape[1:]) for x, heads in fields]
    if not new.most:
        return made
    given = [*fields, *[(fields[0][0], 0)] * (3 - len(fields))]
    widths = [x.shape[1:].numel() for x, _ in given]
    sizes = zip("ABC", given, widths, strict=True)
    named = {f"H{name}": heads if width else 0 for name, (_, heads), width in sizes}
    for name, width in zip("ABC", widths, strict=True):
        named |= {f"C{name}": max(width, 1), f"P{name}": triton.next_power_of_2(max(width, 1))}
    most_heads = max(heads for _, heads in fields)
    gather_kernel[(new.num_lanes, triton.cdiv(new.most, ROWS), most_heads)](
        picks,
        old.table,
        new.table,
        codes[0].table,
        codes[1].table,
        *[x for x, _ in given],
        *[made[i] if i < len(made) else made[0] for i in range(3)],
        picks.shape[1],
        new.num_lanes,
        **named,
        T=ROWS,
        BEHIND=behind,
    )
    return made


def merge_blocks(coded: Int8Rows, merges: Sequence[bool], *, num_heads: int) -> Int8Rows:
    """As `lanes.merge_blocks`, without asking the device anything."""
    blocks = boxes_of_blocks(coded, merges)
    num_rows, head_dim = num_heads * sum(blocks.rooms), coded.keys.shape[1]
    ids = torch.empty_like(coded.block_ids)
    exponents = [coded.key_exponents.new_empty(num_rows, head_dim) for _ in range(2)]
    parts = max(triton.cdiv(coded.boxes.most, BLOCK), blocks.most)
    if parts:
        merge_kernel[(num_heads * blocks.num_lanes, parts)](
            coded.keys,
            coded.values,
            coded.block_ids,
            coded.boxes.table,
            coded.key_exponents,
            coded.value_exponents,
            coded.blocks.table,
            ids,
            *exponents,
            blocks.table,
            uploaded(merges, dtype=torch.int32, device=ids.device),
            blocks.num_lanes,
            W=num_heads,
            D=head_dim,
            E=triton.next_power_of_2(head_dim),
            B=BLOCK,
        )
    key_exponents, value_exponents = exponents
    return replace(
        coded,
        block_ids=ids,
        blocks=blocks,
        key_exponents=key_exponents,
        value_exponents=value_exponents,
    )
