"""The specification, in plain torch, of letting rows go: those that stay gathered into boxes that
fit them, and blocks of quantised rows merged.

Shapes as in `boxes`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from agentkv_kernels.boxes import Boxes, Int8Rows, Stored
from agentkv_kernels.formats import BLOCK, merge


def compact(
    stored: Stored,
    picks: Tensor,
    *,
    counts: Sequence[int],
    coded_counts: Sequence[int],
    spare: int,
    carried: Sequence[Tensor] = (),
) -> tuple[Stored, list[Tensor]]:
    """Of each lane only some rows, in memory that fits them; the old memory is left as it was.

    Blocks of scales stay as they are, so that every row keeps its integers; see `merge_blocks`.

    Args:
        picks: (N, at least max counts) int32, the rows that stay of each lane, by their number in
            storage order, ascending; those behind counts[lane] hold anything.
        counts: how many of them each lane has.
        coded_counts: how many of these are quantised rows.
        spare: rows of room behind those of a lane that has any.
        carried: other fields of the rows, (heads * R, ...) in the boxes of the positions.

    Returns:
        The rows that stay, and what they carry.
    """
    new, heads, coded = boxes_of_picks(stored, counts, coded_counts, spare), stored.num_heads, None
    lanes = range(stored.num_lanes)
    whole = [picks[lane, : counts[lane]] for lane in lanes]
    others = list(whole)
    if (old := stored.coded) is not None:
        first = [pick[:n] for pick, n in zip(whole, coded_counts, strict=True)]
        others = [whole[i][coded_counts[i] :] - old.boxes.counts[i] for i in lanes]
        coded = replace(
            old,
            boxes=new.codes,
            keys=_picked(old.keys, old.boxes, new.codes, first, heads),
            values=_picked(old.values, old.boxes, new.codes, first, heads),
            block_ids=_picked(old.block_ids, old.boxes, new.codes, first, 1),
        )
    dense = replace(
        stored.dense,
        boxes=new.dense,
        keys=_picked(stored.dense.keys, stored.dense.boxes, new.dense, others, heads),
        values=_picked(stored.dense.values, stored.dense.boxes, new.dense, others, heads),
    )
    positions = _picked(stored.positions, stored.boxes, new.rows, whole, 1)
    num_rows = stored.positions.shape[0]
    carried = [
        _picked(field, stored.boxes, new.rows, whole, field.shape[0] // num_rows)
        for field in carried
    ]
    after = replace(stored, boxes=new.rows, positions=positions, dense=dense, coded=coded)
    return after, carried


def _picked(flat: Tensor, old: Boxes, new: Boxes, picks: Sequence[Tensor], heads: int) -> Tensor:
    made = flat.new_empty(heads * sum(new.rooms), *flat.shape[1:])
    for lane, pick in enumerate(picks):
        new.rows(made, lane, heads)[:] = old.rows(flat, lane, heads).index_select(1, pick)
    return made


@dataclass(frozen=True, slots=True)
class NewBoxes:
    """Boxes for the rows that stay."""

    rows: Boxes
    """All of them."""
    dense: Boxes
    codes: Boxes


def boxes_of_picks(
    stored: Stored, counts: Sequence[int], coded_counts: Sequence[int], spare: int
) -> NewBoxes:
    """Boxes that fit so many rows, so many of them quantised."""
    device = stored.positions.device

    def fitting(numbers: Sequence[int]) -> Boxes:
        rooms = [number + spare if number else 0 for number in numbers]
        return Boxes.of(rooms, [0] * len(rooms), numbers, device=device)

    dense = [count - coded for count, coded in zip(counts, coded_counts, strict=True)]
    return NewBoxes(fitting(counts), fitting(dense), fitting(coded_counts))


def merge_blocks(coded: Int8Rows, merges: Sequence[bool], *, num_heads: int) -> Int8Rows:
    """The rows of some lanes in as few blocks as they fill, as `formats.merge` does it.

    Codes are changed in place; block ids and exponents are new, their room only what they need.
    """
    blocks = boxes_of_blocks(coded, merges)
    ids = torch.empty_like(coded.block_ids)
    num_rows = num_heads * sum(blocks.rooms)
    made = [coded.key_exponents.new_empty(num_rows, coded.keys.shape[1]) for _ in range(2)]
    for lane, is_merged in enumerate(merges):
        old_ids = coded.boxes.rows(coded.block_ids, lane, 1)[0]
        new_ids = coded.boxes.rows(ids, lane, 1)[0]
        new_ids.copy_(old_ids)
        for flat, old, new in (
            (coded.keys, coded.key_exponents, made[0]),
            (coded.values, coded.value_exponents, made[1]),
        ):
            codes = coded.boxes.rows(flat, lane, num_heads)
            exponents = coded.blocks.rows(old, lane, num_heads)
            if is_merged and codes.shape[1]:
                merged, exponents, found = merge(codes, exponents, old_ids)
                codes.copy_(merged)
                new_ids.copy_(found)
            blocks.rows(new, lane, num_heads)[:] = exponents[:, : blocks.counts[lane]]
    return replace(
        coded, block_ids=ids, blocks=blocks, key_exponents=made[0], value_exponents=made[1]
    )


def boxes_of_blocks(coded: Int8Rows, merges: Sequence[bool]) -> Boxes:
    """Boxes for the blocks once some lanes are merged, without room to spare."""
    counts = [
        -(-rows // BLOCK) if is_merged else blocks
        for rows, blocks, is_merged in zip(
            coded.boxes.counts, coded.blocks.counts, merges, strict=True
        )
    ]
    return Boxes.of(counts, [0] * len(counts), counts, device=coded.keys.device)
