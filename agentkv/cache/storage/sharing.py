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
from agentkv.cache.storage.table import EntryTable, Meter


class Views:
    """The mappings that one cache has of files, one for each."""

    def __init__(self) -> None:
        self._found: dict[SharedFile, FileView] = {}

    def of(self, entries: SharedEntries) -> MappedEntries:
        """Return entries in this cache's mapping of their file, which is made if it has none.

        Raises:
            OSError: the file cannot be mapped.
        """
        file = entries.file
        if file not in self._found:
            self._found[file] = file.view()
        return MappedEntries(entries, self._found[file])


def share(tables: Sequence[EntryTable]) -> list[SharedEntries]:
    """Put the entries of tables into files that others can map, let the tables map them, and return
    them.

    Entries that are there already are not copied again. Others exist twice until all are copied.

    Args:
        tables: tables of one cache, whose `can_share` is true; their memory is mutated, and what it
            says is not.

    Raises:
        OSError: there is no room for the files. The tables are as they were.
    """
    kept = {table: _kept_entries(table) for table in tables}
    others = [table for table in tables if kept[table] is None]
    made = dict(zip(others, _places(others), strict=True))
    copies: list[tuple[Meter, int]] = []
    try:
        for table, entries in made.items():
            copies.append((table.meter, table.nbytes))
            table.meter.add(table.nbytes)
            _write(table, entries)
        views = Views()
        mapped = [views.of(entries) for entries in made.values()]
        for table, own in zip(others, mapped, strict=True):
            table.use_shared(own)
    finally:
        for meter, num_bytes in copies:
            meter.add(-num_bytes)
    for table, old in kept.items():
        if old is not None and old.counts != table.counts:
            _write(table, old)
            table.note_shared()
    return [kept[table] or made[table] for table in tables]


def _kept_entries(table: EntryTable) -> SharedEntries | None:
    """Return the entries that a table maps, if it still has all of them and nobody added others."""
    entries = table.shared
    return entries if entries is not None and entries.counts == table.num_shared else None


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
    total, shared = 0, {}
    for table in tables:
        total += table.nbytes
        if table.shared is not None:
            shared[table.shared] = table.shared.nbytes
            total -= table.shared.bytes_of(table.num_shared)
    return total + sum(shared.values())
