"""Numba: entries of a segment in float32, for attention of several tokens at once, and for copies.

Shapes as in `layout`; T entries of a segment, n of them, W heads, D head size.
"""

import numpy as np

from agentkv_kernels.layout import (
    COUNT,
    DENSE,
    DTYPE,
    INT8,
    KEYS,
    NUM_HEADS,
    VALUES,
)
from agentkv_kernels.numba.addresses import entry_address, table_at
from agentkv_kernels.numba.append_attend import coded_in, layer_at
from agentkv_kernels.numba.arithmetic import FAST, scaled
from agentkv_kernels.numba.attention import (
    BLOCK,
    FIRST,
    STOP,
    first_entry,
    runs_of,
)
from agentkv_kernels.numba.compiled import compiled
from agentkv_kernels.numba.numbers import read_numbers, round_numbers
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
    dense = table_at(layer[DENSE])
    for head in range(heads):
        # the entries of a head lie together
        for field, out in ((KEYS, keys[head, num_coded:]), (VALUES, values[head, num_coded:])):
            address = entry_address(dense, field, segment, head, 0)
            read_numbers(layer[DTYPE], address, out.reshape(-1))


@compiled()
def read_dense(layer, field, segment, head, entry, out):
    """Write a dense key or value to `out` (D,)."""
    address = entry_address(table_at(layer[DENSE]), field, segment, head, entry)
    read_numbers(layer[DTYPE], address, out)


@compiled()
def read_rows(layer, field, segment, head, picks, out):
    """Write some keys or values of a head to `out` (n, D), rounded to the layer's dtype.

    Args:
        picks: (n,) int64, numbers of entries.
    """
    coded, heads = coded_in(layer), layer[NUM_HEADS]
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
            read_dense(layer, field, segment, head, t - num_coded, out[k])
            continue
        if coded.format == INT8:
            block = first_block + coded.block_ids[first_id + t]
            scaled(ones, 0, scales, block, out[k : k + 1])
            for i in range(out.shape[1]):
                out[k, i] *= f32(codes[first_code + t, i])
        else:
            unpack(codes, scales, first_code + t, 1, coded.format, out[k : k + 1])
        round_numbers(layer[DTYPE], out[k])
