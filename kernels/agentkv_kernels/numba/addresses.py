"""Numba: memory by its address, and the tables that an `Index` tells of.

Nothing is checked here: an index has to be right, and every row it speaks of to have its room.
"""

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from agentkv_kernels.index import (
    ADDRESS,
    BASE,
    BOXES,
    COUNT,
    HEADS,
    NUM_FIELDS,
    NUM_LANES,
    ROOM,
    SIZE,
    START,
)


@intrinsic
def pointer(typing_context, address):
    """An int64 as a pointer."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


@intrinsic
def move(typing_context, target, source, num_bytes):
    """Copy bytes from one address (int64) to another; the two may overlap."""

    def generate(context, builder, signature, arguments):
        byte = ir.IntType(8).as_pointer()
        to, start = (builder.inttoptr(address, byte) for address in arguments[:2])
        cgutils.raw_memmove(builder, to, start, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@njit(error_model="numpy", cache=True)
def index_at(address):
    """The numbers of an `Index`."""
    head = carray(pointer(address), (BOXES,), np.int64)
    size = BOXES + 4 * head[NUM_LANES] + 3 * head[NUM_FIELDS]
    return carray(pointer(address), (size,), np.int64)


@njit(error_model="numpy", cache=True)
def boxes_of(index):
    """(4, N) int64: base, room, start and count of every lane."""
    num_lanes = index[NUM_LANES]
    return index[BOXES : BOXES + 4 * num_lanes].reshape(4, num_lanes)


@njit(error_model="numpy", cache=True)
def field_of(index, field, which):
    """`ADDRESS`, `HEADS` or `SIZE` of a field."""
    return index[BOXES + 4 * index[NUM_LANES] + 3 * field + which]


@njit(error_model="numpy", cache=True)
def num_rows_of(index, field):
    """Rows of all heads, with their room."""
    boxes = boxes_of(index)
    return field_of(index, field, HEADS) * boxes[ROOM].sum()


@njit(error_model="numpy", cache=True)
def has_room(index):
    """Whether every lane has room for one more row."""
    boxes = boxes_of(index)
    for lane in range(boxes.shape[1]):
        if boxes[START, lane] + boxes[COUNT, lane] >= boxes[ROOM, lane]:
            return False
    return True


@njit(error_model="numpy", cache=True)
def row_at(index, field, lane, head, row):
    """The address of a row of a lane, counted from its first."""
    boxes, heads = boxes_of(index), field_of(index, field, HEADS)
    flat = heads * boxes[BASE, lane] + head * boxes[ROOM, lane] + boxes[START, lane] + row
    return field_of(index, field, ADDRESS) + flat * field_of(index, field, SIZE)


@njit(error_model="numpy", cache=True)
def close(index, lane, row, move_older):
    """Let one row of a lane go, those before it moving up or those behind it moving down."""
    boxes = boxes_of(index)
    for field in range(index[NUM_FIELDS]):
        size = field_of(index, field, SIZE)
        for head in range(field_of(index, field, HEADS) if size else 0):
            first = row_at(index, field, lane, head, 0)
            if move_older:
                move(first + size, first, row * size)
            else:
                at = first + row * size
                move(at, at + size, (boxes[COUNT, lane] - row - 1) * size)
    boxes[START, lane] += 1 if move_older else 0
    boxes[COUNT, lane] -= 1
