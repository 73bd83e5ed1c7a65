"""Numba: entries of the formats fp8, int4 and nf4, decoded run by run into float32.

A run is decoded once for all query heads, while it is in a fast cache. Two numbers of 4 bits share
a byte: decoded entries have the low halves first and then the high ones, which spares interleaving
them; `arrange` brings queries into that order, and `add_arranged` outputs back out of it.

Shapes: R flat entries, D head size, G query heads.
"""

import numpy as np

from agentkv_kernels import formats
from agentkv_kernels.formats import GROUP
from agentkv_kernels.layout import FP8, INT4
from agentkv_kernels.numba.arithmetic import FAST
from agentkv_kernels.numba.compiled import compiled

f32, i32 = np.float32, np.int32

INT4_LEVELS = np.array(formats.INT4, np.float32)
NF4_LEVELS = np.array(formats.NF4, np.float32)
HALF_GROUP = GROUP // 2
"""Bytes that share a scale."""

POWER_120 = f32(2.0**120)
"""Turns the bits of an e4m3, put where a float32 has its exponent, into its value: the exponents
are biased by 7 and by 127."""


@compiled(fastmath=FAST)
def arrange(x, form, out):
    """Copy numbers (G, D) in the order in which `unpack` writes them."""
    half = x.shape[1] // 2
    for j in range(x.shape[0]):
        if form == FP8:
            for i in range(x.shape[1]):
                out[j, i] = x[j, i]
        else:
            for i in range(half):
                out[j, i], out[j, half + i] = x[j, 2 * i], x[j, 2 * i + 1]


@compiled(fastmath=FAST)
def add_arranged(x, form, out):
    """Add numbers (G, D) in the order in which `unpack` writes them to `out`."""
    half = x.shape[1] // 2
    for j in range(x.shape[0]):
        if form == FP8:
            for i in range(x.shape[1]):
                out[j, i] += x[j, i]
        else:
            for i in range(half):
                out[j, 2 * i] += x[j, i]
                out[j, 2 * i + 1] += x[j, half + i]


@compiled()
def scale_of_group(scales, entry, group):
    """Return the bfloat16 scale of a group of an entry's channels as float32."""
    low, high = i32(scales[entry, 2 * group]), i32(scales[entry, 2 * group + 1])
    return i32(((low & i32(255)) << i32(16)) | (high << i32(24))).view(np.float32)


@compiled(fastmath=FAST)
def unpack(codes, scales, first, count, form, out):
    """Decode entries first..first + count - 1 of a head to `out`.

    Args:
        codes: (R, C) int8, the bytes of the codes.
        scales: (R, B) int8, the bytes of the scales.
        form: `FP8`, `INT4` or `NF4`.
        out: (at least count, D) float32.
    """
    if form == FP8:
        unpack_fp8(codes, scales, first, count, out)
        return
    size = codes.shape[1]
    for t in range(count):
        entry = first + t
        for group in range(scales.shape[1] // 2):
            scale = scale_of_group(scales, entry, group)
            start, stop = group * HALF_GROUP, min(size, (group + 1) * HALF_GROUP)
            if form == INT4:
                scale *= f32(1.0 / 7.0)
                for i in range(start, stop):
                    byte = i32(codes[entry, i])
                    out[t, i] = f32((byte & i32(15)) - i32(7)) * scale
                    out[t, size + i] = f32(((byte >> i32(4)) & i32(15)) - i32(7)) * scale
            else:
                for i in range(start, stop):
                    byte = i32(codes[entry, i])
                    out[t, i] = NF4_LEVELS[byte & i32(15)] * scale
                    out[t, size + i] = NF4_LEVELS[(byte >> i32(4)) & i32(15)] * scale


@compiled(fastmath=FAST)
def unpack_fp8(codes, scales, first, count, out):
    """Do the work of `unpack` for fp8."""
    for t in range(count):
        entry = first + t
        bits = i32((i32(scales[entry, 0]) + i32(127)) << i32(23))
        scale = bits.view(np.float32)
        for i in range(codes.shape[1]):
            byte = i32(codes[entry, i])
            number = i32(((byte & i32(127)) << i32(20)) | ((byte & i32(128)) << i32(24)))
            out[t, i] = number.view(np.float32) * POWER_120 * scale
