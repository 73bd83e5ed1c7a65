"""Numba: products of queries with entries and of weights with entries, and powers of two.

`kernels/README.md` defines logits and scales.

Shapes: entries (R, D); q and out (G, D), one query head each; s and p (G, T), a number per entry.
"""

import numpy as np

from agentkv_kernels.numba.compiled import compiled
from agentkv_kernels.numba.entry_products import (
    CHANNELS,
    MOST_QUERIES,
    add_weighted,
    num_lanes,
    tile_size,
    write_products,
)
from agentkv_kernels.numba.numbers import widened

f32, i32 = np.float32, np.int32

MAGIC = 12582912.0
"""1.5 * 2**23: adding it to a float32 rounds to an integer, half to even."""

# reordering sums lets loops over channels become vector instructions; infinities and NaN keep their
# meaning
FAST = {"reassoc", "contract", "nsz", "arcp"}


@compiled(fastmath={"contract"})
def power_of_two(y):
    """Return 2 ** y of a float32 y <= 126, with a relative error up to 2.3e-7; 0 below -126."""
    magic = f32(MAGIC)
    shifted = f32(y + magic)
    whole = shifted.view(np.int32) - i32(0x4B400000)
    f = y - (shifted - magic)
    # the Taylor series of exp(f * ln 2), over -0.5..0.5
    p = f32(1.5403530e-4)
    p = p * f + f32(1.3333558e-3)
    p = p * f + f32(9.6181291e-3)
    p = p * f + f32(5.5504109e-2)
    p = p * f + f32(2.4022651e-1)
    p = p * f + f32(6.9314718e-1)
    p = p * f + f32(1.0)
    size = i32((whole + i32(127)) << i32(23)).view(np.float32)
    return f32(0.0) if y < f32(-126.0) else p * size


@compiled(fastmath=FAST)
def logits(q, keys, first, s, start, stop, tops):
    """Write products of queries with entries from `first` on to s[:, start:stop]; raise `tops` (G,)
    to the largest."""
    dim, width = q.shape[1], keys.shape[1] * keys.itemsize
    for j in range(0, q.shape[0], MOST_QUERIES):
        count = min(MOST_QUERIES, q.shape[0] - j)
        size, t = tile_size(count), start
        if dim % num_lanes() == 0:
            num_tiles = (stop - start) // size
            write_products(
                keys,
                count,
                keys.ctypes.data + first * width,
                q[j:].ctypes.data,
                dim * 4,
                dim,
                num_tiles,
                s[j:, start:].ctypes.data,
                s.shape[1] * 4,
                tops[j:].ctypes.data,
            )
            t += num_tiles * size
        while t < stop:
            entry = keys[first + t - start]
            for k in range(j, j + count):
                a = f32(0.0)
                for i in range(dim):
                    a += q[k, i] * widened(entry[i])
                s[k, t] = a
                tops[k] = max(tops[k], a)
            t += 1


@compiled(fastmath=FAST)
def softmax(s, j, count, top):
    """Replace the first `count` of s[j] by 2 ** (s - top) and return their sum."""
    total = f32(0.0)
    for t in range(count):
        p = power_of_two(s[j, t] - top)
        s[j, t] = p
        total += p
    return total


@compiled(fastmath=FAST)
def mix(p, start, stop, values, first, out):
    """Add p[:, start:stop] times the entries from `first` on to `out`."""
    dim, width, lanes = out.shape[1], values.shape[1] * values.itemsize, num_lanes()
    for j in range(0, out.shape[0], MOST_QUERIES):
        count, i = min(MOST_QUERIES, out.shape[0] - j), 0
        while i + lanes <= dim:
            is_wide = i + CHANNELS * lanes <= dim
            add_weighted(
                values,
                count,
                is_wide,
                values.ctypes.data + first * width + i * values.itemsize,
                width,
                p[j:, start:].ctypes.data,
                p.shape[1] * 4,
                stop - start,
                out[j:, i:].ctypes.data,
                dim * 4,
            )
            i += CHANNELS * lanes if is_wide else lanes
        if i < dim:
            for t in range(start, stop):
                entry = values[first + t - start]
                for k in range(j, j + count):
                    for channel in range(i, dim):
                        out[k, channel] += p[k, t] * widened(entry[channel])


@compiled(fastmath=FAST)
def scaled(x, j, exponents, entry, out):
    """Write x[j] * 2 ** exponents[entry] to out[j], by the bits of a float32, for -126..127."""
    for i in range(x.shape[1]):
        bits = i32((i32(exponents[entry, i]) + i32(127)) << i32(23))
        out[j, i] = x[j, i] * bits.view(np.float32)
