"""Numba: entries of the formats fp8, int4 and nf4, decoded into float32.

Shapes: R flat entries, D head size.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from agentkv_kernels import formats
from agentkv_kernels.formats import GROUP
from agentkv_kernels.layout import FP8, INT4
from agentkv_kernels.numba.arithmetic import FAST
from agentkv_kernels.numba.compiled import compiled
from agentkv_kernels.numba.entry_products import lanes_of, num_lanes
from agentkv_kernels.numba.vectors import BYTE, FLOAT, INT, SHORT, WORD, Vectors

f32, i32 = np.float32, np.int32

INT4_LEVELS = np.array(formats.INT4, np.float32)
NF4_LEVELS = np.array(formats.NF4, np.float32)
HALF_GROUP = GROUP // 2
"""Bytes that share a scale."""

TABLE = 16
"""Numbers in a table that one instruction looks up: a register of 512 bits."""

POWER_120 = f32(2.0**120)
"""Turns the bits of an e4m3, put where a float32 has its exponent, into its value: the exponents
are biased by 7 and by 127."""


@intrinsic
def has_tables(typing_context):
    """Return whether an instruction looks up 16 numbers in a register."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return ir.IntType(1)(lanes_of(context) == TABLE)

    return types.boolean(), generate


@intrinsic
def unpack_entry(typing_context, codes, scales, levels, num_channels, out):
    """Decode an entry of a format of 16 levels; without `has_tables`, only int4.

    Args:
        codes, scales: their addresses; of a scale, two bytes.
        levels: address of the levels, (16,) float32.
        num_channels: D, a multiple of `num_lanes`.
        out: address of (D,) float32.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _Emit(builder, lanes_of(context)).entry(*arguments)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


class _Emit(Vectors):
    """Writes the instructions for an entry."""

    def entry(self, codes: Any, scales: Any, levels: Any, num_channels: Any, out: Any) -> None:
        """Write the loop of `unpack_entry`: a vector of channels at a time."""
        builder, lanes = self.builder, self.lanes
        bytes_of, halves = ir.VectorType(BYTE, lanes), ir.VectorType(BYTE, lanes // 2)
        nothing = ir.Constant(halves, ir.Undefined)
        twice = ir.VectorType(INT, lanes)([i // 2 for i in range(lanes)])
        shifts = bytes_of([4 * (i % 2) for i in range(lanes)])
        with cgutils.for_range(builder, builder.udiv(num_channels, WORD(lanes))) as loop:
            group = builder.udiv(loop.index, WORD(GROUP // lanes))
            bits = self.load(scales, SHORT, group, 1, 0, 1)
            scale = builder.bitcast(builder.shl(builder.zext(bits, INT), INT(16)), FLOAT)
            held = self.load(codes, halves, loop.index, 1, 0, 1)
            held = builder.lshr(builder.shuffle_vector(held, nothing, twice), shifts)
            held = builder.and_(held, bytes_of([15] * lanes))
            numbers = builder.zext(held, ir.VectorType(INT, lanes))
            found = self._looked_up(levels, numbers) if lanes == TABLE else self._sevenths(numbers)
            where = builder.add(out, builder.mul(loop.index, WORD(4 * lanes)))
            self.store(builder.fmul(found, self.splat(scale)), where, 0)

    def _looked_up(self, levels: Any, numbers: Any) -> Any:
        """Return the levels of numbers 0 to 15."""
        table = self.load(levels, self.numbers, WORD(0), 1, 0, 4)
        kind = ir.FunctionType(self.numbers, [self.numbers, numbers.type])
        name = "llvm.x86.avx512.permvar.sf.512"
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, [table, numbers])

    def _sevenths(self, numbers: Any) -> Any:
        """Return (number - 7) / 7 of numbers 0 to 15, rounded as `formats.INT4` is."""
        builder, seventh = self.builder, self.numbers([float(f32(1 / 7))] * self.lanes)
        wholes = builder.uitofp(numbers, self.numbers)
        wholes = builder.fsub(wholes, self.numbers([7.0] * self.lanes))
        found = builder.fmul(wholes, seventh)
        rest = self.fma(found, self.numbers([-7.0] * self.lanes), wholes)
        return self.fma(rest, seventh, found)


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
        unpack_four_bits(codes, scales, first, count, INT4_LEVELS, out, True)
    else:
        unpack_four_bits(codes, scales, first, count, NF4_LEVELS, out, has_tables())


@compiled(fastmath=FAST)
def unpack_four_bits(codes, scales, first, count, levels, out, can_emit):
    """Do the work of `unpack` for a format of 16 levels, (16,) float32.

    Args:
        can_emit: whether `unpack_entry` knows the format.
    """
    size = codes.shape[1]
    if can_emit and size * 2 % num_lanes() == 0:
        for t in range(count):
            unpack_entry(
                codes.ctypes.data + (first + t) * size,
                scales.ctypes.data + (first + t) * scales.shape[1],
                levels.ctypes.data,
                size * 2,
                out.ctypes.data + 4 * t * out.shape[1],
            )
        return
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
