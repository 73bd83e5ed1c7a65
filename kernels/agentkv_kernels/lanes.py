"""The specification, in plain torch, of what the kernels for a device do with lanes of rows.

One lane at a time: for tests, and for the CPU.
Shapes as in `boxes`.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from agentkv_kernels import reference
from agentkv_kernels.boxes import Average, Boxes, Drawn, Int8Rows, Stored
from agentkv_kernels.formats import BLOCK, FORMATS
from agentkv_kernels.parts import Coded, Dense, Part


def attend_lanes(
    q: Tensor,
    stored: Stored,
    *,
    scale: float,
    sinks: Tensor | None = None,
    with_mass: bool = False,
    average: Average | None = None,
) -> Drawn:
    """Attention of one new token per lane over everything its lane holds, its own row included.

    Args:
        q: (N, W * G, D), rotated; query head h * G + g of a lane reads the lane's head h.
        scale: factor on the logits before the softmax.
        sinks: (S * W * G,), one logit per query head of a sequence; it joins the softmax and has
            no value row. Lane i is lane i mod S of its sequence.
        with_mass: whether to return the mass.
        average: moved in place by the mass.

    A lane without rows gets zeros.
    """
    output = torch.zeros_like(q)
    wanted = with_mass or average is not None
    mass = torch.zeros_like(stored.positions, dtype=torch.float32) if wanted else None
    for lane in range(stored.num_lanes):
        parts = parts_of(stored, lane)
        if not parts:
            continue
        mine = None if sinks is None else sinks.view(-1, q.shape[1])
        done = reference.attend(
            q[lane, None, :, None],
            parts,
            scale=scale,
            sinks=None if mine is None else mine[lane % mine.shape[0]],
            num_mass_queries=int(wanted),
        )
        output[lane] = done.output[0, :, 0]
        if mass is not None and done.mass is not None:
            stored.boxes.rows(mass, lane, 1)[0] = done.mass[0].mean(dim=0)
    if average is not None and mass is not None:
        for lane in range(stored.num_lanes):
            move(average, stored.boxes, mass, lane)
    return Drawn(output, mass if with_mass else None)


def move(average: Average, boxes: Boxes, mass: Tensor, lane: int) -> None:
    """Move the numbers of one lane by its mass (R,), in place."""
    numbers = boxes.rows(average.numbers, lane, 1)[0, :, 0]
    drawn = boxes.rows(mass, lane, 1)[0]
    moved = average.keep * numbers + average.gain * drawn
    if average.starts_at_mass:
        moved[-1:] = drawn[-1:]
    numbers.copy_(moved)


def parts_of(stored: Stored, lane: int) -> list[Part]:
    """The rows of one lane that has any, as views for attention."""
    positions, heads = stored.boxes.rows(stored.positions, lane, 1), stored.num_heads
    parts: list[Part] = []
    coded = stored.coded
    split = 0 if coded is None else coded.boxes.counts[lane]
    if coded is not None and split:
        parts.append(
            Coded(
                FORMATS["int8"],
                coded.boxes.rows(coded.keys, lane, heads)[None],
                coded.boxes.rows(coded.values, lane, heads)[None],
                coded.blocks.rows(coded.key_exponents, lane, heads)[None],
                coded.blocks.rows(coded.value_exponents, lane, heads)[None],
                coded.boxes.rows(coded.block_ids, lane, 1),
                positions[:, :split],
                stored.is_padded,
            )
        )
    if positions.shape[1] > split:
        dense = stored.dense
        keys = dense.boxes.rows(dense.keys, lane, heads)[None]
        values = dense.boxes.rows(dense.values, lane, heads)[None]
        parts.append(Dense(keys, values, positions[:, split:], stored.is_padded))
    return parts


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
    """Add one row at the end of every lane, and quantise the oldest 64 rows in the model's dtype
    where more than recent + 63 of a lane are left.

    Rows are written in place, into room that must be there: one row of the positions and of the
    others, and of a lane that quantises 64 rows of codes and a block. Nothing else moves.

    Args:
        keys, values: (N, W, D) in the model's dtype.
        positions: (N,) int32; with `plus` added, those of the new rows.
        recent: None: nothing is quantised.
        numbers: (R, k), one head in a lane: what rows carry along, 0 for the new one.

    Returns:
        The same rows in boxes that have moved on.
    """
    after, dense, heads = grown(stored, recent), stored.dense, stored.num_heads
    num_lanes = stored.num_lanes
    with_new = dense.boxes.gone_on([0] * num_lanes, [1] * num_lanes, None)
    for lane in range(num_lanes):
        after.boxes.rows(stored.positions, lane, 1)[0, -1] = positions[lane] + plus
        if numbers is not None:
            after.boxes.rows(numbers, lane, 1)[0, -1] = 0
        oldest = []
        for new, flat in ((keys, dense.keys), (values, dense.values)):
            rows = with_new.rows(flat, lane, heads)
            rows[:, -1] = new[lane]
            oldest.append(rows[:, :BLOCK])
        if after.dense.boxes.starts[lane] > dense.boxes.starts[lane]:
            assert after.coded is not None
            _quantise(oldest, after.coded, lane, heads)
    return after


def _quantise(oldest: Sequence[Tensor], coded: Int8Rows, lane: int, heads: int) -> None:
    """Fill the last 64 rows of a lane's codes, and its last block, from keys and values."""
    for rows, codes, exponents in (
        (oldest[0], coded.keys, coded.key_exponents),
        (oldest[1], coded.values, coded.value_exponents),
    ):
        made, scale = FORMATS["int8"].encode(rows)
        coded.boxes.rows(codes, lane, heads)[:, -BLOCK:] = made
        coded.blocks.rows(exponents, lane, heads)[:, -1:] = scale
    coded.boxes.rows(coded.block_ids, lane, 1)[0, -BLOCK:] = coded.blocks.counts[lane] - 1


def grown(stored: Stored, recent: int | None, tables: Sequence[Tensor] | None = None) -> Stored:
    """What is stored once every lane has a row more, and what became too old is quantised.

    Args:
        tables: of the boxes, if a kernel wrote them: of positions and others, and of codes and
            blocks if any lane quantises.
    """
    dense, coded = stored.dense, stored.coded
    is_due = [recent is not None and n + 1 - recent >= BLOCK for n in dense.boxes.counts]
    left = [BLOCK * due for due in is_due]
    given: list[Tensor | None] = [None] * 4 if tables is None else [*tables, None, None]
    boxes = stored.boxes.gone_on([0] * len(left), [1] * len(left), given[0])
    gains = [1 - count for count in left]
    dense = replace(dense, boxes=dense.boxes.gone_on(left, gains, given[1]))
    if any(is_due):
        assert coded is not None, "nothing to hold quantised rows"
        none = [0] * len(left)
        codes = coded.boxes.gone_on(none, left, given[2])
        blocks = coded.blocks.gone_on(none, [int(due) for due in is_due], given[3])
        coded = replace(coded, boxes=codes, blocks=blocks)
    return replace(stored, boxes=boxes, dense=dense, coded=coded)
