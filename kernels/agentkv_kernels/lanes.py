"""The specification, in plain torch, of what the kernels for a device do with lanes of rows.

One lane at a time: for tests, and for the CPU.
Shapes as in `boxes`.
"""

import torch
from torch import Tensor

from agentkv_kernels import reference
from agentkv_kernels.boxes import Average, Boxes, Drawn, Stored
from agentkv_kernels.formats import FORMATS
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
            _move(average, stored.boxes, mass, lane)
    return Drawn(output, mass if with_mass else None)


def _move(average: Average, boxes: Boxes, mass: Tensor, lane: int) -> None:
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
