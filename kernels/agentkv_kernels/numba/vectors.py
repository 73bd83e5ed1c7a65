"""Instructions of LLVM on 16 numbers at once, for loops that Numba does not turn into good ones."""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils

LANES = 16
"""Numbers of 32 bits in a vector: a register of 512 bits; smaller ones take several."""

BYTE, SHORT, INT, WORD = (ir.IntType(bits) for bits in (8, 16, 32, 64))
FLOAT, HALF = ir.FloatType(), ir.HalfType()
SUMS, NUMBERS = ir.VectorType(INT, LANES), ir.VectorType(FLOAT, LANES)


class Vectors:
    """Writes instructions with a builder."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def summed(
        self, count: Any, size: int, add: Callable[[Any, list[Any]], list[Any]]
    ) -> list[Any]:
        """Write a loop and return its `size` sums, vectors of float32.

        Args:
            add: returns the sums after step i, given i and those before.
        """
        builder = self.builder
        places = [cgutils.alloca_once(builder, NUMBERS) for _ in range(size)]
        for place in places:
            builder.store(NUMBERS([0.0] * LANES), place)
        with cgutils.for_range(builder, count) as loop:
            sums = add(loop.index, [builder.load(place) for place in places])
            for place, each in zip(places, sums, strict=True):
                builder.store(each, place)
        return [builder.load(place) for place in places]

    def load(self, address: Any, kind: Any, i: Any, per_block: int, which: int, align: int) -> Any:
        """Read thing `which` of block i of an array that has `per_block` in each block."""
        builder, size = self.builder, _size(kind)
        first = builder.mul(i, WORD(size * per_block))
        where = builder.add(builder.add(address, first), WORD(size * which))
        loaded = builder.load(builder.inttoptr(where, kind.as_pointer()))
        loaded.align = align
        return loaded

    def repeated(self, address: Any, kind: Any, i: Any, per_block: int, which: int) -> Any:
        """Read one number, and repeat it 16 times."""
        return self.splat(self.load(address, kind, i, per_block, which, 1 if kind is INT else 4))

    def splat(self, number: Any) -> Any:
        """Repeat a number 16 times."""
        nothing = ir.Constant(ir.VectorType(number.type, LANES), ir.Undefined)
        first = self.builder.insert_element(nothing, number, INT(0))
        return self.builder.shuffle_vector(first, nothing, SUMS([0] * LANES))

    def total(self, numbers: Any) -> Any:
        """Return the sum of 16 floats, in any order."""
        kind = ir.FunctionType(FLOAT, [FLOAT, NUMBERS])
        name = "llvm.vector.reduce.fadd.v16f32"
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, [FLOAT(0.0), numbers], fastmath=("reassoc",))

    def reduce(self, operation: str, numbers: Any) -> Any:
        """Return the sum or the largest of 16 integers."""
        kind = ir.FunctionType(INT, [SUMS])
        name = f"llvm.vector.reduce.{operation}.v16i32"
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, [numbers])

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """Return a * b + c."""
        kind = ir.FunctionType(NUMBERS, [NUMBERS] * 3)
        name = "llvm.fma.v16f32"
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, [a, b, c])

    def store(self, values: Any, address: Any, which: int) -> None:
        """Write a number or a vector as thing `which` of an array of its kind."""
        where = self.builder.add(address, WORD(which * _size(values.type)))
        place = self.builder.inttoptr(where, values.type.as_pointer())
        self.builder.store(values, place).align = 1


def _size(kind: Any) -> int:
    """Return the bytes of a number or a vector."""
    if isinstance(kind, ir.VectorType):
        return kind.count * _size(kind.element)
    return {FLOAT: 4, HALF: 2}.get(kind) or kind.width // 8
