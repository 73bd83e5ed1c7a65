"""Numba: next-token confidence in one pass over the logits.

Importing this module imports Numba, which takes half a second.
"""

import math

import numpy as np
from numba import carray

from agentkv_kernels.numba.addresses import pointer
from agentkv_kernels.numba.arithmetic import FAST, power_of_two
from agentkv_kernels.numba.compiled import compiled

f32, i32 = np.float32, np.int32

LOG2_E = f32(1.4426950408889634)

CHUNK = 1024
"""Logits that are read twice, once for the maximum and once for the sums, while they are in the
fastest cache."""


@compiled()
def key_of(bits):
    """Return an integer that orders as the float32 with these bits does, NaN beyond infinity.

    Integers have a maximum whatever is among them, so compiled code may search it in any order.
    """
    return bits ^ ((bits >> i32(31)) & i32(0x7FFFFFFF))


@compiled()
def best_of(bits, start, stop):
    """Return the largest key."""
    best = i32(-(2**31))
    for t in range(start, stop):
        best = max(best, key_of(bits[t]))
    return best


@compiled()
def two_best_of(bits, start, stop, first, second):
    """Return the two largest keys, counting `first` and `second`."""
    for t in range(start, stop):
        key = key_of(bits[t])
        if key > first:
            first, second = key, first
        elif key > second:
            second = key
    return first, second


@compiled(fastmath=FAST)
def sums_of(logits, start, stop, top, lowest):
    """Return the sums of e ** d and d e ** d, where d = logit - top, at least `lowest`."""
    total = inner = f32(0.0)
    for t in range(start, stop):
        below = logits[t] - top
        # ordered so that NaN stays NaN
        below = lowest if below < lowest else below
        odds = power_of_two(below * LOG2_E)
        total += odds
        inner += odds * below
    return total, inner


@compiled()
def value_of(key, at):
    """Return the float32 of a key; `at` is one number of memory, as float32 and as int32."""
    numbers, bits = at
    bits[0] = key_of(key)
    return numbers[0]


@compiled(nogil=True)
def read(address, batch, size, step, w_entropy, w_gap, w_top, lowest, output):
    """Write the confidence of sequences of `size` logits, `step` apart.

    Args:
        address, output: of float32.
        w_entropy, w_gap, w_top, lowest: float64.
    """
    found = carray(pointer(output), (batch,), np.float32)
    numbers = np.empty(1, np.float32)
    at = (numbers, numbers.view(np.int32))
    for sequence in range(batch):
        place = address + 4 * sequence * step
        logits = carray(pointer(place), (size,), np.float32)
        bits = carray(pointer(place), (size,), np.int32)
        first = second = i32(-(2**31))
        total = inner = 0.0
        top = f32(-np.inf)
        for start in range(0, size, CHUNK):
            stop = min(size, start + CHUNK)
            # few chunks hold one of the two largest logits so far
            if best_of(bits, start, stop) > second:
                first, second = two_best_of(bits, start, stop, first, second)
                best = value_of(first, at)
                if best != top and total > 0.0:
                    # rescale the sums to the new maximum: e ** (d + s) = e ** s e ** d
                    shift = float(top) - float(best)
                    share = math.exp(shift)
                    inner = share * (inner + shift * total) if share > 0.0 else 0.0
                    total *= share
                top = best
            if top == -np.inf:
                continue  # every logit so far is -inf
            sums = sums_of(logits, start, stop, top, f32(lowest))
            total += sums[0]
            inner += sums[1]
        if not total > 0.0:
            found[sequence] = np.nan
            continue
        entropy = math.log(total) - inner / total
        gap = float(top) - float(value_of(second, at))
        certain = 1.0 - entropy / math.log(size)
        found[sequence] = w_entropy * certain + w_gap / (1.0 + math.exp(-gap)) + w_top / total
