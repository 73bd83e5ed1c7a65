"""Numba: products of tokens with weights of 16 bits, row by row.

Loops of Numba's own read such weights at three quarters of the speed of memory.

Shapes as in `linear`.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from agentkv_kernels.numba.arithmetic import FAST
from agentkv_kernels.numba.compiled import compiled
from agentkv_kernels.numba.numbers import widened
from agentkv_kernels.numba.vectors import HALF, LANES, NUMBERS, SUMS, WORD, Vectors

f32 = np.float32

TILE = 4
"""Tokens that share a row of a weight while it is in registers."""

CHUNK = 64
"""Inputs of a step of the loop: four vectors, so that their sums do not wait for each other."""


@intrinsic
def sum_row(typing_context, weight, is_tile, row, x, stride, num_chunks, out, out_stride):
    """Write the sums of products of a row with `TILE` tokens, or with one, over whole chunks.

    Args:
        weight: the array that the row is from.
        row: address of the row.
        x: address of the first token, `in_order` of the weight's dtype, float32.
        stride: bytes from there to the next token.
        out: address of the first token's sum, float32.
        out_stride: bytes from there to the next one.
    """
    is_bfloat16 = weight.dtype == types.uint16

    def generate(context, builder, signature, arguments):
        _, is_tile, row, x, stride, num_chunks, out, out_stride = arguments
        vectors, count = Vectors(builder), CHUNK // LANES

        def emit(tokens):
            def add(i, sums):
                for v, own in enumerate(_widened_chunk(vectors, row, i, is_bfloat16)):
                    for t in range(tokens):
                        token = builder.add(x, builder.mul(stride, WORD(t)))
                        number = vectors.load(token, NUMBERS, i, count, v, 4)
                        place = t * count + v
                        sums[place] = vectors.fma(own, number, sums[place])
                return sums

            sums = vectors.summed(num_chunks, tokens * count, add)
            for t in range(tokens):
                first, *others = sums[t * count : (t + 1) * count]
                for other in others:
                    first = builder.fadd(first, other)
                target = builder.add(out, builder.mul(out_stride, WORD(t)))
                vectors.store(vectors.total(first), target, 0)

        with builder.if_else(is_tile) as (of_tile, of_one):
            with of_tile:
                emit(TILE)
            with of_one:
                emit(1)
        return context.get_dummy_value()

    if weight.dtype not in (types.int16, types.uint16):
        return None
    return types.void(weight, types.boolean, *[types.int64] * 6), generate


def _widened_chunk(vectors, row, i, is_bfloat16):
    """Return the vectors of chunk i of a row as float32, in the order of `in_order`."""
    builder = vectors.builder
    if not is_bfloat16:
        halves = ir.VectorType(HALF, LANES)
        loaded = [vectors.load(row, halves, i, CHUNK // LANES, v, 2) for v in range(CHUNK // LANES)]
        return [builder.fpext(each, NUMBERS) for each in loaded]
    found = []
    for v in range(CHUNK // LANES // 2):  # two of 16 bits in each of 32
        pair = vectors.load(row, SUMS, i, CHUNK // LANES // 2, v, 2)
        even = builder.shl(pair, SUMS([16] * LANES))
        odd = builder.and_(pair, SUMS([-65536] * LANES))
        found += [builder.bitcast(each, NUMBERS) for each in (even, odd)]
    return found


@intrinsic
def alternates(typing_context, weight):
    """Return whether `sum_row` takes numbers with even places before those with odd ones."""
    is_bfloat16 = weight.dtype == types.uint16

    def generate(context, builder, signature, arguments):
        return ir.IntType(1)(is_bfloat16)

    return types.boolean(weight), generate


@compiled()
def in_order(weight, x, num_inputs):
    """Return the first inputs of x (B, K), of whole chunks, in the order that `sum_row` needs."""
    ordered = np.empty((x.shape[0], num_inputs), np.float32)
    if not alternates(weight):
        ordered[:] = x[:, :num_inputs]
        return ordered
    for token in range(x.shape[0]):
        for first in range(0, num_inputs, 2 * LANES):
            for i in range(LANES):
                ordered[token, first + i] = x[token, first + 2 * i]
                ordered[token, first + LANES + i] = x[token, first + 2 * i + 1]
    return ordered


@compiled(fastmath=FAST)
def half_products(weight, width, x, first, stop, out):
    """Do the work of `linear.products` for a flat weight of 16 bits."""
    num_tokens, num_chunks = x.shape[0], width // CHUNK
    num_inputs = num_chunks * CHUNK
    ordered = in_order(weight, x, num_inputs)
    for row in range(first, stop):
        token = 0
        while token < num_tokens:
            is_tile = token + TILE <= num_tokens
            sum_row(
                weight,
                is_tile,
                weight.ctypes.data + row * width * 2,
                ordered[token:].ctypes.data,
                num_inputs * 4,
                num_chunks,
                out[token, row:].ctypes.data,
                out.shape[1] * 4,
            )
            token += TILE if is_tile else 1
        for token in range(num_tokens if num_inputs < width else 0):
            rest = f32(0.0)
            for i in range(num_inputs, width):
                rest += x[token, i] * widened(weight[row * width + i])
            out[token, row] += rest
