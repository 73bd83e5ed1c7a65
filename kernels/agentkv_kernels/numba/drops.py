"""Numba: rows of all layers that go, told by their racks. What stays is moved together where it is.

All lanes of a table move their rows to the same side, so that those that are alike stay alike.
"""

import numpy as np
from numba import carray, njit

from agentkv_kernels.index import (
    ABOUT,
    BLOCKS,
    CODES,
    COUNT,
    DENSE,
    FIRST,
    HEADS,
    NUM_FIELDS,
    ROOM,
    SIZE,
    START,
)
from agentkv_kernels.numba.addresses import (
    boxes_of,
    close,
    field_of,
    index_at,
    move,
    pointer,
    row_at,
)


@njit(error_model="numpy", cache=True, nogil=True)
def drop(racks, rows, spare):
    """Let a few rows of every lane of every layer go.

    Args:
        racks: (n,) int64, addresses of the numbers of racks.
        rows: (sum of N, m) int64, the rows of a lane that go, in storage order, the last first; -1
            for none. The lanes lie one after another, layer by layer.
        spare: rows of room that a lane may have beyond its rows.

    Returns:
        Whether some table has more room than it may, or more blocks than its rows deserve.
    """
    start, is_loose = 0, False
    for rack in racks:
        head = carray(pointer(rack), (FIRST,), np.int64)
        about, dense = index_at(head[ABOUT]), index_at(head[DENSE])
        num_lanes = boxes_of(about).shape[1]
        gone = rows[start : start + num_lanes]
        start += num_lanes
        whole = gone.copy()
        if head[CODES]:
            codes, blocks = index_at(head[CODES]), index_at(head[BLOCKS])
            coded, num_blocks = boxes_of(codes)[COUNT], boxes_of(blocks)[COUNT]
            of_lanes = coded.copy().reshape(num_lanes, 1)
            old = np.where(gone < of_lanes, gone, -1)
            whole = np.where(gone < of_lanes, -1, gone - of_lanes)
            is_loose |= drop_in(codes, old, spare)
            for lane in range(num_lanes):
                is_loose |= is_crowded(coded[lane], num_blocks[lane])
        is_loose |= drop_in(dense, whole, spare)
        is_loose |= drop_in(about, gone, spare)
    return is_loose


@njit(error_model="numpy", cache=True)
def drop_in(index, rows, spare):
    """`drop` in one table."""
    boxes, is_loose, balance = boxes_of(index), False, 0
    for lane in range(rows.shape[0]):
        for row in rows[lane]:
            if row >= 0:
                balance += 2 * row + 1 - boxes[COUNT, lane]
    for lane in range(rows.shape[0]):
        for row in rows[lane]:
            if row >= 0:
                close(index, lane, row, balance <= 0)
        is_loose |= has_too_much(boxes, lane, spare)
    return is_loose


@njit(error_model="numpy", cache=True, nogil=True)
def keep(racks, masks, spare):
    """Of every lane of every layer only some rows stay, however many go.

    Args:
        racks, spare: as in `drop`.
        masks: (sum of N,) int64, for each lane, layer by layer, the address of a byte for each of
            its rows in storage order, 0 for those that go; or 0, where all stay.

    Returns:
        As `drop`.
    """
    start, is_loose = 0, False
    for rack in racks:
        head = carray(pointer(rack), (FIRST,), np.int64)
        about, dense = index_at(head[ABOUT]), index_at(head[DENSE])
        num_lanes = boxes_of(about).shape[1]
        mine = masks[start : start + num_lanes]
        start += num_lanes
        whole = mine.copy()
        if head[CODES]:
            codes, blocks = index_at(head[CODES]), index_at(head[BLOCKS])
            coded, num_blocks = boxes_of(codes)[COUNT], boxes_of(blocks)[COUNT]
            for lane in range(num_lanes):
                whole[lane] += coded[lane] if mine[lane] else 0
            is_loose |= keep_in(codes, mine, spare)
            for lane in range(num_lanes):
                is_loose |= is_crowded(coded[lane], num_blocks[lane])
        is_loose |= keep_in(dense, whole, spare)
        is_loose |= keep_in(about, mine, spare)
    return is_loose


@njit(error_model="numpy", cache=True)
def keep_in(index, masks, spare):
    """`keep` in one table."""
    boxes, is_loose, balance = boxes_of(index), False, 0
    for lane in range(masks.shape[0]):
        if masks[lane]:
            count = boxes[COUNT, lane]
            stays = carray(pointer(masks[lane]), (count,), np.uint8)
            first, last = 0, count
            while first < count and stays[first]:
                first += 1
            while last > first and stays[last - 1]:
                last -= 1
            # rows before those that go, and rows behind
            balance += first - (count - last)
    for lane in range(masks.shape[0]):
        if masks[lane]:
            squeeze(index, lane, masks[lane], balance <= 0)
        is_loose |= has_too_much(boxes, lane, spare)
    return is_loose


@njit(error_model="numpy", cache=True)
def squeeze(index, lane, mask, move_older):
    """Move what stays of a lane together, run by run: to the end of its rows, or to their start."""
    boxes = boxes_of(index)
    count = boxes[COUNT, lane]
    stays = carray(pointer(mask), (count,), np.uint8)
    step = -1 if move_older else 1
    row = place = count - 1 if move_older else 0
    left = 0
    while 0 <= row < count:
        if not stays[row]:
            row += step
            continue
        begin = row
        while 0 <= row < count and stays[row]:
            row += step
        length = abs(row - begin)
        left += length
        if begin != place:
            back = length - 1 if move_older else 0
            move_rows(index, lane, begin - back, place - back, length)
        place += step * length
    boxes[START, lane] += count - left if move_older else 0
    boxes[COUNT, lane] = left


@njit(error_model="numpy", cache=True)
def move_rows(index, lane, source, target, length):
    """Copy rows of a lane to another place in it, in all fields."""
    for field in range(index[NUM_FIELDS]):
        size = field_of(index, field, SIZE)
        for head in range(field_of(index, field, HEADS) if size else 0):
            first = row_at(index, field, lane, head, 0)
            move(first + target * size, first + source * size, length * size)


@njit(error_model="numpy", cache=True)
def has_too_much(boxes, lane, spare):
    """Whether a lane has more room than it may."""
    room, count = boxes[ROOM, lane], boxes[COUNT, lane]
    return room > count + spare or (room > 0 and not count)


@njit(error_model="numpy", cache=True)
def is_crowded(num_rows, num_blocks):
    """Whether so many quantised rows deserve fewer blocks."""
    return num_blocks > 2 * ((num_rows + 63) // 64)
