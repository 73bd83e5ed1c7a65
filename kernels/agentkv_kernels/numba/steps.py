"""Numba: a step of one new token in all lanes of a layer, told by its `Rack`.

Shapes as in `boxes`.
"""

import numpy as np
from numba import carray, njit

from agentkv_kernels.index import (
    ABOUT,
    ADDRESS,
    BLOCKS,
    CODES,
    COUNT,
    DENSE,
    FIRST,
    HEAD_DIM,
    NUM_HEADS,
    PER_SEQUENCE,
    RING,
    SIZE,
    START,
    WINDOW,
)
from agentkv_kernels.numba.addresses import (
    boxes_of,
    field_of,
    has_room,
    index_at,
    move,
    num_rows_of,
    pointer,
    row_at,
)
from agentkv_kernels.numba.kernels import attend

POSITION, TRACKED = 0, 1
KEYS, VALUES, BLOCK_IDS = 0, 1, 2
QUERIES, PLACES = 0, 1

f32, i32 = np.float32, np.int32


@njit(error_model="numpy", cache=True)
def rows_at(index, field, width, like):
    """(R, width) of a field, in the dtype of `like`."""
    shape = (num_rows_of(index, field), width)
    return carray(pointer(field_of(index, field, ADDRESS)), shape, like)


@njit(error_model="numpy", cache=True)
def write_row(rack, about, dense, keys, values):
    """Write a row at the end of every lane, its statistic 0, and count it."""
    heads, size = rack[NUM_HEADS], field_of(dense, KEYS, SIZE)
    boxes, whole = boxes_of(about), boxes_of(dense)
    for lane in range(boxes.shape[1]):
        row = boxes[COUNT, lane]
        place = carray(pointer(row_at(about, POSITION, lane, 0, row)), (1,), np.int32)
        place[0] = rack[FIRST + lane // rack[PER_SEQUENCE]]
        width = field_of(about, TRACKED, SIZE)
        if width:
            number = carray(pointer(row_at(about, TRACKED, lane, 0, row)), (width,), np.uint8)
            number[:] = 0
        for head in range(heads):
            source = (lane * heads + head) * size
            row = whole[COUNT, lane]
            move(row_at(dense, KEYS, lane, head, row), keys + source, size)
            move(row_at(dense, VALUES, lane, head, row), values + source, size)
    boxes[COUNT] += 1
    whole[COUNT] += 1


@njit(error_model="numpy", cache=True)
def write_query(rack, ring, q, size):
    """Take the queries in, each sequence's oldest going where its window is full."""
    boxes = boxes_of(ring)
    for sequence in range(boxes.shape[1]):
        if boxes[COUNT, sequence] == rack[WINDOW]:
            boxes[START, sequence] += 1
            boxes[COUNT, sequence] -= 1
        row = boxes[COUNT, sequence]
        heads = field_of(ring, QUERIES, 1)
        for head in range(heads):
            source = q + (sequence * heads + head) * size
            move(row_at(ring, QUERIES, sequence, head, row), source, size)
        place = carray(pointer(row_at(ring, PLACES, sequence, 0, row)), (1,), np.int32)
        place[0] = rack[FIRST + sequence]
        boxes[COUNT, sequence] += 1


@njit(error_model="numpy", cache=True)
def move_average(about, mass, keep, gain, starts_at_mass):
    """As `boxes.Average` says."""
    boxes, width = boxes_of(about), field_of(about, TRACKED, SIZE) // 4
    numbers = rows_at(about, TRACKED, width, np.float32)
    for lane in range(boxes.shape[1]):
        count = boxes[COUNT, lane]
        start = boxes[0, lane] + boxes[START, lane]
        for row in range(start, start + count):
            numbers[row, 0] = keep * numbers[row, 0] + gain * mass[0, row]
        if starts_at_mass and count:
            numbers[start + count - 1, 0] = mass[0, start + count - 1]


@njit(error_model="numpy", cache=True, nogil=True)
def step(
    address, group, factor, q, keys, values, sinks, num_sinks, output, drawn, keep, gain, starts
):
    """Store one row in every lane and attend over all rows.

    Args:
        address: of the numbers of a `Rack`.
        group: G.
        factor: float64, scale * log2(e).
        q, keys, values, output: addresses of (N, W * G, D) and (N, W, D), float32, contiguous.
        sinks: address of (num_sinks, W * G) float32; `num_sinks` 0 for none.
        drawn: address of (R,) float32 for the mass, in the boxes of the positions as they are once
            the row is stored; 0 to leave it out.
        keep, gain, starts: float64, float64, bool: how the first tracked number moves, as in
            `boxes.Average`; a gain of 0: it does not.

    Returns:
        False, and nothing was done, where some table has no room for a row.
    """
    head = carray(pointer(address), (FIRST,), np.int64)
    about, dense = index_at(head[ABOUT]), index_at(head[DENSE])
    num_lanes = boxes_of(about).shape[1]
    rack = carray(pointer(address), (FIRST + num_lanes // head[PER_SEQUENCE],), np.int64)
    if not (has_room(about) and has_room(dense)):
        return False
    if rack[RING] and not has_room(index_at(rack[RING])):
        return False
    heads, dim = rack[NUM_HEADS], rack[HEAD_DIM]
    write_row(rack, about, dense, keys, values)
    none = np.zeros((4, num_lanes), np.int64)
    codes, blocks = none.reshape(-1)[:0], none.reshape(-1)[:0]
    no_codes = np.empty((0, dim), np.int8)
    code_keys, code_values, block_ids, code_boxes = no_codes, no_codes, np.empty(0, np.int32), none
    key_exponents, value_exponents, block_boxes = no_codes, no_codes, none
    if rack[CODES]:
        codes, blocks = index_at(rack[CODES]), index_at(rack[BLOCKS])
        code_keys = rows_at(codes, KEYS, dim, np.int8)
        code_values = rows_at(codes, VALUES, dim, np.int8)
        block_ids = rows_at(codes, BLOCK_IDS, 1, np.int32).reshape(-1)
        code_boxes = boxes_of(codes)
        key_exponents = rows_at(blocks, KEYS, dim, np.int8)
        value_exponents = rows_at(blocks, VALUES, dim, np.int8)
        block_boxes = boxes_of(blocks)
    shape = (num_lanes, heads * group, dim)
    positions = rows_at(about, POSITION, 1, np.int32).reshape(-1)
    mass = np.empty((0, 0), np.float32)
    if drawn:
        mass = carray(pointer(drawn), (1, positions.shape[0]), np.float32)
    elif gain:
        mass = np.empty((1, positions.shape[0]), np.float32)
    attend(
        heads,
        carray(pointer(q), shape, np.float32),
        f32(factor),
        carray(pointer(sinks), (num_sinks, heads * group), np.float32),
        positions,
        boxes_of(about),
        False,
        rows_at(dense, KEYS, dim, np.float32),
        rows_at(dense, VALUES, dim, np.float32),
        boxes_of(dense),
        code_keys,
        code_values,
        block_ids,
        code_boxes,
        key_exponents,
        value_exponents,
        block_boxes,
        carray(pointer(output), shape, np.float32),
        mass,
    )
    if gain:
        move_average(about, mass, f32(keep), f32(gain), starts)
    if rack[RING]:
        write_query(rack, index_at(rack[RING]), q, dim * 4)
    return True
