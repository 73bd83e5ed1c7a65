"""Numba: logits of a few queries and many int8 keys, in whole numbers.

A query, times the scales of a block, is rounded to 24 bits and cut into three planes of bytes; the
products of bytes are exact, so that a logit is as near as float32 numbers give it. 16 keys are
turned about so that each lane of a vector belongs to one key: nothing has to be added up across
lanes. Processors without the instruction that multiplies bytes (`vpdpbusd`) multiply pairs of 16
bits, with the same results.

Shapes: G queries, D head size, T entries of a segment.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from agentkv_kernels.numba.arithmetic import FAST
from agentkv_kernels.numba.attention import BLOCK, FIRST, STOP, first_entry
from agentkv_kernels.numba.block_sums import native_dot, plain_dot
from agentkv_kernels.numba.compiled import compiled
from agentkv_kernels.numba.vectors import BYTE, INT, LANES, NUMBERS, SUMS, WORD, Vectors

f32, i32 = np.float32, np.int32

CHUNK = 16
"""Channels that are turned about together."""

TOGETHER = 4
"""Queries that share what was turned about: their sums fit into registers."""

PLANES = 3
"""Bytes of a rounded query."""

HALF_RANGE, LARGEST = 8388608.0, 8388600.0
"""2**23, which stands for 0 in rounded queries of 0 to 2**24; and their largest size."""


@intrinsic
def tile_logits(typing_context, keys, num_chunks, planes, num_queries, steps, s, stride, tops):
    """Write the logits of up to `TOGETHER` queries and 16 keys, and raise `tops` to them.

    Args:
        keys: address of 16 keys, (16, D) int8.
        num_chunks: D / 16.
        planes: address of the queries, (G, 3, D) bytes.
        steps: address of what a rounded query's 1 stands for, (G,) float32.
        s: address of the first query's logits; those of the next are `stride` bytes on.
        tops: address of the largest logits by lane, (G, 16) float32.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        keys, num_chunks, planes, num_queries, steps, s, stride, tops = arguments
        _, _, features = context.codegen().magic_tuple()
        dot = native_dot if "+avx512vnni" in features.split(",") else plain_dot
        emit = _Emit(builder, dot)
        for count in range(1, TOGETHER + 1):
            with builder.if_then(builder.icmp_signed("==", num_queries, WORD(count))):
                emit.tile(count, keys, num_chunks, planes, steps, s, stride, tops)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 8), generate


class _Emit(Vectors):
    """Writes the instructions for a tile."""

    def __init__(self, builder: Any, dot: Any) -> None:
        super().__init__(builder)
        self._dot = dot

    def tile(
        self,
        count: int,
        keys: Any,
        num_chunks: Any,
        planes: Any,
        steps: Any,
        s: Any,
        stride: Any,
        tops: Any,
    ) -> None:
        """Write the logits of `count` queries."""
        builder = self.builder
        size = builder.mul(num_chunks, WORD(CHUNK))
        places = [cgutils.alloca_once(builder, SUMS) for _ in range(1 + count * PLANES)]
        for place in places:
            builder.store(SUMS([0] * LANES), place)
        ones = SUMS([0x01010101] * LANES)
        self._prefetch(builder.add(keys, builder.mul(size, WORD(4 * LANES))), num_chunks)
        with cgutils.for_range(builder, num_chunks) as loop:
            sums = [builder.load(place) for place in places]
            at = builder.mul(loop.index, WORD(CHUNK))
            for quad, codes in enumerate(self._quads(builder.add(keys, at), size)):
                sums[0] = self._dot(builder, sums[0], ones, codes)
                where = builder.add(builder.add(planes, at), WORD(4 * quad))
                for n in range(count * PLANES):
                    own = builder.add(where, builder.mul(size, WORD(n)))
                    x = self.splat(self.load(own, INT, WORD(0), 1, 0, 1))
                    sums[1 + n] = self._dot(builder, sums[1 + n], x, codes)
            for place, each in zip(places, sums, strict=True):
                builder.store(each, place)
        total, *sums = [builder.load(place) for place in places]
        middle = builder.mul(total, SUMS([128] * LANES))
        for j in range(count):
            low, mid, high = sums[PLANES * j : PLANES * (j + 1)]
            low, mid, high = (
                builder.sitofp(each, NUMBERS) for each in (low, mid, builder.sub(high, middle))
            )
            found = self.fma(mid, NUMBERS([256.0] * LANES), low)
            found = self.fma(high, NUMBERS([65536.0] * LANES), found)
            found = builder.fmul(found, self.repeated(steps, ir.FloatType(), WORD(0), 1, j))
            self.store(found, builder.add(s, builder.mul(stride, WORD(j))), 0)
            top = self.load(tops, NUMBERS, WORD(0), 1, j, 4)
            self.store(builder.select(builder.fcmp_ordered(">", found, top), found, top), tops, j)

    def _prefetch(self, keys: Any, num_chunks: Any) -> None:
        """Ask for the 16 keys at an address, which are wanted soon and may be past the end."""
        builder, pointer = self.builder, BYTE.as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, INT, INT, INT])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        with cgutils.for_range(builder, builder.mul(num_chunks, WORD(4))) as loop:
            at = builder.add(keys, builder.mul(loop.index, WORD(64)))
            builder.call(function, [builder.inttoptr(at, pointer), INT(0), INT(3), INT(1)])

    def _quads(self, keys: Any, size: Any) -> list[Any]:
        """Read 16 channels of 16 keys; return four vectors, each with four channels of all keys."""
        builder, few = self.builder, ir.VectorType(INT, 4)
        rows = []
        for row in range(LANES):
            at = builder.add(keys, builder.mul(size, WORD(row)))
            rows.append(self.load(at, few, WORD(0), 1, 0, 1))
        # parts[m] has rows m, 4 + m, 8 + m and 12 + m
        parts = []
        for m in range(4):
            halves = [
                builder.shuffle_vector(rows[m + first], rows[m + first + 4], _mask(range(8)))
                for first in (0, 8)
            ]
            parts.append(builder.shuffle_vector(*halves, _mask(range(16))))
        pairs = [
            builder.shuffle_vector(parts[m], parts[m + 1], _mask(_interleaved(1, first)))
            for m in (0, 2)
            for first in (0, 2)
        ]  # low of 0 and 1, high of 0 and 1, low of 2 and 3, high of 2 and 3
        return [
            builder.shuffle_vector(pairs[half], pairs[2 + half], _mask(_interleaved(2, first)))
            for half in (0, 1)
            for first in (0, 2)
        ]


def _mask(lanes: Any) -> Any:
    lanes = list(lanes)
    return ir.Constant(ir.VectorType(INT, len(lanes)), lanes)


def _interleaved(width: int, first: int) -> list[int]:
    """Return which numbers take turns, `width` at a time, from `first` on of every four."""
    lanes = []
    for four in range(0, LANES, 4):
        for step in range(0, 2, width):
            for source in (0, LANES):
                lanes += [source + four + first + step + i for i in range(width)]
    return lanes


@compiled(fastmath=FAST)
def round_queries(query, exponents, powers, wholes, planes):
    """Round queries (G, D) times the scales of a block, and cut them into `planes` (G, 3, D).

    Args:
        exponents: (D,) int8, of the scales.
        powers, wholes: work space, (D,) float32 and int32.
    """
    dim = query.shape[1]
    for i in range(dim):
        powers[i] = i32((i32(exponents[i]) + i32(127)) << i32(23)).view(np.float32)
    for j in range(query.shape[0]):
        for i in range(dim):
            wholes[i] = i32(query[j, i] * powers[i] + f32(HALF_RANGE))
        for p in range(PLANES):
            shift = i32(8 * p)
            for i in range(dim):
                planes[j, p, i] = np.uint8((wholes[i] >> shift) & i32(255))


@compiled(fastmath=FAST)
def code_logits(query, coded, segment, head, heads, runs, s, tops):
    """Write products of queries with int8 entries of one head to s (G, T); raise `tops` to them.

    Args:
        query: (G, D) float32, times the scale and log2(e); D is a multiple of 16.
        coded: an `attention.Coded` in int8.
        runs: of the segment's quantized entries, as `find_runs` writes them.
        tops: (G,) float32.
    """
    group, dim = query.shape
    first_code = first_entry(coded.extents, segment, head, heads)
    first_block = first_entry(coded.scale_extents, segment, head, heads)
    exponents = coded.key_scales
    largest = np.full(dim, np.int8(-128))
    for r in range(runs.shape[0]):
        block = first_block + runs[r, BLOCK]
        for i in range(dim):
            largest[i] = max(largest[i], exponents[block, i])
    scaled, steps = np.zeros(query.shape, f32), np.zeros(group, f32)
    for j in range(group):
        top = f32(0.0)
        for i in range(dim):
            power = i32((i32(largest[i]) + i32(127)) << i32(23)).view(np.float32)
            top = max(top, abs(query[j, i]) * power)
        if top > f32(1e-30):
            steps[j] = top / f32(LARGEST)
            for i in range(dim):
                scaled[j, i] = query[j, i] * (f32(LARGEST) / top)
    planes = np.empty((group, PLANES, dim), np.uint8)
    powers, wholes = np.empty(dim, f32), np.empty(dim, np.int32)
    lanes = np.empty((group, LANES), f32)
    few_keys, few = np.zeros((LANES, dim), np.int8), np.empty((group, LANES), f32)
    for j in range(group):
        lanes[j] = tops[j]
    first_key, first_logit = coded.keys.ctypes.data + first_code * dim, s.ctypes.data
    few_places, own_planes, own_steps = few.ctypes.data, planes.ctypes.data, steps.ctypes.data
    own_lanes = lanes.ctypes.data
    for r in range(runs.shape[0]):
        t, stop = np.int64(runs[r, FIRST]), np.int64(runs[r, STOP])
        round_queries(scaled, exponents[first_block + runs[r, BLOCK]], powers, wholes, planes)
        while t < stop:
            size = min(stop - t, LANES)
            keys, out, stride = first_key + t * dim, first_logit + 4 * t, 4 * s.shape[1]
            if size < LANES:
                few_keys[:size] = coded.keys[first_code + t : first_code + t + size]
                few_keys[size:] = few_keys[0]  # so that the largest is one of theirs
                keys, out, stride = few_keys.ctypes.data, few_places, 4 * LANES
            for j in range(0, group, TOGETHER):
                tile_logits(
                    keys,
                    dim // CHUNK,
                    own_planes + j * PLANES * dim,
                    min(group - j, TOGETHER),
                    own_steps + 4 * j,
                    out + j * stride,
                    stride,
                    own_lanes + 4 * LANES * j,
                )
            if size < LANES:
                s[:, t : t + size] = few[:, :size]
            t += size
    for j in range(group):
        for lane in range(LANES):
            tops[j] = max(tops[j], lanes[j, lane])
