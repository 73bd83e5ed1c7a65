"""Instructions of LLVM on vectors of numbers, for loops that Numba does not turn into good ones."""

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
    """Writes instructions with a builder.

    Args:
        lanes: float32 numbers in a vector; 8 or 16.
    """

    def __init__(self, builder: Any, lanes: int = LANES) -> None:
        self.builder, self.lanes = builder, lanes
        self.numbers = ir.VectorType(FLOAT, lanes)
        """The type of a vector."""

    def summed(
        self, count: Any, size: int, add: Callable[[Any, list[Any]], list[Any]]
    ) -> list[Any]:
        """Write a loop and return its `size` sums, vectors of float32.

        Args:
            add: returns the sums after step i, given i and those before.
        """
        builder = self.builder
        places = [cgutils.alloca_once(builder, self.numbers) for _ in range(size)]
        for place in places:
            builder.store(self.numbers([0.0] * self.lanes), place)
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
        """Read one number, and repeat it in a vector."""
        return self.splat(self.load(address, kind, i, per_block, which, 1 if kind is INT else 4))

    def splat(self, number: Any) -> Any:
        """Repeat a number in a vector."""
        nothing = ir.Constant(ir.VectorType(number.type, self.lanes), ir.Undefined)
        first = self.builder.insert_element(nothing, number, INT(0))
        return self._shuffled(first, nothing, [0] * self.lanes)

    def total(self, numbers: Any) -> Any:
        """Return the sum of a vector, in any order."""
        kind = ir.FunctionType(FLOAT, [FLOAT, self.numbers])
        name = f"llvm.vector.reduce.fadd.v{self.lanes}f32"
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, [FLOAT(0.0), numbers], fastmath=("reassoc",))

    def totals(self, vectors: list[Any]) -> Any:
        """Return a vector of the sums of as many vectors as it has numbers.

        Vectors are added in pairs, of which each step puts the numbers of the two side by side: in
        groups of four numbers first, then the groups.
        """
        for low, high in _PAIRS[self.lanes]:
            vectors = [
                self.builder.fadd(self._shuffled(one, other, low), self._shuffled(one, other, high))
                for one, other in zip(vectors[::2], vectors[1::2], strict=True)
            ]
        return vectors[0]

    def part(self, vector: Any, first: int, size: int) -> Any:
        """Return some neighboring numbers of a vector."""
        nothing = ir.Constant(vector.type, ir.Undefined)
        return self._shuffled(vector, nothing, list(range(first, first + size)))

    def _shuffled(self, one: Any, other: Any, places: list[int]) -> Any:
        """Return the numbers in some places of two vectors, one after the other."""
        return self.builder.shuffle_vector(one, other, ir.VectorType(INT, len(places))(places))

    def reduce(self, operation: str, numbers: Any) -> Any:
        """Return the sum or the largest of 16 integers."""
        kind = ir.FunctionType(INT, [SUMS])
        name = f"llvm.vector.reduce.{operation}.v16i32"
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, [numbers])

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """Return a * b + c."""
        kind = ir.FunctionType(self.numbers, [self.numbers] * 3)
        name = f"llvm.fma.v{self.lanes}f32"
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


def _of_groups(lanes: int, places: list[int]) -> list[int]:
    """Return places for each group of four numbers, given those of the first; 4 to 7 are the first
    group of the other vector."""
    return [
        first + place % 4 + place // 4 * lanes for first in range(0, lanes, 4) for place in places
    ]


def _whole_groups(places: list[int]) -> list[int]:
    """Return places of groups of four numbers, given the numbers of the groups."""
    return [4 * place + i for place in places for i in range(4)]


_PAIRS = {
    lanes: [
        (_of_groups(lanes, [0, 4, 1, 5]), _of_groups(lanes, [2, 6, 3, 7])),
        (_of_groups(lanes, [0, 1, 4, 5]), _of_groups(lanes, [2, 3, 6, 7])),
        *[(_whole_groups(low), _whole_groups(high)) for low, high in groups],
    ]
    for lanes, groups in {
        8: [([0, 2], [1, 3])],
        16: [([0, 1, 4, 5], [2, 3, 6, 7]), ([0, 2, 4, 6], [1, 3, 5, 7])],
    }.items()
}
"""For each number of lanes, the places that the steps of `Vectors.totals` add up."""
