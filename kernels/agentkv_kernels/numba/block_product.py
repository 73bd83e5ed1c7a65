"""Numba: products of tokens with a weight in a block format.

Activations are rounded once and shared by all products of them. They lie in tiles of `TILE` tokens,
which a product takes together so that each code is loaded once for all of them; a single token is a
tile of its own.

Shapes as in `agentkv_kernels.weights`; B tokens, A with those that fill the last tile.
"""

import numpy as np
from numba import carray

from agentkv_kernels.numba.addresses import pointer
from agentkv_kernels.numba.block_sums import TILE, block_sums, round_block
from agentkv_kernels.numba.compiled import compiled
from agentkv_kernels.numba.numbers import widened
from agentkv_kernels.weights import (
    BLOCK,
    CODES,
    FIRST_ROW,
    GROUP,
    KIND,
    KINDS,
    OFFSET,
    SCALES,
    STEPS,
    SUPER_BLOCK,
    WEIGHT_NUMBERS,
    WIDTH,
)

f32, i32 = np.float32, np.int32

NEAR = 1 << 18
"""Bytes of activations that a product takes with all rows before it goes on to the next tokens:
they stay in the second cache of a core."""

FORMS = np.array(KINDS, np.int64)
"""Numbers of each kind of format: bits, has_minimum, has_steps, parts."""


@compiled()
def tile_size(num_tokens):
    """Return how many tokens a product of `num_tokens` takes together."""
    return 1 if num_tokens == 1 else TILE


@compiled()
def rounded(num_tokens, width):
    """Return space for activations of up to K channels.

    Returns:
        Codes (A * K,) int8; scales, and scales times sums of codes, both (A * N,) float32; sums of
        the codes of each half of a block (A * N * 2,) int32.
    """
    size = tile_size(num_tokens)
    num_tokens = (num_tokens + size - 1) // size * size
    num_blocks = num_tokens * (width // BLOCK)
    return (
        np.empty(num_tokens * width, np.int8),
        np.empty(num_blocks, np.float32),
        np.empty(num_blocks, np.float32),
        np.empty(2 * num_blocks, np.int32),
    )


@compiled(nogil=True)
def round_activations(x, out):
    """Round activations x (B, K) into space that `rounded` returned for B tokens."""
    codes, scales, minima, sums = out
    num_tokens, width = x.shape
    size = tile_size(num_tokens)
    for token in range(num_tokens):
        for block in range(width // BLOCK):
            place = token // size * size * (width // BLOCK) + block * size + token % size
            round_block(
                x[token, block * BLOCK :].ctypes.data,
                codes.ctypes.data + place * BLOCK,
                scales.ctypes.data + place * 4,
                minima.ctypes.data + place * 4,
                sums.ctypes.data + place * 8,
            )


@compiled(nogil=True)
def multiply(address, x, num_tokens, first, stop, out):
    """Write columns first..stop - 1 of the product of `num_tokens` tokens to `out` (B, outputs).

    Args:
        address: of the numbers of the weight.
        x: what `round_activations` wrote.
    """
    weight = carray(pointer(address), (WEIGHT_NUMBERS,), np.int64)
    form, width = FORMS[weight[KIND]], weight[WIDTH]
    bits, has_minimum, has_steps, parts = form[0], form[1], form[2], form[3]
    codes, scales, minima, sums = x
    num_blocks, size = width // BLOCK, tile_size(num_tokens)
    num_starts = (num_tokens + size - 1) // size * size * num_blocks
    starts = np.empty(num_starts * parts, np.int32)
    write_starts(sums, i32(weight[OFFSET]), parts, num_starts, starts)
    code_step = num_blocks * BLOCK * GROUP * bits // 8
    scale_step = num_blocks * GROUP * 2 * (1 + has_minimum)
    if has_steps:
        scale_step //= SUPER_BLOCK // BLOCK
    few = np.empty((TILE, GROUP), np.float32)
    first, stop = first + weight[FIRST_ROW], stop + weight[FIRST_ROW]
    near = max(size, NEAR // width // size * size)
    for token in range(0, num_tokens, near):
        last = min(token + near, num_tokens)
        for group in range(first // GROUP, (stop + GROUP - 1) // GROUP):
            row = group * GROUP
            is_whole = first <= row and row + GROUP <= stop
            row -= weight[FIRST_ROW]
            for tile in range(token, last, size):
                is_direct = is_whole and tile + size <= num_tokens
                at = out[tile, row:] if is_direct else few[0]
                block_sums(
                    weight[KIND],
                    size > 1,
                    weight[CODES] + group * code_step,
                    weight[SCALES] + group * scale_step,
                    weight[STEPS] + group * num_blocks * 2 * GROUP,
                    codes.ctypes.data + tile * width,
                    scales.ctypes.data + tile * num_blocks * 4,
                    minima.ctypes.data + tile * num_blocks * 4,
                    starts.ctypes.data + tile * num_blocks * parts * 4,
                    num_blocks,
                    at.ctypes.data,
                    (out.shape[1] if is_direct else GROUP) * 4,
                )
                if not is_direct:
                    low = max(0, first - group * GROUP)
                    high = min(GROUP, stop - group * GROUP)
                    for t in range(min(size, num_tokens - tile)):
                        for i in range(low, high):
                            out[tile + t, row + i] = few[t, i]


@compiled()
def write_starts(sums, offset, parts, count, starts):
    """Write what the sums of `count` blocks begin with: `offset` subtracted from each code."""
    for i in range(count):
        if parts == 2:
            starts[2 * i] = -offset * sums[2 * i]
            starts[2 * i + 1] = -offset * sums[2 * i + 1]
        else:
            starts[i] = -offset * (sums[2 * i] + sums[2 * i + 1])


@compiled()
def read_row(address, row, out):
    """Write a row of a weight to `out` (K,), dequantized."""
    weight = carray(pointer(address), (WEIGHT_NUMBERS,), np.int64)
    form, width = FORMS[weight[KIND]], weight[WIDTH]
    bits, has_minimum, has_steps, parts = form[0], form[1], form[2], form[3]
    num_blocks, numbers, offset = width // BLOCK, 1 + has_minimum, i32(weight[OFFSET])
    group, own = (row + weight[FIRST_ROW]) // GROUP, (row + weight[FIRST_ROW]) % GROUP
    per_block = BLOCK * GROUP * bits // 8
    blocks_of_scale = SUPER_BLOCK // BLOCK if has_steps else 1
    size = num_blocks // blocks_of_scale * numbers * GROUP
    scales = carray(pointer(weight[SCALES] + group * size * 2), (size,), np.int16)
    size = num_blocks * 2 * GROUP
    steps = carray(pointer(weight[STEPS] + group * size), (size if has_steps else 0,), np.int8)
    size = num_blocks * per_block
    codes = carray(pointer(weight[CODES] + group * size), (size,), np.uint8)
    for i in range(width):
        block, quad = i // BLOCK, i % BLOCK // 4
        part = i % BLOCK * parts // BLOCK
        at = block // blocks_of_scale * numbers * GROUP + own
        scale = widened(scales[at])
        if has_steps:
            scale *= f32(steps[(2 * block + part) * GROUP + own])
        shift = i32(0)
        if bits == 4:
            shift, quad = i32(quad // 4 * 4), quad % 4
        code = i32(codes[block * per_block + (quad * GROUP + own) * 4 + i % 4]) >> shift
        if bits == 4:
            code &= i32(15)
        value = scale * f32(code - offset)
        if has_minimum:
            minimum = widened(scales[at + GROUP])
            if has_steps:
                minimum *= f32(steps[(2 * block + 1) * GROUP + own])
            value += minimum
        out[i] = value
