"""Numba: products of queries with keys, and sums of weighted values, for up to four query heads.

They are written as instructions of LLVM, because Numba's own loops add up the channels of each
product across a vector on its own, which takes longer than the product. Here as many products as a
vector has numbers are added up together.

Entries are widened to float32 once for all of the queries.

Shapes: entries (R, D), D a multiple of `num_lanes`; G query heads; products and weights (G, T), a
number per entry.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from agentkv_kernels.numba.vectors import BYTE, FLOAT, HALF, INT, SHORT, WORD, Vectors

MOST_QUERIES = 4
"""Query heads that are taken together."""

CHANNELS = 4
"""Vectors of a value whose sums stay in registers together."""


@intrinsic
def num_lanes(typing_context):
    """Return the numbers in a vector: 16, or 8 where registers have 256 bits or less.

    As many sums as this stay in registers.
    """

    def generate(context, builder, signature, arguments):
        return WORD(lanes_of(context))

    return types.int64(), generate


@intrinsic
def tile_size(typing_context, num_queries):
    """Return how many entries `write_products` takes together for a number of queries: their
    products fill a vector."""

    def generate(context, builder, signature, arguments):
        lanes = lanes_of(context)
        found = WORD(lanes)
        for count in range(2, MOST_QUERIES + 1):
            is_it = builder.icmp_signed("==", arguments[0], WORD(count))
            found = builder.select(is_it, WORD(_entries_of(count, lanes)), found)
        return found

    return types.int64(types.int64), generate


@intrinsic
def write_products(
    typing_context,
    keys,
    num_queries,
    first_key,
    q,
    q_stride,
    num_channels,
    num_tiles,
    out,
    out_stride,
    tops,
):
    """Write the products of queries with the entries of whole tiles, and raise the largest of each.

    Args:
        keys: an array of the keys' type.
        num_queries: G, at most `MOST_QUERIES`.
        first_key: address of the first entry; the others follow.
        q, q_stride: address of the first query, float32, and bytes from one to the next.
        num_channels: D.
        num_tiles: of `tile_size` entries each.
        out, out_stride: address of the products, float32, and bytes from one query's to the next.
        tops: address of the largest product of each query so far, float32.
    """

    def generate(context, builder, signature, arguments):
        _, num_queries, *rest = arguments
        emit = _Emit(builder, lanes_of(context), keys.dtype)
        for count in range(1, MOST_QUERIES + 1):
            with builder.if_then(builder.icmp_signed("==", num_queries, WORD(count))):
                emit.products(count, *rest)
        return context.get_dummy_value()

    return types.void(keys, *[types.int64] * 9), generate


@intrinsic
def add_weighted(
    typing_context,
    values,
    num_queries,
    is_wide,
    first_value,
    stride,
    weights,
    weight_stride,
    num_entries,
    out,
    out_stride,
):
    """Add the weighted sum of entries to `CHANNELS` vectors of channels of `out`, or to one.

    Args:
        values: an array of the values' type.
        num_queries: G, at most `MOST_QUERIES`.
        is_wide: whether there are `CHANNELS` vectors.
        first_value, stride: address of the channels of the first entry, and bytes to the next one.
        weights, weight_stride: address of the first weight, float32, and bytes from one query's to
            the next.
        out, out_stride: address of the sums, float32, and bytes from one query's to the next.
    """

    def generate(context, builder, signature, arguments):
        _, num_queries, is_wide, *rest = arguments
        emit = _Emit(builder, lanes_of(context), values.dtype)
        for count in range(1, MOST_QUERIES + 1):
            with builder.if_then(builder.icmp_signed("==", num_queries, WORD(count))):
                with builder.if_else(is_wide) as (of_wide, of_one):
                    for branch, size in ((of_wide, CHANNELS), (of_one, 1)):
                        with branch:
                            emit.weighted(count, size, *rest)
        return context.get_dummy_value()

    return types.void(values, types.int64, types.boolean, *[types.int64] * 7), generate


def lanes_of(context: Any) -> int:
    """Return `num_lanes` of the processor that code is generated for."""
    _, _, features = context.codegen().magic_tuple()
    return 16 if "+avx512f" in features.split(",") else 8


def _entries_of(num_queries: int, lanes: int) -> int:
    return lanes // (4 if num_queries == 3 else num_queries)


class _Emit(Vectors):
    """Writes the instructions for entries of one type."""

    def __init__(self, builder: Any, lanes: int, dtype: Any) -> None:
        super().__init__(builder, lanes)
        self._dtype, self._nbytes = dtype, dtype.bitwidth // 8

    def products(
        self,
        num_queries: int,
        first_key: Any,
        q: Any,
        q_stride: Any,
        num_channels: Any,
        num_tiles: Any,
        out: Any,
        out_stride: Any,
        tops: Any,
    ) -> None:
        """Write the loop of `write_products` for one number of queries."""
        builder, size = self.builder, _entries_of(num_queries, self.lanes)
        num_chunks = builder.udiv(num_channels, WORD(self.lanes))
        stride = builder.mul(num_channels, WORD(self._nbytes))
        highest = cgutils.alloca_once(builder, self.numbers)
        builder.store(self.numbers([float("-inf")] * self.lanes), highest)
        with cgutils.for_range(builder, num_tiles) as loop:
            tile = builder.add(first_key, builder.mul(loop.index, builder.mul(stride, WORD(size))))

            def add(i: Any, sums: list[Any]) -> list[Any]:
                own = [
                    self.load(self.row(q, q_stride, j), self.numbers, i, 1, 0, 4)
                    for j in range(num_queries)
                ]
                for e in range(size):
                    key = self.widened(self.row(tile, stride, e), i)
                    for j in range(num_queries):
                        sums[j * size + e] = self.fma(own[j], key, sums[j * size + e])
                return sums

            sums = self.summed(num_chunks, num_queries * size, add)
            sums += [self.numbers([0.0] * self.lanes)] * (self.lanes - len(sums))
            products = self.totals(sums)
            before = builder.load(highest)
            is_higher = builder.fcmp_ordered(">", products, before)
            builder.store(builder.select(is_higher, products, before), highest)
            for j in range(num_queries):
                target = builder.add(
                    self.row(out, out_stride, j), builder.mul(loop.index, WORD(4 * size))
                )
                self.store(self.part(products, j * size, size), target, 0)
        found = builder.load(highest)
        for j in range(num_queries):
            top = self.load(tops, FLOAT, WORD(0), 1, j, 4)
            for e in range(size):
                other = builder.extract_element(found, INT(j * size + e))
                top = builder.select(builder.fcmp_ordered(">", other, top), other, top)
            self.store(top, tops, j)

    def weighted(
        self,
        num_queries: int,
        size: int,
        first_value: Any,
        stride: Any,
        weights: Any,
        weight_stride: Any,
        num_entries: Any,
        out: Any,
        out_stride: Any,
    ) -> None:
        """Write the loop of `add_weighted` for one number of queries and of vectors."""
        builder = self.builder

        def add(i: Any, sums: list[Any]) -> list[Any]:
            value = builder.add(first_value, builder.mul(i, stride))
            own = [self.widened(value, WORD(v)) for v in range(size)]
            for j in range(num_queries):
                weight = self.repeated(self.row(weights, weight_stride, j), FLOAT, i, 1, 0)
                for v in range(size):
                    sums[j * size + v] = self.fma(weight, own[v], sums[j * size + v])
            return sums

        sums = self.summed(num_entries, num_queries * size, add)
        for j in range(num_queries):
            row = self.row(out, out_stride, j)
            for v in range(size):
                before = self.load(row, self.numbers, WORD(0), 1, v, 4)
                self.store(builder.fadd(before, sums[j * size + v]), row, v)

    def row(self, address: Any, stride: Any, number: int) -> Any:
        """Return the address of a row."""
        return self.builder.add(address, self.builder.mul(stride, WORD(number)))

    def widened(self, address: Any, i: Any) -> Any:
        """Read vector i of an entry as float32; see `numbers.widened`."""
        builder, whole = self.builder, ir.VectorType(INT, self.lanes)
        if self._dtype == types.float32:
            return self.load(address, self.numbers, i, 1, 0, 4)
        if self._dtype == types.int8:
            codes = self.load(address, ir.VectorType(BYTE, self.lanes), i, 1, 0, 1)
            return builder.sitofp(builder.sext(codes, whole), self.numbers)
        if self._dtype == types.int16:
            halves = self.load(address, ir.VectorType(HALF, self.lanes), i, 1, 0, 2)
            return builder.fpext(halves, self.numbers)
        halves = self.load(address, ir.VectorType(SHORT, self.lanes), i, 1, 0, 2)
        bits = builder.shl(builder.zext(halves, whole), whole([16] * self.lanes))
        return builder.bitcast(bits, self.numbers)
