"""Backend for CPUs: one compiled call appends and attends, one drops entries of all layers.

Serves dense entries in 32 and 16 bits and quantized ones in all formats. Importing this module
imports Numba, which takes half a second.

Shapes as in `backend`; R flat entries of the metadata.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentkv.cache.storage.backend import (
    Backend,
    MassObserver,
    by_segment,
    hand_out_mass,
    oldest_blocks,
)
from agentkv.cache.storage.codes import extend_codes, merge_blocks
from agentkv.cache.storage.evictions import Eviction, single_entries
from agentkv.cache.storage.layer_storage import LayerStorage
from agentkv.cache.storage.table import Which
from agentkv.policies.entries import Drop
from agentkv_kernels.device import Implementation
from agentkv_kernels.ema import Ema
from agentkv_kernels.entries import DensePart, Part
from agentkv_kernels.formats import BLOCK
from agentkv_kernels.layout import POSITION
from agentkv_kernels.numba import append_attend as kernel
from agentkv_kernels.numba import drop as drop_kernels
from agentkv_kernels.numba import encode as encode_kernels
from agentkv_kernels.numba import look as look_kernels
from agentkv_kernels.numba.read import read_segment

LOG2_E = 1.4426950408889634
NO_UPDATE = Ema(keep=1.0, gain=0.0, starts_at_mass=False)


class NumbaBackend(Backend):
    """Operations on the storage of a layer, compiled by Numba."""

    name: Implementation = "numba"
    is_compiled = True

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
        layer = storage.descriptor
        layer.set_positions(first)
        dtype = q.dtype
        q, keys, values = (x.to(torch.float32).contiguous() for x in (q, keys, values))
        output = torch.empty_like(q)
        sinks_address, num_sinks = 0, 0
        if sinks is not None:
            sinks = sinks.detach().to(torch.float32).contiguous()
            sinks_address, num_sinks = sinks.data_ptr(), layer.segments_per_sequence
        rule = NO_UPDATE if ema is None else ema

        def run() -> tuple[bool, Tensor | None]:
            # the mass has the layout of the metadata, which grows with its capacity
            mass = None
            if observer is not None:
                mass = torch.empty(storage.metadata.tensors[POSITION].shape[0])
            done = kernel.append_attend(
                layer.address,
                q.shape[1] // keys.shape[1],
                scale * LOG2_E,
                q.data_ptr(),
                keys.data_ptr(),
                values.data_ptr(),
                sinks_address,
                num_sinks,
                output.data_ptr(),
                0 if mass is None else mass.data_ptr(),
                rule.keep,
                rule.gain,
                rule.starts_at_mass,
            )
            return done, mass

        done, mass = run()
        if not done:
            storage.reserve()
            done, mass = run()
            assert done, "no capacity after it was reserved"
        if observer is not None and mass is not None:
            hand_out_mass(storage, mass, observer)
        return output.to(dtype)

    def attend(
        self,
        storage: LayerStorage,
        q: Tensor,
        *,
        first: Sequence[int],
        columns: Sequence[Tensor] | None,
        scale: float,
        sinks: Tensor | None,
        window: int | None,
        observer: MassObserver | None,
        others: Callable[[int], Sequence[Part]] | None = None,
    ) -> Tensor:
        is_plain = columns is None and window is None and observer is None and others is None
        if q.shape[2] > 1 or not is_plain:
            return super().attend(
                storage,
                q,
                first=first,
                columns=columns,
                scale=scale,
                sinks=sinks,
                window=window,
                observer=observer,
                others=others,
            )
        per = storage.layout.segments_per_sequence
        own_sinks = None if sinks is None else sinks.view(per, -1)
        done = [
            self.attend_again(
                storage,
                segment,
                each,
                scale=scale,
                sinks=None if own_sinks is None else own_sinks[segment % per],
                others=(),
            )
            for segment, each in enumerate(torch.split(by_segment(storage, q), 1))
        ]
        return torch.cat(done).view(q.shape)

    def parts(self, storage: LayerStorage, which: Which) -> Sequence[Part]:
        parts = storage.parts(which)
        if isinstance(parts[0], DensePart):
            return parts
        assert not isinstance(which, slice)
        segments = range(storage.num_segments) if which is None else [which]
        shape = (
            len(segments),
            storage.layout.num_heads,
            storage.counts[segments[0]],
            storage.layout.head_dim,
        )
        keys, values = torch.empty(shape), torch.empty(shape)
        for i, segment in enumerate(segments):
            read_segment(storage.descriptor.address, segment, keys[i].numpy(), values[i].numpy())
        return [DensePart(keys, values, storage.all_positions(which))]

    def log_sums(
        self, storage: LayerStorage, segment: int, q: Tensor, *, scale: float, sinks: Tensor | None
    ) -> Tensor:
        rows = _rows(q)
        sums = np.empty(rows.shape[0], np.float32)
        address = storage.descriptor.address
        look_kernels.log_sums(address, segment, scale * LOG2_E, rows, _sinks(sinks), sums)
        return torch.from_numpy(sums)

    def largest_shares(
        self,
        cold: LayerStorage,
        segment: int,
        q: Tensor,
        *,
        lent: Sequence[int],
        scale: float,
        others: Tensor,
    ) -> Tensor:
        shares = np.zeros(cold.counts[segment], np.float32)
        look_kernels.raise_to_largest_shares(
            cold.descriptor.address,
            segment,
            scale * LOG2_E,
            _rows(q),
            others.numpy(),
            np.array(lent, np.int64),
            shares,
        )
        return torch.from_numpy(shares)

    def best_blocks(
        self,
        cold: LayerStorage,
        segment: int,
        scores: Tensor,
        *,
        lent: Sequence[int],
        oldest: int,
        blocks: int,
        block: int,
        least: float,
    ) -> Tensor:
        positions, hidden = cold.positions(segment).numpy(), np.array(lent, np.int64)
        wanted = oldest, blocks, block, np.float32(least)
        found = look_kernels.best_blocks(positions, scores.numpy(), hidden, *wanted)
        return torch.from_numpy(found)

    def attend_again(
        self,
        storage: LayerStorage,
        segment: int,
        q: Tensor,
        *,
        scale: float,
        sinks: Tensor | None,
        others: Sequence[Part],
    ) -> Tensor:
        if others:
            return super().attend_again(
                storage, segment, q, scale=scale, sinks=sinks, others=others
            )
        rows = _rows(q)
        output = np.empty_like(rows)
        look_kernels.attend_hot(
            storage.descriptor.address, segment, scale * LOG2_E, rows, _sinks(sinks), output
        )
        return torch.from_numpy(output).to(q.dtype).view(q.shape)

    # ---- quantizing

    def quantize_oldest(self, storage: LayerStorage, recent: Sequence[int]) -> None:
        if storage.scales is None:
            super().quantize_oldest(storage, recent)
            return
        counts = oldest_blocks(storage, recent)
        if any(counts):
            first_blocks = extend_codes(storage, counts)
            numbers = np.array([counts, first_blocks], np.int64)
            encode_kernels.encode_oldest(storage.descriptor.address, *numbers)
            merge_blocks(storage)
            storage.dense.drop([(0, count) for count in counts])

    def copy_over(self, hot: LayerStorage, cold: LayerStorage, picks: Sequence[Tensor]) -> None:
        if cold.scales is None or hot.device.type != "cpu":
            super().copy_over(hot, cold, picks)
            return
        counts = [pick.shape[0] for pick in picks]
        cold.metadata.extend(counts)
        first_blocks = extend_codes(cold, counts)
        addresses = hot.descriptor.address, cold.descriptor.address
        for segment, (pick, first) in enumerate(zip(picks, first_blocks, strict=True)):
            if counts[segment]:
                encode_kernels.copy_over(*addresses, segment, np.ascontiguousarray(pick), first)
        merge_blocks(cold)

    # ---- dropping

    def drop(self, evictions: Iterable[Eviction], *, tidies: bool = True) -> None:
        entries: dict[LayerStorage, list[int]] = {}
        masks: dict[LayerStorage, list[int]] = {}
        alive: list[Tensor] = []
        others: list[Eviction] = []
        for eviction in evictions:
            verdict, first = eviction.verdict, eviction.storages[0]
            per = first.layout.segments_per_sequence
            at = eviction.sequence * per
            single = single_entries(verdict, len(eviction.storages) * per)
            if single is not None:
                for i, storage in enumerate(eviction.storages):
                    own = entries.setdefault(storage, [-1] * storage.num_segments)
                    own[at : at + per] = single[i * per : (i + 1) * per]
            elif isinstance(verdict, Tensor):
                mask = verdict.contiguous()
                alive.append(mask)
                width, start = mask.shape[1], mask.data_ptr()
                for i, storage in enumerate(eviction.storages):
                    own = masks.setdefault(storage, [0] * storage.num_segments)
                    counts = storage.counts[at : at + per]
                    # a shorter segment is padded at its front
                    own[at : at + per] = [
                        start + (i * per + j + 1) * width - count for j, count in enumerate(counts)
                    ]
            elif isinstance(verdict, Drop):
                for storage in eviction.storages:
                    own = masks.setdefault(storage, [0] * storage.num_segments)
                    for segment in range(at, at + per):
                        mask = torch.ones(storage.counts[segment], dtype=torch.bool)
                        mask[verdict.start : verdict.stop] = False
                        alive.append(mask)
                        own[segment] = mask.data_ptr()
            else:
                others.append(eviction)
        super().drop(others)
        self._run(drop_kernels.drop, entries, tidies)
        self._run(drop_kernels.keep, masks, tidies)

    def _run(
        self,
        kernel: Callable[..., Any],
        arguments: dict[LayerStorage, list[int]],
        tidies: bool,
    ) -> None:
        if not arguments:
            return
        for storage in arguments:
            storage.own()
        addresses = np.array([storage.descriptor.address for storage in arguments], np.int64)
        numbers = np.array([each for own in arguments.values() for each in own], np.int64)
        if kernel(addresses, numbers, BLOCK):
            for storage in arguments:
                if tidies:
                    self.tidy(storage)
                else:
                    merge_blocks(storage)


def _rows(q: Tensor) -> Any:
    """Return the queries (1, heads, 1, D) of one token as an array (heads, D) of float32."""
    return q[0, :, 0].to(torch.float32).contiguous().numpy()


def _sinks(sinks: Tensor | None) -> Any:
    """Return the sinks of a segment as an array of float32, empty for none."""
    if sinks is None:
        return np.empty(0, np.float32)
    return sinks.detach().to(torch.float32).contiguous().numpy()


NUMBA = NumbaBackend()
