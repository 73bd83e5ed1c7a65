"""Bytes counted where they are taken and given back."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor


@dataclass(slots=True)
class Meter:
    """Bytes that a cache's storage holds now, and the most it ever held.

    Storage is all that holds rows: tables, what a table leaves and what it becomes while it is laid
    out anew, and copies of rows on their way. What attention, scores and encoding compute in is
    none of it.
    """

    live: int = 0
    peak: int = 0

    def add(self, num_bytes: int) -> None:
        self.live += num_bytes
        if self.live > self.peak:
            self.peak = self.live

    @contextmanager
    def passing(self, *copies: Tensor) -> Iterator[None]:
        """Count copies of rows that are let go at the end of the block; none shares its storage
        with a table or another one."""
        held = sum(copy.untyped_storage().nbytes() for copy in copies)
        self.add(held)
        try:
            yield
        finally:
            self.add(-held)
