"""Backend for CUDA devices: three launches append, attend and keep the query; one launch drops
entries of all layers. No operation waits for the device unless quantized entries must be told from
others.

Serves quantized entries in the format int8.

Shapes as in `backend`.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from agentkv.cache.storage.backend import (
    Backend,
    MassObserver,
    hand_out_mass,
)
from agentkv.cache.storage.evictions import Eviction, single_entries
from agentkv.cache.storage.layer_storage import LayerStorage
from agentkv.cache.storage.table import EntryTable
from agentkv.policies.entries import DropOne
from agentkv_kernels.device import Implementation, current
from agentkv_kernels.ema import Ema
from agentkv_kernels.layout import KEYS, POSITION, TRACKED, VALUES
from agentkv_kernels.ragged import (
    DenseEntries,
    Int8Entries,
    Removal,
    StoredEntries,
    upload,
)
from agentkv_kernels.triton.append import append_entry
from agentkv_kernels.triton.attention import attend_segments
from agentkv_kernels.triton.drop import drop_entries

Dropped = tuple[int, int, int]
"""An element of `Removal.runs`."""

NOTHING: Dropped = (0, 0, -1)


class TritonBackend(Backend):
    """Operations on the storage of a layer, compiled by Triton."""

    name: Implementation = "triton"

    def append_attend(
        self,
        storage: LayerStorage,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        first: Sequence[int],
        scale: float,
        sinks: Tensor | None,
        ema: Ema | None,
        observer: MassObserver | None,
    ) -> Tensor:
        if q.dtype != storage.layout.dtype:  # a launch reads queries and entries of one dtype
            return super().append_attend(
                storage,
                q,
                keys,
                values,
                first=first,
                scale=scale,
                sinks=sinks,
                ema=ema,
                observer=observer,
            )
        shape = (storage.num_segments, -1, q.shape[3])
        storage.metadata.reserve()
        storage.dense.reserve()
        tracked = None
        if storage.layout.tracked.inner != (0,):
            tracked = storage.metadata.tensors[TRACKED]
        with current(q.device):
            stored = append_entry(
                stored_in(storage),
                keys.reshape(shape),
                values.reshape(shape),
                positions=_relative_positions(storage, first),
                plus=first[0],
                tracked=tracked,
            )
            storage.metadata.set_layout(stored.layout)
            storage.dense.set_layout(stored.dense.layout)
            done = attend_segments(
                q.reshape(shape),
                stored,
                scale=scale,
                sinks=sinks,
                with_mass=observer is not None,
                ema=ema,
                tracked=tracked,
            )
        if observer is not None and done.mass is not None:
            hand_out_mass(storage, done.mass, observer)
        storage.note_queries(q, first=first, columns=None)
        return done.output.view(q.shape)

    def drop(self, evictions: Iterable[Eviction], *, tidies: bool = True) -> None:
        picked: dict[LayerStorage, list[Dropped]] = {}
        known: dict[LayerStorage, list[Dropped]] = {}
        picks: list[Tensor] = []
        others: list[Eviction] = []
        for eviction in evictions:
            verdict, storages = eviction.verdict, eviction.storages
            per = storages[0].layout.segments_per_sequence
            at = eviction.sequence * per
            if isinstance(verdict, DropOne) and not any(
                any(storage.num_quantized) for storage in storages
            ):
                # the host need not know which entries leave: none is a quantized one
                number = sum(pick.shape[0] for pick in picks)
                picks.append(verdict.entries)
                for i, storage in enumerate(storages):
                    own = picked.setdefault(storage, [NOTHING] * storage.num_segments)
                    first = number + i * per
                    own[at : at + per] = [(0, 1, first + j) for j in range(per)]
                continue
            single = single_entries(verdict, len(storages) * per)
            if single is None:
                others.append(eviction)
                continue
            for i, storage in enumerate(storages):
                own = known.setdefault(storage, [NOTHING] * storage.num_segments)
                own[at : at + per] = [(entry, 1, -1) for entry in single[i * per : (i + 1) * per]]
        super().drop(others)
        _launch(
            [
                (table, runs)
                for storage, runs in picked.items()
                for table in (storage.metadata, storage.dense)
            ],
            torch.cat(picks) if picks else None,
        )
        # no table may be in a launch twice
        _launch(
            [each for storage, runs in known.items() for each in _by_table(storage, runs)], None
        )
        for storage in {**picked, **known}:
            self.tidy(storage)


def stored_in(storage: LayerStorage) -> StoredEntries:
    """Return what a layer stores, without copies."""
    codes, scales, quantized = storage.codes, storage.scales, None
    if codes is not None and scales is not None and any(codes.counts):
        key_codes, value_codes, block_ids = codes.tensors
        key_exponents, value_exponents = scales.tensors
        quantized = Int8Entries(
            codes.layout,
            key_codes,
            value_codes,
            block_ids,
            scales.layout,
            key_exponents,
            value_exponents,
        )
    keys, values = storage.dense.tensors[KEYS], storage.dense.tensors[VALUES]
    dense = DenseEntries(storage.dense.layout, keys, values)
    positions = storage.metadata.tensors[POSITION]
    layout = storage.metadata.layout
    return StoredEntries(storage.layout.num_heads, layout, positions, dense, quantized)


def _relative_positions(storage: LayerStorage, first: Sequence[int]) -> Tensor:
    """Return (N,) int32: each segment's next position relative to the first sequence's."""
    per = storage.layout.segments_per_sequence
    relative = [position - first[0] for position in first for _ in range(per)]
    known = storage.relative_positions
    # sequences of a batch advance together, so that steps ask for the same numbers
    if known is None or known[0] != relative:
        on_device = upload(relative, dtype=torch.int32, device=storage.device)
        known = storage.relative_positions = relative, on_device
    return known[1]


def _by_table(
    storage: LayerStorage, runs: Sequence[Dropped]
) -> list[tuple[EntryTable, list[Dropped]]]:
    """Split entries to drop, in storage order, among the tables of a layer."""
    found: list[tuple[EntryTable, list[Dropped]]] = [(storage.metadata, []), (storage.dense, [])]
    if storage.codes is not None:
        found.append((storage.codes, []))
    for (entry, gap, _), num_quantized in zip(runs, storage.num_quantized, strict=True):
        is_quantized = entry < num_quantized
        in_tables = (gap > 0, gap > 0 and not is_quantized, gap > 0 and is_quantized)
        offsets = (0, num_quantized, 0)
        for (_, own), drops, offset in zip(found, in_tables, offsets, strict=False):
            own.append((entry - offset, 1, -1) if drops else NOTHING)
    return [(table, own) for table, own in found if any(gap for _, gap, _ in own)]


def _launch(tables: Sequence[tuple[EntryTable, Sequence[Dropped]]], picks: Tensor | None) -> None:
    """Drop entries of tables, in one launch per device."""
    for device in {table.tensors[0].device for table, _ in tables}:
        here = [each for each in tables if each[0].tensors[0].device == device]
        removals = [Removal(table.descriptor, table.layout, runs) for table, runs in here]
        with current(device):
            on_device = None if picks is None else picks.to(device, non_blocking=True)
            layouts = drop_entries(removals, on_device)
        for (table, _), layout in zip(here, layouts, strict=True):
            table.set_layout(layout)


TRITON = TritonBackend()
