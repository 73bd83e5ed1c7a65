"""Forks: caches that go on apart and share the entries that they had before."""

import logging
from collections.abc import Iterable

from agentkv.cache.checkpoint.snapshot import LayerEntries, Restorable, copied_entries
from agentkv.cache.layer import CacheLayer
from agentkv.cache.storage.sharing import Views, held_nbytes, share
from agentkv.cache.storage.table import EntryTable
from agentkv_kernels.layout import NORMS, TRACKED

_log = logging.getLogger(__name__)


def forked_entries_of(cache: Restorable) -> list[LayerEntries]:
    """Return each layer's entries for a fork of `cache`, which comes to map its own as the fork
    does.

    Entries on a device, and a cold tier in files, are copied; so are all where the operating system
    has no room for files.
    """
    layers = cache.evictor.layers if cache.batch is not None else []
    tables = [table for layer in layers for table in _shared_tables(layer).values()]
    views = Views()
    try:
        share(tables)
        mapped = {table: views.of(table) for table in tables}
    except OSError as error:
        _log.warning("a fork copies all entries, since they cannot be shared: %s", error)
        mapped = {}
    return [
        copied_entries(
            layer, {name: mapped[x] for name, x in _shared_tables(layer).items() if x in mapped}
        )
        for layer in layers
    ]


def shared_nbytes(cache: Restorable) -> int:
    """Return the bytes of a cache that another one maps too."""
    layers = cache.evictor.layers if cache.batch is not None else []
    tables = [table for layer in layers for table in layer.tables.values()]
    return sum(
        table.shared.bytes_of(table.num_shared)
        for table in tables
        if table.shared is not None and len(table.shared.tables) > 1
    )


def group_nbytes(caches: Iterable[Restorable]) -> int:
    """Return the bytes of several caches, cold tiers included, counting what they share once."""
    total = 0
    tables: list[EntryTable] = []
    for cache in caches:
        total += sum(layer.nbytes for layer in cache.recurrent.values())
        for layer in cache.evictor.layers if cache.batch is not None else []:
            tables += layer.tables.values()
    return total + held_nbytes(tables)


def _shared_tables(layer: CacheLayer) -> dict[str, EntryTable]:
    return {name: x for name, x in layer.tables.items() if x.can_share and _is_lasting(name, x)}


def _is_lasting(name: str, table: EntryTable) -> bool:
    """Return whether a table's entries stay as they were written: keys and values, and positions
    without statistics."""
    match name.removeprefix("cold "):
        case "dense" | "codes" | "scales":
            return True
        case "metadata":
            return not any(table.fields[which].num_bytes for which in (TRACKED, NORMS))
        case _:
            return False
