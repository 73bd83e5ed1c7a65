"""Numba: the two inner loops of products with weights in a block format: rounding a block of
activations, and summing over all inputs for 16 rows and a few tokens.

They are written as instructions of LLVM, because Numba's own loops are not turned into the
instruction that multiplies four neighboring bytes and adds them up (`vpdpbusd`), and round one
number at a time. Processors without it multiply pairs of 16 bits, with the same integer results.

Shapes as in `agentkv_kernels.weights`; T tokens.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from agentkv_kernels.numba.arithmetic import MAGIC
from agentkv_kernels.numba.vectors import (
    BYTE,
    FLOAT,
    HALF,
    INT,
    NUMBERS,
    SHORT,
    SUMS,
    WORD,
    Vectors,
)
from agentkv_kernels.weights import BLOCK, GROUP, KINDS, LEAST, SUPER_BLOCK

_QUADS = BLOCK // 4


TILE = 4
"""Tokens that a product takes together (measured: 8 are no faster)."""


def intrinsic_of(dot: Callable[[Any], "Dot"]) -> Any:
    """Return an intrinsic that writes the products of 16 rows with `TILE` tokens, or with one.

    Args:
        dot: the way to multiply, by the features of the processor.
    """

    @intrinsic
    def sums(
        typing_context,
        kind,
        is_tile,
        codes,
        scales,
        steps,
        x_codes,
        x_scales,
        x_minima,
        starts,
        num_blocks,
        out,
        stride,
    ):
        """Write products to `out`, (16,) float32 of each token, `stride` bytes apart.

        Args:
            kind: place in `KINDS`.
            is_tile: whether there are `TILE` tokens, T, or 1.
            codes, scales, steps: addresses of those of the 16 rows.
            x_codes: address of the activations (N, T, 32) int8.
            x_scales, x_minima: of their scales and of scale times sum of codes, (N, T) float32.
            starts: of `-offset` times sums of codes, (N, T, parts) int32.
        """

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind, is_tile, *addresses, num_blocks, out, stride = arguments
            _, _, features = context.codegen().magic_tuple()
            emit = _Emit(builder, dot(features.split(",")))
            for number, form in enumerate(KINDS):
                with builder.if_then(builder.icmp_signed("==", kind, WORD(number))):
                    with builder.if_else(is_tile) as (of_tile, of_one):
                        for branch, tokens in ((of_tile, TILE), (of_one, 1)):
                            with branch:
                                emit.all_blocks((*form, tokens), addresses, num_blocks, out, stride)
            return context.get_dummy_value()

        numbers = [types.int64] * 10
        return types.void(types.int64, types.boolean, *numbers), generate

    return sums


Form = tuple[int, bool, bool, int, int]
Dot = Callable[[Any, Any, Any, Any], Any]


@intrinsic
def round_block(typing_context, x, codes, scale, minimum, sums):
    """Round a block of activations, as `weights.quantize_activations` does.

    Args:
        x: address of the block, (32,) float32.
        codes, scale: of what is written: (32,) int8, float32.
        minimum: of scale times the sum of the codes, float32.
        sums: of those of each half of the codes, (2,) int32.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, codes, scale, minimum, sums = arguments
        emit = _Emit(builder, plain_dot)
        zero, magic = NUMBERS([0.0] * GROUP), NUMBERS([MAGIC] * GROUP)
        halves = [emit.load(x, NUMBERS, WORD(0), 2, half, 4) for half in range(2)]
        # as integers, infinity is above all numbers, and NaN is above it
        sizes = [
            builder.and_(builder.bitcast(each, SUMS), SUMS([0x7FFFFFFF] * GROUP)) for each in halves
        ]
        size = builder.select(builder.icmp_signed(">", *sizes), *sizes)
        bits = emit.reduce("smax", size)
        largest = builder.bitcast(bits, FLOAT)
        is_finite = builder.icmp_signed("<", bits, INT(0x7F800000))
        own = builder.fdiv(largest, FLOAT(127.0))
        own = builder.select(is_finite, own, FLOAT(float("nan")))
        is_usual = builder.and_(is_finite, builder.fcmp_ordered(">=", largest, FLOAT(LEAST)))
        inverse = emit.splat(builder.fdiv(FLOAT(127.0), largest))
        totals = []
        for half in range(2):
            scaled = builder.select(is_usual, builder.fmul(halves[half], inverse), zero)
            rounded = builder.fsub(builder.fadd(scaled, magic), magic)
            whole = builder.fptosi(rounded, SUMS)
            emit.store(builder.trunc(whole, ir.VectorType(BYTE, GROUP)), codes, half)
            totals.append(emit.reduce("add", whole))
            emit.store(totals[half], sums, half)
        emit.store(own, scale, 0)
        total = builder.sitofp(builder.add(*totals), FLOAT)
        emit.store(builder.fmul(own, total), minimum, 0)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


class _Emit(Vectors):
    """Writes the instructions for blocks."""

    def __init__(self, builder: Any, dot: Dot) -> None:
        super().__init__(builder)
        self._dot = dot

    def all_blocks(
        self, form: Form, addresses: list[Any], num_blocks: Any, out: Any, stride: Any
    ) -> None:
        """Write the sums over all blocks."""
        tokens = form[-1]
        totals = self.summed(
            num_blocks, tokens, lambda i, totals: self.block(form, i, addresses, totals)
        )
        for t, total in enumerate(totals):
            self.store(total, self.builder.add(out, self.builder.mul(stride, WORD(t))), 0)

    def block(self, form: Form, i: Any, addresses: list[Any], totals: list[Any]) -> list[Any]:
        """Add block i to the totals of all tokens."""
        bits, has_minimum, has_steps, parts, tokens = form
        codes, scales, steps, x_codes, x_scales, x_minima, starts = addresses
        builder, numbers = self.builder, 2 if has_minimum else 1
        quads = self._quads(bits, codes, i)
        at = builder.udiv(i, WORD(SUPER_BLOCK // BLOCK)) if has_steps else i
        own = [self._halves(scales, at, numbers, each) for each in range(numbers)]
        if has_steps:
            factors = [self._bytes(steps, i, each) for each in range(2)]
            own = [builder.fmul(own[each if has_minimum else 0], factors[each]) for each in (0, 1)]
        for part in range(parts):
            sums = [
                self.repeated(starts, INT, i, tokens * parts, t * parts + part)
                for t in range(tokens)
            ]
            for quad in range(_QUADS // parts * part, _QUADS // parts * (part + 1)):
                for t in range(tokens):
                    x = self.repeated(x_codes, INT, i, tokens * _QUADS, t * _QUADS + quad)
                    sums[t] = self._dot(builder, sums[t], quads[quad], x)
            for t in range(tokens):
                scale = builder.fmul(own[part], self.repeated(x_scales, FLOAT, i, tokens, t))
                whole = builder.sitofp(sums[t], NUMBERS)
                totals[t] = self.fma(whole, scale, totals[t])
        for t in range(tokens if has_minimum else 0):
            x = self.repeated(x_minima, FLOAT, i, tokens, t)
            totals[t] = self.fma(own[1], x, totals[t])
        return totals

    def _quads(self, bits: int, codes: Any, i: Any) -> list[Any]:
        """Read the codes of a block, four inputs each."""
        builder, count = self.builder, _QUADS * bits // 8
        found = [self.load(codes, SUMS, i, count, v, 1) for v in range(count)]
        if bits == 8:
            return found
        mask, four = SUMS([0x0F0F0F0F] * GROUP), SUMS([4] * GROUP)
        high = [builder.and_(builder.lshr(each, four), mask) for each in found]
        return [builder.and_(each, mask) for each in found] + high

    def _halves(self, address: Any, i: Any, per_block: int, which: int) -> Any:
        loaded = self.load(address, ir.VectorType(HALF, GROUP), i, per_block, which, 2)
        return self.builder.fpext(loaded, NUMBERS)

    def _bytes(self, address: Any, i: Any, which: int) -> Any:
        loaded = self.load(address, ir.VectorType(BYTE, GROUP), i, 2, which, 1)
        return self.builder.sitofp(loaded, NUMBERS)


def native_dot(builder: Any, sums: Any, codes: Any, x: Any) -> Any:
    """Add to each sum four products of neighboring bytes: unsigned codes and signed numbers."""
    kind = ir.FunctionType(SUMS, [SUMS] * 3)
    dot = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512.vpdpbusd.512")
    return builder.call(dot, [sums, codes, x])


def plain_dot(builder: Any, sums: Any, codes: Any, x: Any) -> Any:
    """Do the work of `native_dot` with products of 16 bits."""
    pairs = ir.VectorType(SHORT, 2 * GROUP)
    eight = pairs([8] * (2 * GROUP))
    codes, x = builder.bitcast(codes, pairs), builder.bitcast(x, pairs)
    even = builder.ashr(builder.shl(x, eight), eight), builder.and_(codes, pairs([255] * 32))
    odd = builder.ashr(x, eight), builder.lshr(codes, eight)
    for each in (even, odd):
        a, b = (builder.sext(y, ir.VectorType(INT, 2 * GROUP)) for y in each)
        product = builder.mul(a, b)
        nothing = ir.Constant(product.type, ir.Undefined)
        for first in range(2):
            which = SUMS(list(range(first, 2 * GROUP, 2)))
            sums = builder.add(sums, builder.shuffle_vector(product, nothing, which))
    return sums


block_sums = intrinsic_of(lambda features: native_dot if "+avx512vnni" in features else plain_dot)
"""The intrinsic for the processor at hand."""
