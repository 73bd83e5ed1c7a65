"""One new token per lane on a processor: tensors to `kernels` and back, without copies.

What is served: `limits`. Importing this imports Numba, which takes half a second.

Shapes as in `boxes` and in `parts`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentkv_kernels.boxes import Average, Drawn, Stored
from agentkv_kernels.index import BASE, COUNT, ROOM
from agentkv_kernels.lanes import move
from agentkv_kernels.numba import kernels
from agentkv_kernels.parts import Dense, Part
from agentkv_kernels.reference import Attended

LOG2_E = 1.4426950408889634

Array = np.ndarray[Any, np.dtype[Any]]

_NO_MASS = torch.empty((0, 0))


@dataclass(frozen=True, slots=True)
class Held:
    """What lanes hold, as arrays. Fields as in `boxes.Stored`; tables (4, N)."""

    boxes: Array
    dense: tuple[Array, Array, Array]
    """Keys, values, table."""
    coded: tuple[Array, Array, Array, Array, Array, Array, Array]
    """Keys, values, block ids, table; exponents of keys and values, table."""
    positions: Array
    is_padded: bool


def attend_lanes(
    q: Tensor,
    stored: Stored,
    *,
    scale: float,
    sinks: Tensor | None = None,
    with_mass: bool = False,
    average: Average | None = None,
) -> Drawn:
    """As `lanes.attend_lanes`, all lanes in one call, of whatever lengths."""
    dense, coded, heads = stored.dense, stored.coded, stored.num_heads
    codes = _no_codes(stored.num_lanes, stored.head_dim)
    if coded is not None:
        codes = (
            coded.keys.numpy(),
            coded.values.numpy(),
            coded.block_ids.numpy(),
            coded.boxes.table.numpy(),
            coded.key_exponents.numpy(),
            coded.value_exponents.numpy(),
            coded.blocks.table.numpy(),
        )
    held = Held(
        boxes=stored.boxes.table.numpy(),
        dense=(dense.keys.numpy(), dense.values.numpy(), dense.boxes.table.numpy()),
        coded=codes,
        positions=stored.positions.numpy(),
        is_padded=stored.is_padded,
    )
    if not with_mass and average is None:
        return Drawn(_attend(q, held, scale, sinks, heads, _NO_MASS), None)
    drawn = torch.empty((1, stored.positions.shape[0]))
    output, mass = _attend(q, held, scale, sinks, heads, drawn), drawn[0]
    if average is not None:
        for lane in range(stored.num_lanes):
            move(average, stored.boxes, mass, lane)
    return Drawn(output, mass if with_mass else None)


def attend(
    q: Tensor,
    parts: Sequence[Part],
    *,
    scale: float,
    sinks: Tensor | None = None,
    num_mass_queries: int = 0,
) -> Attended:
    """As `reference.attend`, where `limits.lack_of_parts` finds nothing and the query sees all."""
    batch, num_q_heads, _, head_dim = q.shape
    heads, num_rows = parts[0].keys.shape[1], sum(part.num_rows for part in parts)
    codes, dense = _no_codes(batch, head_dim), _no_rows(batch, head_dim)
    for part in parts:
        keys, values = part.keys, part.values
        if _room(keys) is None or _room(keys) != _room(values):
            keys, values = keys.contiguous(), values.contiguous()
        flat = _flat(keys), _flat(values)
        boxes = _table(batch, _room(keys) or 0, part.num_rows)
        if isinstance(part, Dense):
            dense = *flat, boxes
            continue
        assert part.block_ids is not None
        ids = np.empty((batch, boxes[1, 0]), np.int32)
        ids[:, : part.num_rows] = part.block_ids.numpy()
        scales = part.key_scales.contiguous(), part.value_scales.contiguous()
        num_blocks = part.key_scales.shape[2]
        blocks = _flat(scales[0]), _flat(scales[1]), _table(batch, num_blocks, num_blocks)
        codes = *flat, ids.reshape(-1), boxes, *blocks
    held = Held(
        _table(batch, num_rows, num_rows), dense, codes, np.empty(0, np.int32), is_padded=False
    )
    mass = torch.empty((heads, batch * num_rows)) if num_mass_queries else _NO_MASS
    output = _attend(q[:, :, 0], held, scale, sinks, heads, mass).view(q.shape)
    if not num_mass_queries:
        return Attended(output, None)
    return Attended(output, mass.view(heads, batch, num_rows).transpose(0, 1))


def _attend(
    q: Tensor, held: Held, scale: float, sinks: Tensor | None, heads: int, mass: Tensor
) -> Tensor:
    """Output (N, W * G, D); writes `mass`, of a shape that `kernels.attend` knows."""
    num_lanes, num_q_heads, head_dim = q.shape
    output = torch.empty((num_lanes, num_q_heads, head_dim))
    extra = np.empty((0, num_q_heads), np.float32)
    if sinks is not None:
        extra = sinks.detach().to(torch.float32).reshape(-1, num_q_heads).numpy()
    kernels.attend(
        heads,
        q.detach().contiguous().numpy(),
        np.float32(scale * LOG2_E),
        extra,
        held.positions,
        held.boxes,
        held.is_padded,
        *held.dense,
        *held.coded,
        output.numpy(),
        mass.numpy(),
    )
    return output


def _room(x: Tensor) -> int | None:
    """Rows of room that each head of (B, H, T, D) has, where the heads of all sequences lie one
    after another in memory with room behind them; else None."""
    batch, heads, num_rows, head_dim = x.shape
    if x.is_contiguous():
        return num_rows
    if x.stride(3) != 1 or x.stride(2) != head_dim:
        return None
    step = x.stride(1) if heads > 1 else x.stride(0)
    if step % head_dim or (batch > 1 and x.stride(0) != heads * step):
        return None
    return step // head_dim


def _flat(x: Tensor) -> Array:
    """(R, D) of a tensor (B, H, T, D) that has a `_room`."""
    batch, heads, num_rows, head_dim = x.shape
    room = _room(x)
    assert room is not None
    num_all = (batch * heads - 1) * room + num_rows if num_rows else 0
    return x.detach().as_strided((num_all, head_dim), (head_dim, 1)).numpy()


def _table(num_lanes: int, room: int, count: int) -> Array:
    """`boxes.Boxes.table` of lanes that are alike."""
    table = np.zeros((4, num_lanes), np.int32)
    table[BASE] = np.arange(num_lanes) * room
    table[ROOM], table[COUNT] = room, count
    return table


@cache
def _no_rows(num_lanes: int, head_dim: int) -> tuple[Array, Array, Array]:
    rows = np.empty((0, head_dim), np.float32)
    return rows, rows, np.zeros((4, num_lanes), np.int32)


@cache
def _no_codes(
    num_lanes: int, head_dim: int
) -> tuple[Array, Array, Array, Array, Array, Array, Array]:
    rows, table = np.empty((0, head_dim), np.int8), np.zeros((4, num_lanes), np.int32)
    return rows, rows, np.empty(0, np.int32), table, rows, rows, table
