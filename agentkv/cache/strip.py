"""Rows in one growing and shrinking tensor, with every byte of it metered."""

from dataclasses import dataclass

from torch import Tensor

from agentkv_kernels.ops import BLOCK


@dataclass(slots=True)
class Meter:
    """Bytes that a cache's storage holds now, and the most it ever held."""

    live: int = 0
    peak: int = 0

    def add(self, num_bytes: int) -> None:
        self.live += num_bytes
        if self.live > self.peak:
            self.peak = self.live


class Strip:
    """Rows in one tensor that grows at its end and gives memory back when it shrinks.

    At most `BLOCK` rows' worth of memory is unused at rest.
    """

    __slots__ = ("_axis", "_meter", "_tensor", "start", "stop")

    def __init__(self, empty: Tensor, axis: int, meter: Meter) -> None:
        self._tensor, self._axis, self._meter = empty, axis, meter
        self.start = self.stop = 0
        meter.add(self.nbytes)

    @property
    def nbytes(self) -> int:
        return self._tensor.untyped_storage().nbytes()

    @property
    def num_rows(self) -> int:
        return self.stop - self.start

    @property
    def capacity(self) -> int:
        return self._tensor.shape[self._axis]

    @property
    def rows(self) -> Tensor:
        """The rows as a view."""
        return self._tensor.narrow(self._axis, self.start, self.stop - self.start)

    def extend(self, num_rows: int) -> Tensor:
        """Make room for rows at the end and return the view that must be filled."""
        stop = self.stop + num_rows
        if stop > self.capacity:
            self._move(self.rows, self.num_rows + num_rows + BLOCK - 1)
            stop = self.stop + num_rows
        new = self._tensor.narrow(self._axis, self.stop, num_rows)
        self.stop = stop
        return new

    def drop(self, first: int, last: int) -> None:
        """Rows first..last - 1 go. The shorter side moves; dropping the oldest moves nothing."""
        count, rows, axis = last - first, self.rows, self._axis
        behind = self.num_rows - last
        if first <= behind:
            if first:
                rows.narrow(axis, count, first).copy_(rows.narrow(axis, 0, first).clone())
            self.start += count
        else:
            if behind:
                tail = rows.narrow(axis, last, behind).clone()
                rows.narrow(axis, first, behind).copy_(tail)
            self.stop -= count
        if self.capacity - self.num_rows > BLOCK:
            self._move(self.rows, self.num_rows + BLOCK - 1 if self.num_rows else 0)

    def keep(self, index: Tensor) -> None:
        """Only the rows with these ascending numbers stay."""
        count = index.shape[0]
        if count == self.num_rows:
            return
        self._move(self.rows.index_select(self._axis, index), count + BLOCK - 1 if count else 0)

    def replace(self, rows: Tensor) -> None:
        """Hold exactly these rows, without room to grow, taking the tensor over."""
        self._meter.add(-self.nbytes)
        self._tensor = rows
        self.start, self.stop = 0, rows.shape[self._axis]
        self._meter.add(self.nbytes)

    def _move(self, rows: Tensor, capacity: int) -> None:
        # a copy in flight is not counted: the meter is about what is held
        shape = list(self._tensor.shape)
        shape[self._axis] = capacity
        tensor = self._tensor.new_empty(shape)
        count = rows.shape[self._axis]
        tensor.narrow(self._axis, 0, count).copy_(rows)
        self._meter.add(-self.nbytes)
        self._tensor, self.start, self.stop = tensor, 0, count
        self._meter.add(self.nbytes)
