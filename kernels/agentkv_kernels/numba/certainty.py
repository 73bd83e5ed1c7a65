"""Numba: how sure a model is of its next token, in one read of its logits.

Importing this imports Numba, which takes half a second.
"""

import math

import numpy as np
import torch
from numba import carray, njit
from torch import Tensor

from agentkv_kernels.certainty import FAR
from agentkv_kernels.numba.addresses import pointer
from agentkv_kernels.numba.arithmetic import FAST, power_of_two

f32, i32 = np.float32, np.int32

LOG2_E = f32(1.4426950408889634)
LOWEST = f32(-FAR)

CHUNK = 1024
"""Logits that are read twice, once for the best and once for the sums: they stay in the fastest
cache in between."""


def certainty(logits: Tensor, weights: tuple[float, float, float]) -> Tensor:
    """As `certainty.certainty_in_torch`."""
    num_rows, size = logits.shape
    found = torch.empty(num_rows)
    read(logits.data_ptr(), num_rows, size, logits.stride(0), *weights, found.data_ptr())
    return found


@njit(error_model="numpy", cache=True)
def key_of(bits):
    """The bits of a float32 as a number that orders as it does; NaN beyond infinity. Whole numbers
    have a largest whatever is among them, so that compiled code may look for it in any order."""
    return bits ^ ((bits >> i32(31)) & i32(0x7FFFFFFF))


@njit(error_model="numpy", cache=True)
def best_of(bits, start, stop):
    """The key of the largest."""
    best = i32(-(2**31))
    for t in range(start, stop):
        best = max(best, key_of(bits[t]))
    return best


@njit(error_model="numpy", cache=True)
def two_best_of(bits, start, stop, first, second):
    """The keys of the two largest, these two included."""
    for t in range(start, stop):
        key = key_of(bits[t])
        if key > first:
            first, second = key, first
        elif key > second:
            second = key
    return first, second


@njit(error_model="numpy", fastmath=FAST, cache=True)
def sums_of(logits, start, stop, top):
    """Sums of e ** d and of d e ** d, d being how far a logit is below `top`, at most `FAR`."""
    total = inner = f32(0.0)
    for t in range(start, stop):
        below = logits[t] - top
        # put so that NaN stays
        below = LOWEST if below < LOWEST else below
        odds = power_of_two(below * LOG2_E)
        total += odds
        inner += odds * below
    return total, inner


@njit(error_model="numpy", cache=True)
def value_of(key, at):
    """The float32 of a key; `at` (1,) float32 and the same memory as int32, to write it through."""
    numbers, bits = at
    bits[0] = key_of(key)
    return numbers[0]


@njit(error_model="numpy", cache=True, nogil=True)
def read(address, num_rows, size, step, w_entropy, w_gap, w_top, output):
    """`certainty` of rows of `size` logits, `step` apart.

    Args:
        address, output: of float32.
        w_entropy, w_gap, w_top: float64.
    """
    found = carray(pointer(output), (num_rows,), np.float32)
    numbers = np.empty(1, np.float32)
    at = (numbers, numbers.view(np.int32))
    for row in range(num_rows):
        place = address + 4 * row * step
        logits = carray(pointer(place), (size,), np.float32)
        bits = carray(pointer(place), (size,), np.int32)
        first = second = i32(-(2**31))
        total = inner = 0.0
        top = f32(-np.inf)
        for start in range(0, size, CHUNK):
            stop = min(size, start + CHUNK)
            # few chunks have a logit among the two best so far
            if best_of(bits, start, stop) > second:
                first, second = two_best_of(bits, start, stop, first, second)
                best = value_of(first, at)
                if best != top and total > 0.0:
                    # sums below another top: e ** (d + s) = e ** s e ** d
                    shift = float(top) - float(best)
                    share = math.exp(shift)
                    inner = share * (inner + shift * total) if share > 0.0 else 0.0
                    total *= share
                top = best
            if top == -np.inf:
                continue  # nothing is possible so far
            sums = sums_of(logits, start, stop, top)
            total += sums[0]
            inner += sums[1]
        if not total > 0.0:
            found[row] = np.nan
            continue
        entropy = math.log(total) - inner / total
        gap = float(top) - float(value_of(second, at))
        certain = 1.0 - entropy / math.log(size)
        found[row] = w_entropy * certain + w_gap / (1.0 + math.exp(-gap)) + w_top / total
