"""Numba: attention of one new token per segment over entries of mixed precision.

Functions are compiled at their first call and cached on disk, beside these files or in
`NUMBA_CACHE_DIR`. Numba recompiles a function when its own file is newer than the cached code, and
does not look at the functions it calls: after editing one, touch the files that call it.

Shapes as in `layout`; G query heads per key-value head. A run is a sequence of entries that lie
together in memory and share their scale.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from agentkv_kernels.layout import BASE, CAPACITY, COUNT, START
from agentkv_kernels.numba.arithmetic import FAST, logits, mix, power_of_two, scaled, softmax

f32, i32 = np.float32, np.int32

LOG2_E = f32(1.4426950408889634)
LOWEST = f32(-1e30)
"""Start of a running maximum."""

LONGEST_RUN = 128
"""Entries per run at most, so that all query heads read a run while it is in a fast cache."""

FIRST, STOP, BLOCK = range(3)
"""Columns of a run: its entries in the segment, and the block of their scales, -1 for dense
ones."""


class Stored(NamedTuple):
    """Flat fields and extents of a layer's entries, as in `ragged.StoredEntries`.

    Without quantized entries, their fields are empty and their extents zeros.
    """

    keys: Any
    values: Any
    dense_extents: Any
    key_codes: Any
    value_codes: Any
    block_ids: Any
    code_extents: Any
    key_exponents: Any
    value_exponents: Any
    block_extents: Any


@njit(error_model="numpy", cache=True)
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


@njit(error_model="numpy", cache=True)
def first_entry(extents, segment, head, heads):
    """Return the flat entry at which a head's entries of a segment begin."""
    base, capacity = np.int64(extents[BASE, segment]), np.int64(extents[CAPACITY, segment])
    return heads * base + head * capacity + extents[START, segment]


@njit(error_model="numpy", cache=True)
def firsts_of(stored, segment, head, heads):
    """Return the flat code, dense entry and block at which a head's entries of a segment begin, the
    dense one as if the quantized entries were dense ones in front of it."""
    first_dense = first_entry(stored.dense_extents, segment, head, heads)
    return (
        first_entry(stored.code_extents, segment, head, heads),
        first_dense - np.int64(stored.code_extents[COUNT, segment]),
        first_entry(stored.block_extents, segment, head, heads),
    )


@njit(error_model="numpy", fastmath=FAST, cache=True)
def find_logits(query, stored, segment, head, heads, runs, num_runs, moved, s, tops):
    """Write products of queries with all entries of one head to s (G, T); raise `tops` to the
    largest.

    Args:
        query: (G, D) float32, times the scale and log2(e).
        stored: a `Stored`.
        runs: of the segment, `num_runs` of them.
        moved: (G, D) float32, work space.
        tops: (G,) float32.
    """
    first_code, first_dense, first_block = firsts_of(stored, segment, head, heads)
    for r in range(num_runs):
        t, stop, block = np.int64(runs[r, FIRST]), np.int64(runs[r, STOP]), runs[r, BLOCK]
        if block < 0:
            logits(query, stored.keys, first_dense + t, s, t, stop, tops)
        else:
            for j in range(query.shape[0]):
                scaled(query, j, stored.key_exponents, first_block + block, moved)
            logits(moved, stored.key_codes, first_code + t, s, t, stop, tops)


@njit(error_model="numpy", cache=True)
def runs_of(stored, segment, num_entries, runs):
    """Call `find_runs` for a segment of a layer."""
    num_coded = np.int64(stored.code_extents[COUNT, segment])
    ids = stored.block_ids[first_entry(stored.code_extents, segment, 0, 1) :]
    return find_runs(ids, num_coded, num_entries, runs)


@njit(error_model="numpy", fastmath=FAST, cache=True)
def attend(
    segment, first_head, stop_head, heads, q, factor, sinks, num_entries, stored, output, mass
):
    """Attend in some heads of one segment; write `output`, and add to `mass` unless it is empty.

    Args:
        heads: W.
        q, output: (W * G, D) float32, of the segment.
        factor: scale * log2(e).
        sinks: (W * G,) float32, of the segment; (0,) for none.
        num_entries: T.
        stored: a `Stored`.
        mass: (T,) float32, of the segment, or (0,).
    """
    head_dim, group = q.shape[1], q.shape[0] // heads
    s, runs = np.empty((group, num_entries), f32), np.empty((num_entries, 3), i32)
    query, moved = np.empty((group, head_dim), f32), np.empty((group, head_dim), f32)
    out, tops = np.empty((group, head_dim), f32), np.empty(group, f32)
    num_runs = runs_of(stored, segment, num_entries, runs)
    for head in range(first_head, stop_head):
        first_code, first_dense, first_block = firsts_of(stored, segment, head, heads)
        first_q = head * group
        for j in range(group):
            tops[j] = LOWEST
            if sinks.shape[0]:
                tops[j] = sinks[first_q + j] * LOG2_E
            for i in range(head_dim):
                query[j, i] = q[first_q + j, i] * factor
                out[j, i] = f32(0.0)
        find_logits(query, stored, segment, head, heads, runs, num_runs, moved, s, tops)
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
        for r in range(num_runs):
            t, stop, block = np.int64(runs[r, FIRST]), np.int64(runs[r, STOP]), runs[r, BLOCK]
            if block < 0:
                mix(s, t, stop, stored.values, first_dense + t, out)
                continue
            moved[:] = f32(0.0)
            mix(s, t, stop, stored.value_codes, first_code + t, moved)
            for j in range(group):
                scaled(moved, j, stored.value_exponents, first_block + block, moved)
                for i in range(head_dim):
                    out[j, i] += moved[j, i]
        output[first_q : first_q + group] = out
