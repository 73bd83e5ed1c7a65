"""Numba: numbers as memory holds them, in 8, 16 or 32 bits, and as float32 for computing.

Numba has no type for 16-bit floats, so an array of them has an integer type in compiled code:
float16 is int16, bfloat16 is uint16. An array of codes is int8.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

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
