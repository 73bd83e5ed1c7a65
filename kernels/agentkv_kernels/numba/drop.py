"""Numba: entries dropped from all layers in one call; the remaining ones are moved together in
place.

All segments of a table move their entries to the same side, so that equal segments stay equal.
"""

import numpy as np
from numba import carray

from agentkv_kernels.layout import (
    CAPACITY,
    CODES,
    COUNT,
    DENSE,
    FIRST_POSITION,
    METADATA,
    SCALES,
    START,
)
from agentkv_kernels.numba.addresses import extents_of, move_entries, pointer, table_at
from agentkv_kernels.numba.compiled import compiled


@compiled(nogil=True)
def drop(layers, entries, spare):
    """Drop at most one entry of every segment of every layer.

    Args:
        layers: (n,) int64, addresses of the numbers of layer descriptors.
        entries: (sum of N,) int64, the entry to drop per segment in storage order, or -1, layer by
            layer.
        spare: entries of capacity that a segment may have unused.

    Returns:
        Whether some table has more unused capacity, or more blocks of scales, than it should.
    """
    first, needs_tidying = 0, False
    for address in layers:
        head = carray(pointer(address), (FIRST_POSITION,), np.int64)
        metadata, dense = table_at(head[METADATA]), table_at(head[DENSE])
        num_segments = extents_of(metadata).shape[1]
        own = entries[first : first + num_segments]
        first += num_segments
        in_dense = own.copy()
        if head[CODES]:
            codes = table_at(head[CODES])
            num_coded = extents_of(codes)[COUNT].copy()
            in_codes = np.where(own < num_coded, own, -1)
            in_dense = np.where(own < num_coded, -1, own - num_coded)
            needs_tidying |= drop_from_table(codes, in_codes, spare)
            if head[SCALES]:
                needs_tidying |= has_sparse_blocks(codes, table_at(head[SCALES]))
        needs_tidying |= drop_from_table(dense, in_dense, spare)
        needs_tidying |= drop_from_table(metadata, own, spare)
    return needs_tidying


@compiled()
def drop_from_table(table, entries, spare):
    """Apply `drop` to one table."""
    extents, balance, has_excess = extents_of(table), 0, False
    for segment in range(entries.shape[0]):
        if entries[segment] >= 0:
            balance += 2 * entries[segment] + 1 - extents[COUNT, segment]
    for segment in range(entries.shape[0]):
        entry = entries[segment]
        if entry >= 0:
            if balance <= 0:
                move_entries(table, segment, 0, 1, entry)
                extents[START, segment] += 1
            else:
                move_entries(table, segment, entry + 1, entry, extents[COUNT, segment] - entry - 1)
            extents[COUNT, segment] -= 1
        has_excess |= has_excess_capacity(extents, segment, spare)
    return has_excess


@compiled(nogil=True)
def keep(layers, masks, spare):
    """Keep only some entries of every segment of every layer.

    Args:
        layers, spare: as in `drop`.
        masks: (sum of N,) int64, per segment the address of a byte for each of its entries in
            storage order, 0 for those to drop; or 0, where all stay.

    Returns:
        As `drop`.
    """
    first, needs_tidying = 0, False
    for address in layers:
        head = carray(pointer(address), (FIRST_POSITION,), np.int64)
        metadata, dense = table_at(head[METADATA]), table_at(head[DENSE])
        num_segments = extents_of(metadata).shape[1]
        own = masks[first : first + num_segments]
        first += num_segments
        in_dense = own.copy()
        if head[CODES]:
            codes = table_at(head[CODES])
            num_coded = extents_of(codes)[COUNT]
            for segment in range(num_segments):
                in_dense[segment] += num_coded[segment] if own[segment] else 0
            needs_tidying |= keep_in_table(codes, own, spare)
            if head[SCALES]:
                needs_tidying |= has_sparse_blocks(codes, table_at(head[SCALES]))
        needs_tidying |= keep_in_table(dense, in_dense, spare)
        needs_tidying |= keep_in_table(metadata, own, spare)
    return needs_tidying


@compiled()
def keep_in_table(table, masks, spare):
    """Apply `keep` to one table."""
    extents, balance, has_excess = extents_of(table), 0, False
    for segment in range(masks.shape[0]):
        if masks[segment]:
            count = extents[COUNT, segment]
            stays = carray(pointer(masks[segment]), (count,), np.uint8)
            first, last = 0, count
            while first < count and stays[first]:
                first += 1
            while last > first and stays[last - 1]:
                last -= 1
            # entries before the dropped ones against entries after them
            balance += first - (count - last)
    for segment in range(masks.shape[0]):
        if masks[segment]:
            compact(table, segment, masks[segment], balance <= 0)
        has_excess |= has_excess_capacity(extents, segment, spare)
    return has_excess


@compiled()
def compact(table, segment, mask, move_older):
    """Move the entries that stay together, run by run, to the end of the segment or its start."""
    extents = extents_of(table)
    count = extents[COUNT, segment]
    stays = carray(pointer(mask), (count,), np.uint8)
    step = -1 if move_older else 1
    entry = target = count - 1 if move_older else 0
    num_kept = 0
    while 0 <= entry < count:
        if not stays[entry]:
            entry += step
            continue
        begin = entry
        while 0 <= entry < count and stays[entry]:
            entry += step
        length = abs(entry - begin)
        num_kept += length
        if begin != target:
            back = length - 1 if move_older else 0
            move_entries(table, segment, begin - back, target - back, length)
        target += step * length
    extents[START, segment] += count - num_kept if move_older else 0
    extents[COUNT, segment] = num_kept


@compiled()
def has_excess_capacity(extents, segment, spare):
    """Return whether a segment has more unused capacity than `spare`."""
    capacity, count = extents[CAPACITY, segment], extents[COUNT, segment]
    return capacity > count + spare or (capacity > 0 and not count)


@compiled()
def has_sparse_blocks(codes, scales):
    """Return whether some segment has more than twice the blocks of scales that its entries
    fill."""
    counts, blocks = extents_of(codes)[COUNT], extents_of(scales)[COUNT]
    for segment in range(counts.shape[0]):
        if blocks[segment] > 2 * ((counts[segment] + 63) // 64):
            return True
    return False
