"""Numba: the share of attention that each cold entry would receive from one token.

Shapes: T cold entries of a head, D head size, G query heads of it, N blocks of scales.
"""

import numpy as np
from numba import njit

from agentkv_kernels.numba.arithmetic import FAST, logits, power_of_two, scaled, softmax
from agentkv_kernels.numba.attention import BLOCK as BLOCK_OF_RUN
from agentkv_kernels.numba.attention import FIRST, LOWEST, STOP, find_runs

f32, i32 = np.float32, np.int32


@njit(error_model="numpy", fastmath=FAST, cache=True)
def raise_to_largest_shares(q, codes, exponents, block_ids, hidden, hot, shares):
    """Raise `shares` to the largest share that a query head gives each entry of one head.

    Args:
        q: (G, D) float32, times the scale and log2(e).
        codes: (T, D) int8.
        exponents: (N, D) int8.
        block_ids: (T,) int32.
        hidden: numbers of entries that are not attended to, int64.
        hot: (G,) float32: binary logarithm of the sum of 2 ** logit over all other entries.
        shares: (T,) float32; mutated.
    """
    group, num_entries = q.shape[0], codes.shape[0]
    s, runs = np.empty((group, num_entries), f32), np.empty((num_entries, 3), i32)
    moved, tops = np.empty((group, q.shape[1]), f32), np.empty(group, f32)
    tops[:] = LOWEST
    for r in range(find_runs(block_ids, num_entries, num_entries, runs)):
        t, stop = np.int64(runs[r, FIRST]), np.int64(runs[r, STOP])
        for j in range(group):
            scaled(q, j, exponents, np.int64(runs[r, BLOCK_OF_RUN]), moved)
        logits(moved, codes, t, s, t, stop, tops)
    for j in range(group):
        for i in range(hidden.shape[0]):
            s[j, hidden[i]] = LOWEST
        top = max(tops[j], hot[j])
        whole = f32(1.0) / (softmax(s, j, num_entries, top) + power_of_two(hot[j] - top))
        for t in range(num_entries):
            shares[t] = max(shares[t], s[j, t] * whole)
