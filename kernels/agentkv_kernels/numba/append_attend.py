"""Numba: one new token per segment of a layer, appended and attended, from its `LayerDescriptor`.

Shapes as in `layout`; G query heads per key-value head.
"""

import numpy as np
from numba import carray, njit

from agentkv_kernels.layout import (
    BASE,
    BLOCK_IDS,
    CODES,
    COUNT,
    DENSE,
    FIRST_POSITION,
    HEAD_DIM,
    HEADS,
    KEYS,
    METADATA,
    NUM_HEADS,
    PER_SEQUENCE,
    POSITION,
    QUERIES,
    QUERY,
    QUERY_POSITION,
    SCALES,
    SIZE,
    START,
    TRACKED,
    VALUES,
    WINDOW,
)
from agentkv_kernels.numba.addresses import (
    entry_address,
    extents_of,
    field_of,
    flat_entries,
    has_capacity,
    move,
    pointer,
    table_at,
)
from agentkv_kernels.numba.attention import attend

f32, i32 = np.float32, np.int32


@njit(error_model="numpy", cache=True)
def append_entry(layer, metadata, dense, keys, values):
    """Write one entry at the end of every segment, with a statistic of 0, and count it."""
    heads, size = layer[NUM_HEADS], field_of(dense, KEYS, SIZE)
    extents, dense_extents = extents_of(metadata), extents_of(dense)
    width = field_of(metadata, TRACKED, SIZE)
    for segment in range(extents.shape[1]):
        end = extents[COUNT, segment]
        address = entry_address(metadata, POSITION, segment, 0, end)
        carray(pointer(address), (1,), np.int32)[0] = layer[
            FIRST_POSITION + segment // layer[PER_SEQUENCE]
        ]
        if width:
            address = entry_address(metadata, TRACKED, segment, 0, end)
            carray(pointer(address), (width,), np.uint8)[:] = 0
        for head in range(heads):
            source = (segment * heads + head) * size
            end = dense_extents[COUNT, segment]
            move(entry_address(dense, KEYS, segment, head, end), keys + source, size)
            move(entry_address(dense, VALUES, segment, head, end), values + source, size)
    extents[COUNT] += 1
    dense_extents[COUNT] += 1


@njit(error_model="numpy", cache=True)
def append_query(layer, queries, q, size):
    """Append one query per sequence, dropping the oldest of a full window."""
    extents, heads = extents_of(queries), field_of(queries, QUERY, HEADS)
    for sequence in range(extents.shape[1]):
        if extents[COUNT, sequence] == layer[WINDOW]:
            extents[START, sequence] += 1
            extents[COUNT, sequence] -= 1
        end = extents[COUNT, sequence]
        for head in range(heads):
            source = q + (sequence * heads + head) * size
            move(entry_address(queries, QUERY, sequence, head, end), source, size)
        address = entry_address(queries, QUERY_POSITION, sequence, 0, end)
        carray(pointer(address), (1,), np.int32)[0] = layer[FIRST_POSITION + sequence]
        extents[COUNT, sequence] += 1


@njit(error_model="numpy", cache=True)
def update_ema(metadata, mass, keep, gain, starts_at_mass):
    """Update the first tracked number of every entry, as `ema.Ema` defines."""
    extents, width = extents_of(metadata), field_of(metadata, TRACKED, SIZE) // 4
    tracked = flat_entries(metadata, TRACKED, width, np.float32)
    for segment in range(extents.shape[1]):
        count = extents[COUNT, segment]
        start = extents[BASE, segment] + extents[START, segment]
        for entry in range(start, start + count):
            tracked[entry, 0] = keep * tracked[entry, 0] + gain * mass[entry]
        if starts_at_mass and count:
            tracked[start + count - 1, 0] = mass[start + count - 1]


@njit(error_model="numpy", cache=True, nogil=True)
def append_attend(
    address,
    group,
    factor,
    q,
    keys,
    values,
    sinks,
    num_sinks,
    output,
    mass_address,
    keep,
    gain,
    starts_at_mass,
):
    """Append one entry to every segment and attend over all entries.

    Args:
        address: address of the numbers of a `LayerDescriptor`.
        group: G.
        factor: float64, scale * log2(e).
        q, keys, values, output: addresses of (N, W * G, D) and (N, W, D), float32, contiguous.
        sinks: address of (num_sinks, W * G) float32; num_sinks is 0 for none.
        mass_address: address of (R,) float32 that receives the mass, in the layout that the
            metadata has with the new entry; 0: write no mass.
        keep, gain, starts_at_mass: float64, float64, bool, as in `ema.Ema`; a gain of 0: no update.

    Returns:
        False if some table lacks capacity for an entry; nothing has changed then.
    """
    head = carray(pointer(address), (FIRST_POSITION,), np.int64)
    metadata, dense = table_at(head[METADATA]), table_at(head[DENSE])
    num_segments = extents_of(metadata).shape[1]
    batch = num_segments // head[PER_SEQUENCE]
    layer = carray(pointer(address), (FIRST_POSITION + batch,), np.int64)
    if not (has_capacity(metadata) and has_capacity(dense)):
        return False
    if layer[QUERIES] and not has_capacity(table_at(layer[QUERIES])):
        return False
    heads, dim = layer[NUM_HEADS], layer[HEAD_DIM]
    append_entry(layer, metadata, dense, keys, values)
    empty, no_codes = np.zeros((4, num_segments), np.int64), np.empty((0, dim), np.int8)
    key_codes, value_codes, block_ids, code_extents = (
        no_codes,
        no_codes,
        np.empty(0, np.int32),
        empty,
    )
    key_exponents, value_exponents, block_extents = no_codes, no_codes, empty
    if layer[CODES]:
        codes, scales = table_at(layer[CODES]), table_at(layer[SCALES])
        key_codes = flat_entries(codes, KEYS, dim, np.int8)
        value_codes = flat_entries(codes, VALUES, dim, np.int8)
        block_ids = flat_entries(codes, BLOCK_IDS, 1, np.int32).reshape(-1)
        code_extents = extents_of(codes)
        key_exponents = flat_entries(scales, KEYS, dim, np.int8)
        value_exponents = flat_entries(scales, VALUES, dim, np.int8)
        block_extents = extents_of(scales)
    shape = (num_segments, heads * group, dim)
    num_entries = flat_entries(metadata, POSITION, 1, np.int32).shape[0]
    mass = np.empty(0, np.float32)
    if mass_address:
        mass = carray(pointer(mass_address), (num_entries,), np.float32)
    elif gain:
        mass = np.empty(num_entries, np.float32)
    attend(
        heads,
        carray(pointer(q), shape, np.float32),
        f32(factor),
        carray(pointer(sinks), (num_sinks, heads * group), np.float32),
        extents_of(metadata),
        flat_entries(dense, KEYS, dim, np.float32),
        flat_entries(dense, VALUES, dim, np.float32),
        extents_of(dense),
        key_codes,
        value_codes,
        block_ids,
        code_extents,
        key_exponents,
        value_exponents,
        block_extents,
        carray(pointer(output), shape, np.float32),
        mass,
    )
    if gain:
        update_ema(metadata, mass, f32(keep), f32(gain), starts_at_mass)
    if layer[QUERIES]:
        append_query(layer, table_at(layer[QUERIES]), q, dim * 4)
    return True
