"""Where rows are, as whole numbers at addresses that stay: what compiled code reads and keeps up.

An `Index` tells of one table (`boxes` says how its lanes lie in memory), a `Rack` of all tables of
one layer. Python and compiled code read and write the same numbers, so that nothing has to be put
together anew when a row comes or goes.

Shapes: N lanes, S of each sequence, W key-value heads in a lane; D head size.
"""

from array import array
from collections.abc import Sequence
from typing import NoReturn, SupportsIndex

from torch import Tensor

NUM_LANES, NUM_FIELDS, BOXES = 0, 1, 2
"""The first numbers of an index, and where its boxes begin."""

BASE, ROOM, START, COUNT = range(4)
"""Columns of the boxes, N numbers each; as in `boxes.Boxes.table`."""

ADDRESS, HEADS, SIZE = range(3)
"""Of each field, behind the boxes: where its tensor is, its heads, bytes of a row of one head."""

NUM_HEADS, HEAD_DIM, PER_SEQUENCE, WINDOW, ABOUT, DENSE, CODES, BLOCKS, RING, FIRST = range(10)
"""Numbers of a rack. From `ABOUT` to `RING`: the address of a table's index, 0 where there is none.
From `FIRST` on, for each sequence, the position of the row that comes next."""


class Addressed:
    """Something that compiled code finds by its address: its like elsewhere is no copy of it."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} is found by its address in memory: by itself it can neither "
            "be copied nor pickled. Copy the whole that it belongs to"
        )


class Index(Addressed):
    """Where the rows of one table are.

    Args:
        fields: heads, and bytes of a row of one head, of each field.
    """

    __slots__ = ("_end", "_num_lanes", "numbers")

    def __init__(self, num_lanes: int, fields: Sequence[tuple[int, int]]) -> None:
        self._num_lanes, self._end = num_lanes, BOXES + 4 * num_lanes
        of_fields = [number for heads, size in fields for number in (0, heads, size)]
        self.numbers = array("q", [num_lanes, len(fields), *[0] * (4 * num_lanes), *of_fields])

    @property
    def address(self) -> int:
        """Where the numbers are; they never move."""
        return self.numbers.buffer_info()[0]

    def column(self, which: int) -> list[int]:
        """One number of every lane."""
        start = BOXES + which * self._num_lanes
        return self.numbers[start : start + self._num_lanes].tolist()

    def put(self, which: int, numbers: Sequence[int]) -> None:
        """Set one number of every lane."""
        start = BOXES + which * self._num_lanes
        assert len(numbers) == self._num_lanes
        self.numbers[start : start + self._num_lanes] = array("q", numbers)

    def count(self, lane: int, num_lanes: int = 1) -> int:
        """Rows of some lanes in a row."""
        at = BOXES + COUNT * self._num_lanes + lane
        return self.numbers[at] if num_lanes == 1 else sum(self.numbers[at : at + num_lanes])

    def box(self, lane: int) -> tuple[int, int, int, int]:
        """Base, room, start and count of one lane."""
        base, room, start, count = self.numbers[BOXES + lane : self._end : self._num_lanes]
        return base, room, start, count

    def use(self, lane: int, start: int, count: int) -> None:
        """Say which rows of a lane's room are in use."""
        self.numbers[BOXES + START * self._num_lanes + lane] = start
        self.numbers[BOXES + COUNT * self._num_lanes + lane] = count

    @property
    def fields(self) -> list[tuple[int, int, int]]:
        """Of each field: address, heads, bytes of a row of one head."""
        told = self.numbers[self._end :].tolist()
        return list(zip(told[ADDRESS::3], told[HEADS::3], told[SIZE::3], strict=True))

    def points_at(self, tensors: Sequence[Tensor]) -> bool:
        """Whether the fields are where the index says."""
        found = self.numbers[self._end + ADDRESS :: 3].tolist()
        return found == [tensor.data_ptr() for tensor in tensors]

    def point(self, tensors: Sequence[Tensor]) -> None:
        """Say where the fields are now."""
        for f, tensor in enumerate(tensors):
            self.numbers[self._end + 3 * f + ADDRESS] = tensor.data_ptr()


class Rack(Addressed):
    """Where all tables of one layer are.

    Args:
        about: positions (N lanes, int32), what a tracker keeps of each row, and others.
        dense: keys and values (W heads of D) in the model's dtype.
        codes, blocks: of rows in `int8`, as `boxes.Int8Rows` has them; None where there are none.
        ring: the last `window` queries of each sequence, and their positions (int32).
    """

    __slots__ = ("_tables", "address", "numbers", "per_sequence")

    def __init__(
        self,
        *,
        num_heads: int,
        head_dim: int,
        per_sequence: int,
        batch: int,
        about: Index,
        dense: Index,
        codes: Index | None,
        blocks: Index | None,
        ring: Index | None,
        window: int,
    ) -> None:
        # held here, because the numbers below are no references
        self._tables = (about, dense, codes, blocks, ring)
        found = [0 if table is None else table.address for table in self._tables]
        said = [num_heads, head_dim, per_sequence, window, *found, *[0] * batch]
        self.numbers = array("q", said)
        self.address = self.numbers.buffer_info()[0]
        """Where the numbers are; they never move."""
        self.per_sequence = per_sequence

    def begin_row(self, first: Sequence[int]) -> None:
        """Say the position of the next row of each sequence."""
        if len(first) == 1:
            self.numbers[FIRST] = first[0]
        else:
            self.numbers[FIRST:] = array("q", first)
