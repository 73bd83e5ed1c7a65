"""Numba: entries of a segment in float32, for attention of several tokens at once, and for copies.

Shapes as in `layout`; T entries of a segment, n of them, W heads, D head size.
"""

import numpy as np
from numba import carray

from agentkv_kernels.layout import (
    COUNT,
    DENSE,
    DTYPE,
    FLOAT16,
    FLOAT32,
    INT8,
    NUM_HEADS,
    VALUES,
)
from agentkv_kernels.numba.addresses import entry_address, pointer, table_at
from agentkv_kernels.numba.append_attend import coded_in, dense_in, layer_at
from agentkv_kernels.numba.arithmetic import FAST, scaled
from agentkv_kernels.numba.attention import (
    BLOCK,
    FIRST,
    STOP,
    first_entry,
    runs_of,
)
from agentkv_kernels.numba.compiled import compiled
from agentkv_kernels.numba.numbers import narrowed, widened
from agentkv_kernels.numba.unpack import unpack

f32, i32 = np.float32, np.int32


@compiled(fastmath=FAST)
def read_by_block(codes, scales, first_code, first_block, runs, out):
    """Write int8 entries of a head to `out` (T, D).

    Args:
        codes, scales: (R, D) and (B, D) int8.
        first_code, first_block: rows at which the head begins.
        runs: of the segment's quantized entries, as `find_runs` writes them.
    """
    ones, power = np.ones((1, out.shape[1]), f32), np.empty((1, out.shape[1]), f32)
    for r in range(runs.shape[0]):
        scaled(ones, 0, scales, first_block + np.int64(runs[r, BLOCK]), power)
        for t in range(np.int64(runs[r, FIRST]), np.int64(runs[r, STOP])):
            for i in range(out.shape[1]):
                out[t, i] = f32(codes[first_code + t, i]) * power[0, i]


@compiled()
def read_dense(numbers, first, out):
    """Write rows of `numbers` from `first` on to `out` (T, D)."""
    for t in range(out.shape[0]):
        for i in range(out.shape[1]):
            out[t, i] = widened(numbers[first + t, i])


@compiled()
def read_dense_of(layer, like, segment, num_coded, keys, values):
    """Write the dense entries of a segment to keys and values (W, T, D), after the others."""
    dense, heads = dense_in(layer, like), layer[NUM_HEADS]
    for head in range(heads):
        first = first_entry(dense.extents, segment, head, heads)
        read_dense(dense.keys, first, keys[head, num_coded:])
        read_dense(dense.values, first, values[head, num_coded:])


@compiled(nogil=True)
def read_segment(address, segment, keys, values):
    """Write all entries of a segment in storage order to keys and values.

    Args:
        address: address of the numbers of a `LayerDescriptor`.
        keys, values: (W, T, D) float32; mutated.
    """
    layer = layer_at(address)
    coded, heads = coded_in(layer), layer[NUM_HEADS]
    num_coded = np.int64(coded.extents[COUNT, segment])
    runs = np.empty((num_coded, 3), i32)
    num_runs = runs_of(coded, segment, num_coded, runs)[1]
    for head in range(heads if num_coded else 0):
        first_code = first_entry(coded.extents, segment, head, heads)
        first_block = first_entry(coded.scale_extents, segment, head, heads)
        for codes, scales, out in (
            (coded.keys, coded.key_scales, keys[head]),
            (coded.values, coded.value_scales, values[head]),
        ):
            if coded.format == INT8:
                read_by_block(codes, scales, first_code, first_block, runs[:num_runs], out)
            else:
                unpack(codes, scales, first_code, num_coded, coded.format, out)
    if layer[DTYPE] == FLOAT32:
        read_dense_of(layer, np.empty(1, np.float32), segment, num_coded, keys, values)
    elif layer[DTYPE] == FLOAT16:
        read_dense_of(layer, np.empty(1, np.int16), segment, num_coded, keys, values)
    else:
        read_dense_of(layer, np.empty(1, np.uint16), segment, num_coded, keys, values)


@compiled()
def dense_row(table, field, segment, head, entry, like, out):
    """Write a dense entry of the dtype of `like` to `out` (D,)."""
    address = entry_address(table, field, segment, head, entry)
    numbers = carray(pointer(address), (out.shape[0],), like.dtype)
    for i in range(out.shape[0]):
        out[i] = widened(numbers[i])


@compiled()
def read_rows(layer, like, field, segment, head, picks, out):
    """Write some keys or values of a head to `out` (n, D), rounded to the dtype of `like`.

    Args:
        like: array of the type that stands for the dtype of dense entries.
        picks: (n,) int64, numbers of entries.
    """
    coded, heads, dense = coded_in(layer), layer[NUM_HEADS], table_at(layer[DENSE])
    num_coded = np.int64(coded.extents[COUNT, segment])
    codes, scales = coded.keys, coded.key_scales
    if field == VALUES:
        codes, scales = coded.values, coded.value_scales
    first_code = first_entry(coded.extents, segment, head, heads)
    first_block = first_entry(coded.scale_extents, segment, head, heads)
    first_id = first_entry(coded.extents, segment, 0, 1)
    ones = np.ones((1, out.shape[1]), f32)
    for k in range(picks.shape[0]):
        t = picks[k]
        if t >= num_coded:
            dense_row(dense, field, segment, head, t - num_coded, like, out[k])
            continue
        if coded.format == INT8:
            block = first_block + coded.block_ids[first_id + t]
            scaled(ones, 0, scales, block, out[k : k + 1])
            for i in range(out.shape[1]):
                out[k, i] *= f32(codes[first_code + t, i])
        else:
            unpack(codes, scales, first_code + t, 1, coded.format, out[k : k + 1])
        for i in range(out.shape[1]):
            out[k, i] = widened(narrowed(out[k, i], like[0]))
