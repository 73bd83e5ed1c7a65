"""Tables whose entries are put into a file that tables of other caches can map."""

from collections.abc import Iterable, Sequence
from itertools import accumulate

import torch

from agentkv.cache.storage.shared_file import (
    FileView,
    MappedEntries,
    SharedEntries,
    SharedFile,
)
from agentkv.cache.storage.table import EntryTable


class Views:
    """The mappings that one cache has of files, one for each."""

    def __init__(self) -> None:
        self._found: dict[SharedFile, FileView] = {}

    def of(self, table: EntryTable) -> MappedEntries:
        """Return what a table that was shared holds, in this cache's mapping of its file, which is
        made if it has none.

        Raises:
            OSError: the file cannot be mapped.
        """
        entries, counts = table.shared, table.num_shared
        assert entries is not None
        later = [
            [table.entries(f, segment)[:, first:] for f in range(len(table.fields))]
            for segment, first in enumerate(counts)
        ]
        return MappedEntries(entries, self.view(entries.file), counts, later)

    def view(self, file: SharedFile) -> FileView:
        """Return this cache's mapping of a file, which is made if it has none."""
        if file not in self._found:
            self._found[file] = file.view()
        return self._found[file]


def share(tables: Sequence[EntryTable]) -> None:
    """Let tables hold their entries in files that tables of other caches can map.

    Entries that are there already are not copied again. Those that came since are added to the
    file, unless another table has added its own, or shares less than half of what would be there
    and would keep the rest in memory; a table then keeps them to itself, up to as many as it
    shares. All others are copied, one table after the other.

    Args:
        tables: tables of one cache, whose `can_share` is true; their memory is mutated, and what it
            says is not.

    Raises:
        OSError: there is no room for the files. Some of the tables may be shared by then.
    """
    others = [table for table in tables if not table.shares_half_of(table.counts)]
    views = Views()
    for table, entries in zip(others, _places(others), strict=True):
        # the view shows what is written to the file while nothing was written to the view
        view, held = views.view(entries.file), table.nbytes
        table.meter.add(held)
        try:
            _write(table, entries)
            table.use_shared(MappedEntries(entries, view, entries.counts))
        finally:
            table.meter.add(-held)
    for table in tables:
        shared, counts = table.shared, table.counts
        assert shared is not None
        is_first = shared.counts == table.num_shared != counts
        if is_first and all(each.shares_half_of(counts) for each in shared.tables):
            _write(table, shared)
            table.note_shared()


def _places(tables: Sequence[EntryTable]) -> list[SharedEntries]:
    """Return room for each table, in one file."""
    capacities = [SharedEntries.room_for(table.counts) for table in tables]
    sizes = [
        SharedEntries.size_for(table.fields, own)
        for table, own in zip(tables, capacities, strict=True)
    ]
    *starts, end = accumulate(sizes, initial=0)
    if not tables:
        return []
    file = SharedFile(end)
    return [
        SharedEntries(file, start, table.fields, own)
        for table, start, own in zip(tables, starts, capacities, strict=True)
    ]


def _write(table: EntryTable, entries: SharedEntries) -> None:
    """Add to a file what a table has, and the file has not."""
    for segment, (first, count) in enumerate(zip(entries.counts, table.counts, strict=True)):
        for f, field in enumerate(table.fields):
            if first == count or not field.num_bytes:
                continue
            new = table.entries(f, segment)[:, first:]
            for head, own in enumerate(new):
                start = entries.address(f, segment, head, first)
                entries.file.write(start, own.contiguous().view(-1).view(torch.uint8).numpy())
    entries.counts = table.counts


def held_nbytes(tables: Iterable[EntryTable]) -> int:
    """Return the bytes of tables of any caches, counting what they share once."""
    total, shared = 0, set[SharedEntries]()
    for table in tables:
        total += table.own_nbytes
        if (entries := table.shared) is not None:
            shared.add(entries)
    return total + sum(entries.nbytes for entries in shared)
