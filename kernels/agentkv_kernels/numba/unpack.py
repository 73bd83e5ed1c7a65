"""Numba: entries of the formats fp8, int4 and nf4, decoded into float32.

Shapes: R flat entries, D head size.
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
    elif form == INT4:
        unpack_four_bits(codes, scales, first, count, INT4_LEVELS, out)
    else:
        unpack_four_bits(codes, scales, first, count, NF4_LEVELS, out)


@compiled(fastmath=FAST)
def unpack_four_bits(codes, scales, first, count, levels, out):
    """Do the work of `unpack` for a format of 16 levels, (16,) float32."""
    size = codes.shape[1]
    for t in range(count):
        entry = first + t
        for group in range(scales.shape[1] // 2):
            low, high = i32(scales[entry, 2 * group]), i32(scales[entry, 2 * group + 1])
            scale = i32(((low & i32(255)) << i32(16)) | (high << i32(24))).view(np.float32)
            for i in range(group * HALF_GROUP, min(size, (group + 1) * HALF_GROUP)):
                byte = i32(codes[entry, i])
                out[t, 2 * i] = levels[byte & i32(15)] * scale
                out[t, 2 * i + 1] = levels[(byte >> i32(4)) & i32(15)] * scale


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
