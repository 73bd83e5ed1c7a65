"""Numba: entries encoded in int8, as `formats.Int8` does.

Shapes as in `layout`; n entries, D head size.
"""

import numpy as np
from numba import carray

from agentkv_kernels.formats import BLOCK, MIN_EXPONENT
from agentkv_kernels.layout import (
    BLOCK_IDS,
    CODES,
    COUNT,
    HEAD_DIM,
    KEYS,
    METADATA,
    NUM_FIELDS,
    NUM_HEADS,
    SCALES,
    SIZE,
    VALUES,
)
from agentkv_kernels.layout import HEADS as FIELD_HEADS
from agentkv_kernels.numba.addresses import (
    entry_address,
    extents_of,
    field_of,
    move,
    pointer,
    table_at,
)
from agentkv_kernels.numba.append_attend import layer_at
from agentkv_kernels.numba.arithmetic import MAGIC
from agentkv_kernels.numba.compiled import compiled
from agentkv_kernels.numba.read import read_dense, read_rows

f32, i32 = np.float32, np.int32


@compiled()
def encode_block(x, codes, exponents):
    """Write the codes (n, D) and exponents (D,) of a block x (n, D), all int8 but x, float32."""
    for i in range(x.shape[1]):
        exponents[i] = MIN_EXPONENT
    tops = np.zeros(x.shape[1], f32)
    for t in range(x.shape[0]):
        for i in range(x.shape[1]):
            tops[i] = max(tops[i], abs(x[t, i]))
    for i in range(x.shape[1]):
        # top = mantissa * 2**exponent with a mantissa of 0.5 to 1, and 127 = 0.9921875 * 2**7
        bits = tops[i : i + 1].view(np.int32)[0]
        exponent = (bits >> i32(23)) - i32(126 + 7)
        mantissa = i32((bits & i32(0x7FFFFF)) | i32(0x3F000000)).view(np.float32)
        exponent += i32(mantissa > f32(0.9921875))
        exponents[i] = max(exponent, i32(MIN_EXPONENT))
        tops[i] = i32((i32(exponents[i]) + i32(127)) << i32(23)).view(np.float32)
    for t in range(x.shape[0]):
        for i in range(x.shape[1]):
            shifted = x[t, i] / tops[i] + f32(MAGIC)
            codes[t, i] = min(max(shifted - f32(MAGIC), f32(-127.0)), f32(127.0))


@compiled()
def append_blocks(layer, field, segment, head, x, first_block):
    """Encode entries x (n, D) float32 of a head as the last ones of its codes.

    Args:
        layer: numbers of a `LayerDescriptor` whose codes and scales count them already.
        field: `KEYS` or `VALUES`.
        first_block: the first block of scales that is theirs alone.
    """
    codes, scales = table_at(layer[CODES]), table_at(layer[SCALES])
    count, dim = x.shape
    first = extents_of(codes)[COUNT, segment] - count
    for start in range(0, count, BLOCK):
        size, block = min(BLOCK, count - start), first_block + start // BLOCK
        own = entry_address(codes, field, segment, head, first + start)
        exponents = entry_address(scales, field, segment, head, block)
        encode_block(
            x[start : start + size],
            carray(pointer(own), (size, dim), np.int8),
            carray(pointer(exponents), (dim,), np.int8),
        )


@compiled()
def write_block_ids(layer, segment, count, first_block):
    """Write the numbers of the blocks of the last `count` codes of a segment."""
    codes = table_at(layer[CODES])
    address = entry_address(codes, BLOCK_IDS, segment, 0, extents_of(codes)[COUNT, segment] - count)
    ids = carray(pointer(address), (count,), np.int32)
    for t in range(count):
        ids[t] = first_block + t // BLOCK


@compiled()
def encode_oldest_of(layer, segment, count, first_block):
    """Do the work of `encode_oldest` for one segment."""
    x = np.empty((count, layer[HEAD_DIM]), f32)
    for head in range(layer[NUM_HEADS]):
        for field in (KEYS, VALUES):
            for t in range(count):
                read_dense(layer, field, segment, head, t, x[t])
            append_blocks(layer, field, segment, head, x, first_block)
    write_block_ids(layer, segment, count, first_block)


@compiled(nogil=True)
def encode_oldest(address, counts, first_blocks):
    """Encode the oldest dense entries of each segment as its last codes, which count them already.

    Args:
        address: address of the numbers of a `LayerDescriptor` with int8 codes.
        counts: (N,) int64.
        first_blocks: (N,) int64, per segment the first block of scales that is theirs alone.
    """
    layer = layer_at(address)
    for segment in range(counts.shape[0]):
        if counts[segment]:
            encode_oldest_of(layer, segment, counts[segment], first_blocks[segment])


@compiled()
def copy_over_of(hot, cold, segment, picks, first_block):
    """Do the work of `copy_over` for the numbers of two layers."""
    source, target = table_at(hot[METADATA]), table_at(cold[METADATA])
    first = extents_of(target)[COUNT, segment] - picks.shape[0]
    for field in range(source[NUM_FIELDS]):
        size = field_of(source, field, SIZE)
        for head in range(field_of(source, field, FIELD_HEADS) if size else 0):
            for k in range(picks.shape[0]):
                own = entry_address(source, field, segment, head, picks[k])
                move(entry_address(target, field, segment, head, first + k), own, size)
    x = np.empty((picks.shape[0], hot[HEAD_DIM]), f32)
    for head in range(hot[NUM_HEADS]):
        for field in (KEYS, VALUES):
            read_rows(hot, field, segment, head, picks, x)
            append_blocks(cold, field, segment, head, x, first_block)
    write_block_ids(cold, segment, picks.shape[0], first_block)


@compiled(nogil=True)
def copy_over(hot, cold, segment, picks, first_block):
    """Encode some hot entries as the last ones of a cold segment, which counts them already.

    Args:
        hot, cold: addresses of the numbers of layer descriptors; the cold one has int8 codes.
        picks: (n,) int64, numbers of the hot entries.
        first_block: the first block of scales that is theirs alone.
    """
    copy_over_of(layer_at(hot), layer_at(cold), segment, picks, first_block)
