"""Snapshots: the whole state of a cache between two forwards, captured and put back."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, Protocol, SupportsIndex

import torch
from pydantic import ValidationError
from torch import Tensor

from agentkv.cache.checkpoint.file import CacheFileError
from agentkv.cache.checkpoint.state import (
    CacheState,
    LayerState,
    SpansState,
    dtype_name,
    first_error,
)
from agentkv.cache.eviction.evictor import Evictor
from agentkv.cache.eviction.turns import Turns
from agentkv.cache.geometry import Attention
from agentkv.cache.layer import CacheLayer
from agentkv.cache.look_back import LookRecord
from agentkv.cache.misuse import Misuse
from agentkv.cache.numbering import Numbering
from agentkv.cache.progress import ForwardGuard
from agentkv.cache.recurrent import RecurrentLayer
from agentkv.cache.spans import Pins, SequenceSpans
from agentkv.cache.storage.shared_file import MappedEntries
from agentkv.cache.storage.table import Meter
from agentkv.cache.storage.token_ids import TokenIds
from agentkv.policies.entries import Span
from agentkv.policies.slots import Learner

NOT_PICKLED = (
    "caches and snapshots cannot be pickled: compiled code finds their memory by address. Write a "
    "cache to a file with `save` and load it with `Cache.load`; within a process take a "
    "`snapshot`, or use copy.deepcopy"
)


class Restorable(Protocol):
    """The parts of a cache that its state is read from and written to; `Cache` is one."""

    evictor: Evictor
    recurrent: dict[int, RecurrentLayer]
    meter: Meter
    cold_meter: Meter
    looks: LookRecord
    turns: Turns
    progress: ForwardGuard
    token_ids: TokenIds
    prefill: Literal["chunked", "whole"]
    chunk: int
    dtype: torch.dtype | None
    batch: int | None
    num_new: int
    confidences: list[float] | None
    pending: list[list[int]] | None
    numberings: list[Numbering]
    num_renumberings: int
    origin: object

    def reset(self) -> None:
        """Forget everything."""

    def check(self) -> None:
        """Audit the structure."""


@dataclass(frozen=True, slots=True)
class LayerEntries:
    """Entries of one layer, with its attention and device."""

    tables: dict[str, list[Tensor]]
    """By table, the entries of every field as `EntryTable.packed` returns them."""
    attention: Attention
    """Attention of the latest forward."""
    device: torch.device
    """Device of the layer."""
    shared: Mapping[str, MappedEntries] = field(default_factory=dict)
    """Further tables, whose entries are mapped and not copied."""


RecurrentStates = Mapping[int, Mapping[str, Tensor]]
"""Recurrent states by name, of each decoder layer that keeps some."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole state of a cache at one moment.

    A snapshot shares no memory with the cache and never changes, so copying one returns it.
    """

    state: CacheState
    layers: tuple[LayerEntries, ...]
    recurrent: RecurrentStates
    ids: Tensor | None
    """(B, seen) int32 on the CPU: tokens fed; None if there were none or they are unknown."""
    origin: object
    """Identifies the caches that can restore it: the one it was taken from, and its copies."""

    @property
    def seen(self) -> int:
        """Tokens fed before it was taken, in columns of the batch."""
        return self.state.seen

    @property
    def nbytes(self) -> int:
        """Bytes of its entries and recurrent states, which no cache counts."""
        groups = [fields for layer in self.layers for fields in layer.tables.values()]
        groups += [list(states.values()) for states in self.recurrent.values()]
        return sum(tensor.untyped_storage().nbytes() for group in groups for tensor in group)

    def __copy__(self) -> "Snapshot":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Snapshot":
        return self

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise Misuse(NOT_PICKLED)


def state_of(cache: Restorable) -> CacheState:
    """Return everything but the tensors. Raises CacheFileError for a `pending` that is invalid."""
    evictor = cache.evictor
    layers = [] if cache.batch is None else [_layer_state(layer) for layer in evictor.layers]
    allocator = evictor.policy.allocator
    try:
        return CacheState(
            seen=evictor.layers[0].seen,
            fed=tuple(evictor.layers[0].fed),
            num_new=cache.num_new,
            peak=cache.meter.peak,
            confidences=None if cache.confidences is None else tuple(cache.confidences),
            turns=tuple(zip(cache.turns.sums, cache.turns.counts, strict=True)),
            pending=cache.pending,
            layers=tuple(layers),
            learned=dict(allocator.state) if isinstance(allocator, Learner) else {},
            used=dict(evictor.allowance.state),
            spans=tuple(map(_spans_state, evictor.spans.sequences)),
            alarms=tuple(cache.looks.alarms),
            heard=tuple(map(tuple, cache.looks.heard)),
            num_looks=cache.looks.count,
            num_changing_looks=cache.looks.changed,
            fetched=dict(cache.looks.fetched),
            look_nbytes=cache.looks.read_nbytes,
            cold_peak=cache.cold_meter.peak,
            numberings=tuple((each.end, tuple(each.starts.tolist())) for each in cache.numberings),
            num_renumberings=cache.num_renumberings,
        )
    except ValidationError as error:
        raise CacheFileError(
            f"this cache has a state that cannot be captured: {first_error(error)}"
        ) from error


def _spans_state(spans: SequenceSpans) -> SpansState:
    labelled = tuple((each.label, each.start, each.stop) for each in spans.labelled)
    return SpansState(labelled=labelled, pinned=spans.pins.ranges)


def _spans_of(state: SpansState) -> SequenceSpans:
    return SequenceSpans(tuple(Span(*each) for each in state.labelled), Pins(state.pinned))


def _layer_state(layer: CacheLayer) -> LayerState:
    assert layer.attention is not None
    policy = layer.policy
    assert policy is None or not policy.ranks.noted, "a forward has not ended"
    return LayerState(
        dtype=dtype_name(layer.storage.layout.dtype),
        scale=layer.attention.scale,
        extents={name: tuple(table.extents) for name, table in layer.tables.items()},
        num_steps=0 if policy is None else policy.num_steps,
        qualities={} if policy is None else dict(policy.ranks.qualities),
    )


def entries_of(cache: Restorable) -> Iterator[LayerEntries]:
    """Yield a copy of each layer's entries; none before the first forward."""
    for layer in cache.evictor.layers if cache.batch is not None else []:
        yield copied_entries(layer, {})


def copied_entries(layer: CacheLayer, shared: Mapping[str, MappedEntries]) -> LayerEntries:
    """Return a layer's entries: tables of `shared` as they are there, and copies of the others."""
    assert layer.attention is not None
    tables = {
        name: [table.packed(f) for f in range(len(table.fields))]
        for name, table in layer.tables.items()
        if name not in shared
    }
    return LayerEntries(tables, layer.attention, layer.storage.device, shared)


def recurrent_of(cache: Restorable) -> RecurrentStates:
    """Return a copy of the recurrent states; none before the first forward."""
    layers = cache.recurrent if cache.batch is not None else {}
    return {i: layer.copies() for i, layer in layers.items()}


def fill(
    cache: Restorable,
    state: CacheState,
    layers: Iterable[LayerEntries],
    recurrent: RecurrentStates,
    ids: Tensor | None,
) -> None:
    """Replace the contents of `cache`.

    Args:
        ids: (B, seen) int32, as in `Snapshot`.

    Raises:
        ValueError: entries or recurrent states do not fit the state or the cache, which is now
            empty.
    """
    cache.reset()
    evictor, batch = cache.evictor, len(state.fed)
    cache.meter.peak = max(cache.meter.peak, state.peak)
    cache.cold_meter.peak = max(cache.cold_meter.peak, state.cold_peak)
    if batch:
        try:
            with cache.progress.changing():
                evictor.set_batch(batch)
                evictor.spans.set_batch(batch)
                evictor.allowance.use_state(state.used)
                for layer, own, entries in zip(evictor.layers, state.layers, layers, strict=True):
                    _fill_layer(layer, state, own, entries, evictor.geometry.num_q_heads)
                for i, states in recurrent.items():
                    cache.recurrent[i].fill(states, batch)
                evictor.use_spans(list(map(_spans_of, state.spans)))
                device = evictor.layers[0].storage.device
                cache.token_ids.append(None if ids is None else ids.to(device, copy=True))
        except BaseException:
            cache.reset()  # a partly filled cache is of no use
            raise
        cache.batch, cache.num_new = batch, state.num_new
        cache.looks = LookRecord(
            state.alarms,
            state.num_looks,
            state.num_changing_looks,
            state.fetched,
            state.look_nbytes,
            state.heard,
        )
        cache.numberings = [
            Numbering(torch.tensor(starts, dtype=torch.int64), end)
            for end, starts in state.numberings
        ]
        cache.num_renumberings = state.num_renumberings
        cache.confidences = None if state.confidences is None else list(state.confidences)
        cache.turns = Turns(*zip(*state.turns, strict=True)) if state.turns else Turns()
    else:
        evictor.use_spans(list(map(_spans_of, state.spans)))
    cache.pending = copy.deepcopy(state.pending)


def _fill_layer(
    layer: CacheLayer, state: CacheState, own: LayerState, entries: LayerEntries, num_q_heads: int
) -> None:
    dtype = getattr(torch, own.dtype)
    layer.begin(len(state.fed), num_q_heads=num_q_heads, dtype=dtype, device=entries.device)
    tables = layer.tables
    if tables.keys() != own.extents.keys():
        raise ValueError(f"found tables {', '.join(own.extents)}, expected {', '.join(tables)}")
    for name, table in tables.items():
        if name in entries.shared:
            table.use_shared(entries.shared[name])
        else:
            table.fill(own.extents[name], entries.tables[name])
    if layer.cold is not None:
        layer.cold.lend_all(layer.storage)
    layer.seen, layer.fed[:], layer.attention = state.seen, state.fed, entries.attention
    # no snapshot says when entries left
    layer.evicted_at = state.seen if layer.num_evicted else 0
    layer.padded_at = state.seen if min(state.fed) < state.seen else 0
    layer.has_gaps = not layer.storage.is_consecutive
    if layer.policy is not None:
        layer.policy.num_steps = own.num_steps
        layer.policy.ranks.qualities = dict(own.qualities)
