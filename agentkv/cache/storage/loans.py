"""Loans of a cold tier: which of its entries are hot at present.

Shapes: N segments, n entries.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from agentkv_kernels.layout import Addressed


class Loans(Addressed):
    """Positions of the lent entries of each segment, and their numbers in the cold tier.

    Compiled code reads and updates them, in room for a number of entries per segment.
    """

    def __init__(self, num_segments: int) -> None:
        self._counts = np.zeros(num_segments, np.int64)
        self._entries = np.empty((num_segments, 2, 0), np.int64)
        self._numbers = np.zeros(3, np.int64)
        self._point()

    def _point(self) -> None:
        own = self._counts.ctypes.data, self._entries.ctypes.data, self._entries.shape[2]
        self._numbers[:] = own

    @property
    def address(self) -> int:
        """Address of the numbers that describe the loans, as in `layout`."""
        return int(self._numbers.ctypes.data)

    def count(self, segment: int) -> int:
        """Return how many entries of a segment are lent."""
        return int(self._counts[segment])

    def of(self, segment: int) -> dict[int, int]:
        """Return the lent entries of a segment: number by position."""
        places, numbers = self._entries[segment, :, : self.count(segment)].tolist()
        return dict(zip(places, numbers, strict=True))

    def reserve(self, count: int) -> None:
        """Make room for this many entries in every segment."""
        before = self._entries
        if count > before.shape[2]:
            self._entries = np.empty((*before.shape[:2], count + count // 2), np.int64)
            self._entries[:, :, : before.shape[2]] = before
            self._point()

    def set(self, segment: int, lent: Iterable[tuple[int, int]]) -> None:
        """Take pairs of position and number as all entries of a segment that are lent."""
        pairs = list(lent)
        self.reserve(len(pairs))
        self._counts[segment] = len(pairs)
        if pairs:
            self._entries[segment, :, : len(pairs)] = np.array(pairs, np.int64).T

    def add(self, segment: int, places: Sequence[int], numbers: Sequence[int]) -> None:
        """Lend further entries of a segment."""
        own = [*self.of(segment).items(), *zip(places, numbers, strict=True)]
        self.set(segment, own)
