"""Numba: looking back. Which cold entries one token wants, and its attention over the hot ones.

Shapes as in `layout`; T cold entries of a segment, D head size, G query heads per key-value head.
"""

import numpy as np
from numba import njit

from agentkv_kernels.layout import COUNT, DTYPE, FLOAT16, FLOAT32, METADATA, NUM_HEADS
from agentkv_kernels.numba.addresses import extents_of, table_at
from agentkv_kernels.numba.append_attend import attend_stored, layer_at, stored_in
from agentkv_kernels.numba.arithmetic import FAST, power_of_two, softmax
from agentkv_kernels.numba.attention import LOG2_E, LOWEST, find_logits, runs_of

f32, i32 = np.float32, np.int32


@njit(error_model="numpy", fastmath=FAST, cache=True)
def raise_to_largest_shares(cold, hot, like, segment, factor, q, sinks, hidden, shares):
    """Raise `shares` to the largest share that a query head gives each cold entry; see
    `largest_shares`."""
    heads, dim = cold[NUM_HEADS], q.shape[1]
    group = q.shape[0] // heads
    num_cold, num_hot = shares.shape[0], extents_of(table_at(hot[METADATA]))[COUNT, segment]
    of_cold, of_hot = stored_in(cold, like), stored_in(hot, like)
    s, s_hot = np.empty((group, num_cold), f32), np.empty((group, num_hot), f32)
    runs, runs_hot = np.empty((num_cold, 3), i32), np.empty((num_hot, 3), i32)
    query, moved, tops = (
        np.empty((group, dim), f32),
        np.empty((group, dim), f32),
        np.empty(group, f32),
    )
    num_runs = runs_of(of_cold, segment, num_cold, runs)
    num_runs_hot = runs_of(of_hot, segment, num_hot, runs_hot)
    for head in range(heads):
        first_q = head * group
        for j in range(group):
            tops[j] = LOWEST
            if sinks.shape[0]:
                tops[j] = sinks[first_q + j] * LOG2_E
            for i in range(dim):
                query[j, i] = q[first_q + j, i] * f32(factor)
        find_logits(query, of_cold, segment, head, heads, runs, num_runs, moved, s, tops)
        find_logits(query, of_hot, segment, head, heads, runs_hot, num_runs_hot, moved, s_hot, tops)
        for j in range(group):
            for i in range(hidden.shape[0]):
                s[j, hidden[i]] = LOWEST
            total = softmax(s, j, num_cold, tops[j]) + softmax(s_hot, j, num_hot, tops[j])
            if sinks.shape[0]:
                total += power_of_two(f32(sinks[first_q + j] * LOG2_E - tops[j]))
            share = f32(1.0) / total
            for t in range(num_cold):
                shares[t] = max(shares[t], s[j, t] * share)


@njit(error_model="numpy", cache=True, nogil=True)
def largest_shares(cold, hot, segment, factor, q, sinks, hidden, shares):
    """Write the largest share of attention that a query head gives each cold entry of a segment.

    Args:
        cold, hot: addresses of the numbers of two `LayerDescriptor`s of one dtype.
        factor: float64, scale * log2(e).
        q: (W * G, D) float32.
        sinks: (W * G,) float32; (0,) for none.
        hidden: numbers of cold entries that are not attended to, int64; their share is 0.
        shares: (T,) float32; mutated.
    """
    tier, layer = layer_at(cold), layer_at(hot)
    shares[:] = f32(0.0)
    rest = (segment, factor, q, sinks, hidden, shares)
    if layer[DTYPE] == FLOAT32:
        raise_to_largest_shares(tier, layer, np.empty(1, np.float32), *rest)
    elif layer[DTYPE] == FLOAT16:
        raise_to_largest_shares(tier, layer, np.empty(1, np.int16), *rest)
    else:
        raise_to_largest_shares(tier, layer, np.empty(1, np.uint16), *rest)


@njit(error_model="numpy", cache=True, nogil=True)
def best_blocks(positions, scores, hidden, oldest, num_blocks, block):
    """Return the numbers of the entries in the best blocks; see `look.best_blocks`.

    Args:
        positions: (T,) int32.
        scores: (T,) float32, none below 0.
        hidden: numbers of entries, int64.
    """
    num_entries = positions.shape[0]
    is_free, last = np.empty(num_entries, np.bool_), i32(0)
    for t in range(num_entries):
        is_free[t] = positions[t] >= oldest
        last = max(last, positions[t])
    for i in range(hidden.shape[0]):
        is_free[hidden[i]] = False
    best = np.full(last // block + 1, f32(-1.0))
    for t in range(num_entries):
        if is_free[t]:
            best[positions[t] // block] = max(best[positions[t] // block], scores[t])
    is_chosen = np.zeros(best.shape[0], np.bool_)
    order, num_chosen = np.argsort(-best, kind="mergesort"), 0
    while num_chosen < min(num_blocks, order.shape[0]) and best[order[num_chosen]] >= f32(0.0):
        is_chosen[order[num_chosen]] = True
        num_chosen += 1
    found, count = np.empty(num_chosen * block, np.int64), 0
    for t in range(num_entries):
        if is_free[t] and is_chosen[positions[t] // block]:
            found[count] = t
            count += 1
    found = found[:count]
    return found[np.argsort(positions[found], kind="mergesort")]


@njit(error_model="numpy", cache=True, nogil=True)
def attend_hot(address, segment, factor, q, sinks, output):
    """Attend with one token over all entries of a segment, its own included; write `output`.

    Args:
        address: address of the numbers of a `LayerDescriptor`.
        factor: float64, scale * log2(e).
        q, output: (W * G, D) float32.
        sinks: (W * G,) float32; (0,) for none.
    """
    layer = layer_at(address)
    rest = (segment, 0, layer[NUM_HEADS], factor, q, sinks, output, np.empty(0, np.float32))
    if layer[DTYPE] == FLOAT32:
        attend_stored(layer, np.empty(1, np.float32), *rest)
    elif layer[DTYPE] == FLOAT16:
        attend_stored(layer, np.empty(1, np.int16), *rest)
    else:
        attend_stored(layer, np.empty(1, np.uint16), *rest)
