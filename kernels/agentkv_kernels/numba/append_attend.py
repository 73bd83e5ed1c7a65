"""Numba: one new token per segment of a layer, appended and attended, from its `LayerDescriptor`.

A step first begins an entry in every segment of a layer, which is bookkeeping, and then serves
units: a unit is some heads of one segment, and units may run in any order and at the same time.

Shapes as in `layout`; G query heads per key-value head.
"""

import numpy as np
from numba import carray

from agentkv_kernels.layout import (
    ADDRESS,
    BASE,
    BLOCK_IDS,
    CODES,
    COUNT,
    DENSE,
    DTYPE,
    FIRST_POSITION,
    FORMAT,
    HEAD_DIM,
    KEY_SCALES,
    KEYS,
    METADATA,
    NUM_HEADS,
    NUM_SEGMENTS,
    PER_SEQUENCE,
    POSITION,
    QUERIES,
    QUERY,
    QUERY_POSITION,
    SCALES,
    SIZE,
    START,
    TRACKED,
    VALUE_SCALES,
    VALUES,
    WINDOW,
)
from agentkv_kernels.numba.addresses import (
    entry_address,
    extents_of,
    field_of,
    flat_entries,
    has_capacity,
    pointer,
    table_at,
)
from agentkv_kernels.numba.attention import Coded, DenseFields, attend
from agentkv_kernels.numba.compiled import compiled
from agentkv_kernels.numba.numbers import write_numbers

f32, i32 = np.float32, np.int32


@compiled()
def layer_at(address):
    """Return the numbers of a `LayerDescriptor`."""
    head = carray(pointer(address), (FIRST_POSITION,), np.int64)
    batch = table_at(head[METADATA])[NUM_SEGMENTS] // head[PER_SEQUENCE]
    return carray(pointer(address), (FIRST_POSITION + batch,), np.int64)


@compiled()
def can_append(layer, more):
    """Return whether every table of a layer has capacity for `more` entries."""
    for place in (METADATA, DENSE, QUERIES):
        if layer[place] and not has_capacity(table_at(layer[place]), more):
            return False
    return True


@compiled()
def begin_entries(layer, more):
    """Count `more` entries in every segment, with their positions, which count up, and a statistic
    of 0."""
    metadata = table_at(layer[METADATA])
    extents = extents_of(metadata)
    width = field_of(metadata, TRACKED, SIZE)
    for segment in range(extents.shape[1]):
        end = extents[COUNT, segment]
        address = entry_address(metadata, POSITION, segment, 0, end)
        positions = carray(pointer(address), (more,), np.int32)
        for i in range(more):
            positions[i] = layer[FIRST_POSITION + segment // layer[PER_SEQUENCE]] + i
        if width:
            address = entry_address(metadata, TRACKED, segment, 0, end)
            carray(pointer(address), (more * width,), np.uint8)[:] = 0
    extents[COUNT] += more
    extents_of(table_at(layer[DENSE]))[COUNT] += more


@compiled()
def begin_entry(layer):
    """Count one more entry in every segment, as `begin_entries` does, and one more query of every
    sequence, dropping the oldest of a full window."""
    begin_entries(layer, 1)
    if not layer[QUERIES]:
        return
    queries = table_at(layer[QUERIES])
    extents = extents_of(queries)
    for sequence in range(extents.shape[1]):
        if extents[COUNT, sequence] == layer[WINDOW]:
            extents[START, sequence] += 1
            extents[COUNT, sequence] -= 1
        address = entry_address(queries, QUERY_POSITION, sequence, 0, extents[COUNT, sequence])
        carray(pointer(address), (1,), np.int32)[0] = layer[FIRST_POSITION + sequence]
        extents[COUNT, sequence] += 1


@compiled()
def write_late(dtype, table, field, segment, head, later, x):
    """Write x (D,) float32 to the entry of a segment that `later` others follow, rounded to a
    dtype."""
    entry = extents_of(table)[COUNT, segment] - 1 - later
    write_numbers(dtype, entry_address(table, field, segment, head, entry), x)


@compiled()
def write_newest(layer, segment, head, later, key, value):
    """Write a key and a value (D,) float32 to the entry of a head that `later` others follow."""
    dense = table_at(layer[DENSE])
    write_late(layer[DTYPE], dense, KEYS, segment, head, later, key)
    write_late(layer[DTYPE], dense, VALUES, segment, head, later, value)


@compiled()
def update_ema(metadata, segment, mass, keep, gain, starts_at_mass):
    """Update the first tracked number of a segment's entries by their mass (T,), as `ema.Ema`
    defines."""
    extents, width = extents_of(metadata), field_of(metadata, TRACKED, SIZE) // 4
    start = extents[BASE, segment] + extents[START, segment]
    count = mass.shape[0]
    tracked = flat_entries(metadata, TRACKED, width, np.float32)[start : start + count]
    for entry in range(count):
        tracked[entry, 0] = keep * tracked[entry, 0] + gain * mass[entry]
    if starts_at_mass and count:
        tracked[count - 1, 0] = mass[count - 1]


@compiled()
def bytes_of(table, field):
    """Return all flat entries of a field as bytes, (R, bytes) int8."""
    return flat_entries(table, field, field_of(table, field, SIZE), np.int8)


@compiled()
def dense_in(layer):
    """Return the dense entries of a layer as a `DenseFields`."""
    dense = table_at(layer[DENSE])
    return DenseFields(
        layer[DTYPE],
        field_of(dense, KEYS, ADDRESS),
        field_of(dense, VALUES, ADDRESS),
        extents_of(dense),
    )


@compiled()
def coded_in(layer):
    """Return the quantized entries of a layer as a `Coded`."""
    block_ids = np.empty(0, np.int32)
    if not layer[CODES]:
        empty = np.empty((0, layer[HEAD_DIM]), np.int8)
        nothing = np.zeros((4, extents_of(table_at(layer[DENSE])).shape[1]), np.int64)
        return Coded(layer[FORMAT], empty, empty, block_ids, nothing, empty, empty, nothing)
    codes, where, key_scales, value_scales = (
        table_at(layer[CODES]),
        layer[CODES],
        KEY_SCALES,
        VALUE_SCALES,
    )
    if layer[SCALES]:
        where, key_scales, value_scales = layer[SCALES], KEYS, VALUES
        block_ids = flat_entries(codes, BLOCK_IDS, 1, np.int32).reshape(-1)
    scales = table_at(where)
    return Coded(
        layer[FORMAT],
        bytes_of(codes, KEYS),
        bytes_of(codes, VALUES),
        block_ids,
        extents_of(codes),
        bytes_of(scales, key_scales),
        bytes_of(scales, value_scales),
        extents_of(scales),
    )


@compiled()
def serve(layer, segment, first_head, stop_head, factor, q, keys, values, sinks, output, mass):
    """Write the new entries of a unit and its queries, and attend; see `serve_unit`."""
    heads = layer[NUM_HEADS]
    group = q.shape[0] // heads
    for head in range(first_head, stop_head):
        write_newest(layer, segment, head, 0, keys[head], values[head])
    if layer[QUERIES]:
        per = layer[PER_SEQUENCE]
        queries, first_q = table_at(layer[QUERIES]), segment % per * heads * group
        for j in range(first_head * group, stop_head * group):
            write_late(layer[DTYPE], queries, QUERY, segment // per, first_q + j, 0, q[j])
    attend(
        segment,
        first_head,
        stop_head,
        heads,
        q,
        f32(factor),
        sinks,
        extents_of(table_at(layer[METADATA]))[COUNT, segment],
        dense_in(layer),
        coded_in(layer),
        output,
        mass,
    )


@compiled()
def serve_unit(
    layer,
    segment,
    first_head,
    stop_head,
    factor,
    q,
    keys,
    values,
    sinks,
    output,
    mass_address,
    keep,
    gain,
    starts_at_mass,
):
    """Write the new entries of some heads of a segment, attend in them, and update statistics.

    Args:
        layer: numbers of a `LayerDescriptor` in which `begin_entry` has begun an entry.
        factor: float64, scale * log2(e).
        q, output: (W * G, D) float32, of the segment.
        keys, values: (W, D) float32, of the segment.
        sinks: (W * G,) float32, of the segment; (0,) for none.
        mass_address: address of (R,) float32 that receives the mass, in the layout of the metadata;
            0: write no mass.
        keep, gain, starts_at_mass: float64, float64, bool, as in `ema.Ema`; a gain of 0: no update.
            With a gain or a mass, the heads must be all of the segment.
    """
    extents = extents_of(table_at(layer[METADATA]))
    mass = np.empty(0, np.float32)
    if mass_address:
        start = extents[BASE, segment] + extents[START, segment]
        mass = carray(pointer(mass_address + 4 * start), (extents[COUNT, segment],), np.float32)
        mass[:] = f32(0.0)
    elif gain:
        mass = np.zeros(extents[COUNT, segment], np.float32)
    serve(layer, segment, first_head, stop_head, factor, q, keys, values, sinks, output, mass)
    if gain:
        metadata = table_at(layer[METADATA])
        update_ema(metadata, segment, mass, f32(keep), f32(gain), starts_at_mass)


@compiled(nogil=True)
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
        mass_address, keep, gain, starts_at_mass: as in `serve_unit`, the mass in the layout that
            the metadata has with the new entry.

    Returns:
        False if some table lacks capacity for an entry; nothing has changed then.
    """
    layer = layer_at(address)
    if not can_append(layer, 1):
        return False
    begin_entry(layer)
    heads, dim = layer[NUM_HEADS], layer[HEAD_DIM]
    num_segments = table_at(layer[METADATA])[NUM_SEGMENTS]
    shape, own = (num_segments, heads * group, dim), (num_segments, heads, dim)
    queries = carray(pointer(q), shape, np.float32)
    new_keys, new_values = (
        carray(pointer(keys), own, np.float32),
        carray(pointer(values), own, np.float32),
    )
    outputs = carray(pointer(output), shape, np.float32)
    all_sinks = carray(pointer(sinks), (num_sinks, heads * group), np.float32)
    for segment in range(num_segments):
        segment_sinks = np.empty(0, np.float32)
        if num_sinks:
            segment_sinks = all_sinks[segment % num_sinks]
        serve_unit(
            layer,
            segment,
            0,
            heads,
            factor,
            queries[segment],
            new_keys[segment],
            new_values[segment],
            segment_sinks,
            outputs[segment],
            mass_address,
            keep,
            gain,
            starts_at_mass,
        )
    return True
