"""Numba: numbers as memory holds them, in 8, 16 or 32 bits, and as float32 for computing.

Numba has no type for 16-bit floats, so an array of them has an integer type in compiled code:
float16 is int16, bfloat16 is uint16. An array of codes is int8.

Numbers at an address have a dtype of `layout.DTYPES`, which is told apart while code runs: with a
type for it, all code that handles such numbers would be compiled once for each dtype.
"""

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from agentkv_kernels.layout import FLOAT16, FLOAT32
from agentkv_kernels.numba.addresses import move, pointer
from agentkv_kernels.numba.compiled import compiled

_WORD, _HALF = ir.IntType(32), ir.IntType(16)


@intrinsic
def widened(typing_context, number):
    """Return a number of float32, float16, bfloat16 or int8 as float32, without rounding."""

    def generate(context, builder, signature, arguments):
        (x,), single = arguments, ir.FloatType()
        if number == types.float32:
            return x
        if number == types.int8:
            return builder.sitofp(x, single)
        if number == types.int16:
            return builder.fpext(builder.bitcast(x, ir.HalfType()), single)
        return builder.bitcast(builder.shl(builder.zext(x, _WORD), _WORD(16)), single)

    if number not in (types.float32, types.int8, types.int16, types.uint16):
        return None
    return types.float32(number), generate


@intrinsic
def narrowed(typing_context, number, like):
    """Return a float32 rounded to the nearest number of the type of `like`, ties to even."""

    def generate(context, builder, signature, arguments):
        x = arguments[0]
        if like == types.float32:
            return x
        if like == types.int16:
            return builder.bitcast(builder.fptrunc(x, ir.HalfType()), _HALF)
        bits = builder.bitcast(x, _WORD)
        odd = builder.and_(builder.lshr(bits, _WORD(16)), _WORD(1))
        rounded = builder.add(bits, builder.add(odd, _WORD(0x7FFF)))
        # adding could carry NaN into infinity: keep its upper half, and one bit that makes it NaN
        nan = builder.or_(bits, _WORD(0x400000))
        whole = builder.select(builder.fcmp_unordered("uno", x, x), nan, rounded)
        return builder.trunc(builder.lshr(whole, _WORD(16)), _HALF)

    if like not in (types.float32, types.int16, types.uint16):
        return None
    return like(types.float32, like), generate


@compiled()
def size_of(dtype):
    """Return the bytes of a number of a dtype."""
    return 4 if dtype == FLOAT32 else 2


@compiled()
def read_numbers(dtype, address, out):
    """Write the numbers at an address to `out` (n,) float32, contiguous."""
    shape = out.shape
    if dtype == FLOAT32:
        move(out.ctypes.data, address, 4 * out.shape[0])
    elif dtype == FLOAT16:
        widen(carray(pointer(address), shape, np.int16), out)
    else:
        widen(carray(pointer(address), shape, np.uint16), out)


@compiled()
def write_numbers(dtype, address, x):
    """Round numbers x (n,) float32, contiguous, to a dtype and write them to an address."""
    if dtype == FLOAT32:
        move(address, x.ctypes.data, 4 * x.shape[0])
    elif dtype == FLOAT16:
        narrow(x, carray(pointer(address), x.shape, np.int16))
    else:
        narrow(x, carray(pointer(address), x.shape, np.uint16))


@compiled()
def round_numbers(dtype, x):
    """Round numbers x (n,) float32 to a dtype, in place."""
    if dtype == FLOAT16:
        for i in range(x.shape[0]):
            x[i] = widened(narrowed(x[i], np.int16(0)))
    elif dtype != FLOAT32:
        for i in range(x.shape[0]):
            x[i] = widened(narrowed(x[i], np.uint16(0)))


@compiled()
def widen(numbers, out):
    """Write numbers (n,) of 16 bits to `out` (n,) float32."""
    for i in range(out.shape[0]):
        out[i] = widened(numbers[i])


@compiled()
def narrow(x, out):
    """Write numbers x (n,) float32 to `out` (n,), of 16 bits."""
    for i in range(x.shape[0]):
        out[i] = narrowed(x[i], out[i])
