"""Numba: attention of one new token per segment over entries of mixed precision.

Shapes as in `layout`; G query heads per key-value head. A run is a sequence of entries that lie
together in memory and share their scale.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import carray

from agentkv_kernels.layout import BASE, CAPACITY, COUNT, FLOAT16, FLOAT32, INT8, START
from agentkv_kernels.numba.addresses import pointer
from agentkv_kernels.numba.arithmetic import FAST, logits, mix, power_of_two, scaled, softmax
from agentkv_kernels.numba.compiled import compiled
from agentkv_kernels.numba.unpack import unpack

f32, i32 = np.float32, np.int32

LOG2_E = f32(1.4426950408889634)
LOWEST = f32(-1e30)
"""Start of a running maximum."""

LONGEST_RUN = 128
"""Entries per run at most, so that all query heads read a run while it is in a fast cache."""

FIRST, STOP, BLOCK = range(3)
"""Columns of a run: its entries in the segment, and the block of their scales, -1 for dense
ones."""


class DenseFields(NamedTuple):
    """The dtype, the addresses of the flat fields and the extents of a layer's dense entries; see
    `ragged.DenseEntries`."""

    dtype: Any
    keys: Any
    values: Any
    extents: Any


class Coded(NamedTuple):
    """Flat fields and extents of a layer's quantized entries.

    Codes and scales are bytes, int8. Without quantized entries, their fields are empty and their
    extents zeros. Where each entry has its own scales, there are no block ids, and scales have the
    extents of the codes.
    """

    format: Any
    keys: Any
    values: Any
    block_ids: Any
    extents: Any
    key_scales: Any
    value_scales: Any
    scale_extents: Any


@compiled()
def find_runs(block_ids, num_coded, num_entries, runs):
    """Write the runs of a segment into `runs` (num_entries, 3) and return their number."""
    num_runs, t = 0, 0
    while t < num_entries:
        block = block_ids[t] if t < num_coded else i32(-1)
        stop = t + 1
        end = min(num_coded if t < num_coded else num_entries, t + LONGEST_RUN)
        while stop < end and (t >= num_coded or block_ids[stop] == block):
            stop += 1
        runs[num_runs, FIRST], runs[num_runs, STOP], runs[num_runs, BLOCK] = t, stop, block
        num_runs += 1
        t = stop
    return num_runs


@compiled()
def first_entry(extents, segment, head, heads):
    """Return the flat entry at which a head's entries of a segment begin."""
    base, capacity = np.int64(extents[BASE, segment]), np.int64(extents[CAPACITY, segment])
    return heads * base + head * capacity + extents[START, segment]


@compiled()
def runs_of(coded, segment, num_entries, runs):
    """Call `find_runs` for a segment of a layer; return the runs of quantized entries, and all."""
    num_coded = np.int64(coded.extents[COUNT, segment])
    ids = coded.block_ids[first_entry(coded.extents, segment, 0, 1) :]
    if coded.format > INT8:
        ids = np.zeros(num_coded, i32)
    num_runs = find_runs(ids, num_coded, num_entries, runs)
    num_coded_runs = 0
    while num_coded_runs < num_runs and runs[num_coded_runs, BLOCK] >= 0:
        num_coded_runs += 1
    return num_coded_runs, num_runs


@compiled(fastmath=FAST)
def coded_logits(query, coded, segment, head, heads, runs, s, tops):
    """Do the work of `find_logits` for quantized entries."""
    moved, form = np.empty(query.shape, f32), coded.format
    is_by_entry = form > INT8  # decoded run by run, while the run is in a fast cache
    unpacked = np.empty((LONGEST_RUN if is_by_entry else 0, query.shape[1]), f32)
    first_code = first_entry(coded.extents, segment, head, heads)
    first_block = first_entry(coded.scale_extents, segment, head, heads)
    for r in range(runs.shape[0]):
        t, stop, block = np.int64(runs[r, FIRST]), np.int64(runs[r, STOP]), runs[r, BLOCK]
        if is_by_entry:
            unpack(coded.keys, coded.key_scales, first_code + t, stop - t, form, unpacked)
            logits(query, unpacked, 0, s, t, stop, tops)
        else:
            for j in range(query.shape[0]):
                scaled(query, j, coded.key_scales, first_block + block, moved)
            logits(moved, coded.keys, first_code + t, s, t, stop, tops)


@compiled(fastmath=FAST)
def mix_coded(p, coded, segment, head, heads, runs, out):
    """Add weights p (G, T) times the values of quantized entries to `out` (G, D)."""
    moved, form = np.zeros(out.shape, f32), coded.format
    is_by_entry = form > INT8
    unpacked = np.empty((LONGEST_RUN if is_by_entry else 0, out.shape[1]), f32)
    first_code = first_entry(coded.extents, segment, head, heads)
    first_block = first_entry(coded.scale_extents, segment, head, heads)
    for r in range(runs.shape[0]):
        t, stop, block = np.int64(runs[r, FIRST]), np.int64(runs[r, STOP]), runs[r, BLOCK]
        if is_by_entry:
            unpack(coded.values, coded.value_scales, first_code + t, stop - t, form, unpacked)
            mix(p, t, stop, unpacked, 0, out)
            continue
        moved[:] = f32(0.0)
        mix(p, t, stop, coded.values, first_code + t, moved)
        for j in range(out.shape[0]):
            scaled(moved, j, coded.value_scales, first_block + block, moved)
            for i in range(out.shape[1]):
                out[j, i] += moved[j, i]


@compiled()
def dense_logits(query, dense, first, s, start, stop, tops):
    """Call `logits` for keys of a `DenseFields`."""
    dtype, address = dense.dtype, dense.keys
    shape, rest = (first + stop - start, query.shape[1]), (first, s, start, stop, tops)
    if dtype == FLOAT32:
        logits(query, carray(pointer(address), shape, np.float32), *rest)
    elif dtype == FLOAT16:
        logits(query, carray(pointer(address), shape, np.int16), *rest)
    else:
        logits(query, carray(pointer(address), shape, np.uint16), *rest)


@compiled()
def mix_dense(p, start, stop, dense, first, out):
    """Call `mix` for values of a `DenseFields`."""
    dtype, address, shape = dense.dtype, dense.values, (first + stop - start, out.shape[1])
    if dtype == FLOAT32:
        mix(p, start, stop, carray(pointer(address), shape, np.float32), first, out)
    elif dtype == FLOAT16:
        mix(p, start, stop, carray(pointer(address), shape, np.int16), first, out)
    else:
        mix(p, start, stop, carray(pointer(address), shape, np.uint16), first, out)


@compiled(fastmath=FAST)
def find_logits(query, dense, coded, segment, head, heads, runs, num_coded_runs, s, tops):
    """Write products of queries with all entries of one head to s (G, T); raise `tops` to the
    largest.

    Args:
        query: (G, D) float32, times the scale and log2(e).
        dense, coded: a `DenseFields` and a `Coded`.
        runs: of the segment, the first `num_coded_runs` of them of quantized entries.
        tops: (G,) float32.
    """
    if num_coded_runs:
        coded_logits(query, coded, segment, head, heads, runs[:num_coded_runs], s, tops)
    first_dense = first_entry(dense.extents, segment, head, heads)
    first_dense -= np.int64(coded.extents[COUNT, segment])
    for r in range(num_coded_runs, runs.shape[0]):
        t, stop = np.int64(runs[r, FIRST]), np.int64(runs[r, STOP])
        dense_logits(query, dense, first_dense + t, s, t, stop, tops)


@compiled(fastmath=FAST)
def attend(
    segment, first_head, stop_head, heads, q, factor, sinks, num_entries, dense, coded, output, mass
):
    """Attend in some heads of one segment; write `output`, and add to `mass` unless it is empty.

    Args:
        heads: W.
        q, output: (W * G, D) float32, of the segment.
        factor: scale * log2(e).
        sinks: (W * G,) float32, of the segment; (0,) for none.
        num_entries: T.
        dense, coded: a `DenseFields` and a `Coded`.
        mass: (T,) float32, of the segment, or (0,).
    """
    head_dim, group = q.shape[1], q.shape[0] // heads
    s, all_runs = np.empty((group, num_entries), f32), np.empty((num_entries, 3), i32)
    query, out = np.empty((group, head_dim), f32), np.empty((group, head_dim), f32)
    tops = np.empty(group, f32)
    num_coded_runs, num_runs = runs_of(coded, segment, num_entries, all_runs)
    runs = all_runs[:num_runs]
    for head in range(first_head, stop_head):
        first_q = head * group
        for j in range(group):
            tops[j] = LOWEST
            if sinks.shape[0]:
                tops[j] = sinks[first_q + j] * LOG2_E
            for i in range(head_dim):
                query[j, i] = q[first_q + j, i] * factor
                out[j, i] = f32(0.0)
        find_logits(query, dense, coded, segment, head, heads, runs, num_coded_runs, s, tops)
        for j in range(group):
            total = softmax(s, j, num_entries, tops[j])
            if sinks.shape[0]:
                sink = sinks[first_q + j] * LOG2_E
                total += power_of_two(f32(sink - tops[j]))
            share = f32(1.0) / total
            for entry in range(num_entries):
                s[j, entry] *= share
            if mass.shape[0]:
                share = f32(1.0) / f32(q.shape[0])
                for entry in range(num_entries):
                    mass[entry] += s[j, entry] * share
        if num_coded_runs:
            mix_coded(s, coded, segment, head, heads, runs[:num_coded_runs], out)
        first_dense = first_entry(dense.extents, segment, head, heads)
        first_dense -= np.int64(coded.extents[COUNT, segment])
        for r in range(num_coded_runs, num_runs):
            t, stop = np.int64(runs[r, FIRST]), np.int64(runs[r, STOP])
            mix_dense(s, t, stop, dense, first_dense + t, out)
        output[first_q : first_q + group] = out
