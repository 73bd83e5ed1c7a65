"""Entries that forks of a cache share: files without a name, which each fork maps copy-on-write.

All forks read the same page of such a file. When a fork writes to a page, the operating system
copies the page for it, and attention still reads one place (our choice; engines with paged
attention share blocks instead).
"""

import math
import mmap
import os
import tempfile
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

import torch
from torch import Tensor

from agentkv_kernels.layout import Field, bytes_of_entry

PAGE = mmap.ALLOCATIONGRANULARITY
"""Bytes at a multiple of which a part of a file can be mapped."""

ROOM_FOR_ALL, ROOM_PER_ENTRY = 4096, 2
"""A shared segment has room for this many entries, and this many for each that it holds (our
choice): address space, which takes no memory until it is written."""


class SharedFile:
    """A file in memory, without a name, that can be mapped any number of times.

    Where the operating system has no such files it is an unnamed file of the folder for temporary
    ones. Its memory returns with the last mapping.

    Args:
        num_bytes: its size; parts that are never written take no memory.

    Raises:
        OSError: there can be no such file.
    """

    def __init__(self, num_bytes: int) -> None:
        self._file = _unnamed_file()
        self._size = num_bytes
        weakref.finalize(self, self._file.close)
        self._file.truncate(num_bytes)

    def write(self, start: int, content: Any) -> None:
        """Write bytes to the file. Raises OSError if there is no room for them."""
        self._file.seek(start)
        self._file.write(content)
        self._file.flush()

    def view(self) -> "FileView":
        """Map the file copy-on-write: nobody else sees what is written to the mapping."""
        return FileView(mmap.mmap(self._file.fileno(), self._size, access=mmap.ACCESS_COPY))

    def clear(self, start: int, stop: int) -> None:
        """Return the memory of a part, at multiples of `PAGE`, that nobody reads any more."""
        if hasattr(mmap, "MADV_REMOVE"):
            with suppress(OSError):  # the part then stays until the file goes
                whole = mmap.mmap(self._file.fileno(), self._size, access=mmap.ACCESS_WRITE)
                whole.madvise(mmap.MADV_REMOVE, start, stop - start)


def _unnamed_file() -> BinaryIO:
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("agentkv-entries"), "w+b")
    return tempfile.TemporaryFile(prefix="agentkv-entries-")


@dataclass(frozen=True, slots=True)
class FileView:
    """A copy-on-write mapping of a `SharedFile`."""

    mapping: mmap.mmap

    def tensor(self, start: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return a part of the mapping as a tensor, which keeps the mapping alive."""
        count = math.prod(shape)
        with torch.inference_mode(False):  # or nothing could be written outside of that mode
            if not count:
                return torch.empty(tuple(shape), dtype=dtype)
            flat = torch.frombuffer(self.mapping, dtype=dtype, count=count, offset=start)
        return flat.view(*shape)

    def forget_writes(self, start: int, stop: int) -> None:
        """Return the memory of what was written to a part, at multiples of `PAGE`."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.mapping.madvise(mmap.MADV_DONTNEED, start, stop - start)


class SharedEntries:
    """The entries of one table in a `SharedFile`, laid out as the tables that map them.

    The first `counts` entries of each segment never change. A table that maps them and has
    appended others may add these once; tables that appended something else go on without.

    Args:
        file: holds them from `start` on.
        fields: as in the table.
        capacities: room of each segment.
    """

    def __init__(
        self, file: SharedFile, start: int, fields: Sequence[Field], capacities: Sequence[int]
    ) -> None:
        self.file, self.start, self._fields = file, start, tuple(fields)
        self.capacities = tuple(capacities)
        self._entry_nbytes = bytes_of_entry(self._fields)
        self.counts = [0] * len(capacities)
        """Entries of each segment that the file holds."""
        self.tables: weakref.WeakSet[Any] = weakref.WeakSet()
        """Tables that map them."""
        weakref.finalize(self, file.clear, start, start + self.size).atexit = False

    @staticmethod
    def room_for(counts: Sequence[int]) -> list[int]:
        """Return the capacities that segments with `counts` entries get."""
        return [ROOM_PER_ENTRY * count + ROOM_FOR_ALL for count in counts]

    @staticmethod
    def size_for(fields: Sequence[Field], capacities: Sequence[int]) -> int:
        """Return the bytes of address space of a table."""
        return sum(_field_size(field, capacities) for field in fields)

    @property
    def size(self) -> int:
        """Bytes of address space."""
        return self.size_for(self._fields, self.capacities)

    @property
    def nbytes(self) -> int:
        """Bytes of the entries that the file holds."""
        return self.bytes_of(self.counts)

    def bytes_of(self, counts: Sequence[int]) -> int:
        """Return the bytes of `counts` entries of each segment."""
        return sum(counts) * self._entry_nbytes

    def tensors(self, view: "FileView") -> list[Tensor]:
        """Return a flat tensor for each field in a mapping of the file, as in `EntryTable`."""
        room = sum(self.capacities)
        shapes = [(field.heads * room, *field.inner) for field in self._fields]
        return [
            view.tensor(self._field_start(f), shape, field.dtype)
            for f, (field, shape) in enumerate(zip(self._fields, shapes, strict=True))
        ]

    def address(self, f: int, segment: int, head: int, entry: int) -> int:
        """Return where an entry of a field is in the file, in bytes."""
        field, before = self._fields[f], sum(self.capacities[:segment])
        row = field.heads * before + head * self.capacities[segment] + entry
        return self._field_start(f) + row * field.num_bytes

    def _field_start(self, f: int) -> int:
        return self.start + self.size_for(self._fields[:f], self.capacities)


@dataclass(frozen=True, slots=True)
class MappedEntries:
    """The entries of one table of a fork: shared ones, and copies of later ones."""

    entries: SharedEntries
    view: FileView
    counts: Sequence[int]
    """Entries of each segment that are those of the file."""
    more: Sequence[Sequence[Tensor]] = ()
    """Further entries (w, n, *F) of each segment and field, which are copied."""


def _field_size(field: Field, capacities: Sequence[int]) -> int:
    return -(-field.heads * field.num_bytes * sum(capacities) // PAGE) * PAGE
