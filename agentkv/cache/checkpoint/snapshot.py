"""Snapshots: the whole state of a cache between two forwards, captured and put back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, SupportsIndex

import torch
from torch import Tensor

from agentkv.cache.checkpoint.file import CacheFileError
from agentkv.cache.checkpoint.schema import CacheState, LayerState, LearnedState, PolicyState
from agentkv.cache.eviction.evictor import Evictor
from agentkv.cache.eviction.layer_policy import LayerPolicy
from agentkv.cache.geometry import Attention
from agentkv.cache.hf.compat import Misuse
from agentkv.cache.layer import CacheLayer
from agentkv.cache.progress import Progress
from agentkv.cache.storage.table import Meter, Table
from agentkv.cache.storage.token_ids import TokenIds
from agentkv.policies.slots import Learner

NOT_PICKLED = (
    "caches and snapshots cannot be pickled: compiled code finds their memory by address. Write a "
    "cache to a file with `save` and load it with `Cache.load`; within a process take a "
    "`snapshot`, or use copy.deepcopy"
)


class Restorable(Protocol):
    """The parts of a cache that make up its state; `Cache` is one."""

    evictor: Evictor
    meter: Meter
    progress: Progress
    token_ids: TokenIds
    batch: int | None
    num_new: int
    confidences: list[float] | None
    pending: list[list[int]] | None
    origin: object

    def reset(self) -> None:
        """Forget everything."""
        ...

    def check(self) -> None:
        """Audit the structure."""
        ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole state of a cache at one moment.

    A snapshot shares no memory with the cache and never changes, so copying one returns it.
    """

    state: CacheState
    tables: tuple[dict[str, tuple[Tensor, ...]], ...]
    """Entries of every field, per layer and table, as `Table.packed` returns them."""
    attentions: tuple[Attention | None, ...]
    """Attention of the latest forward, per layer."""
    token_ids: TokenIds
    origin: object
    """Identifies the caches that can restore it: the one it was taken of, and its copies."""

    @property
    def seen(self) -> int:
        """Tokens fed by then, in columns of the batch."""
        return self.state.seen

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors, which no cache counts."""
        return sum(
            tensor.untyped_storage().nbytes()
            for of_layer in self.tables
            for fields in of_layer.values()
            for tensor in fields
        )

    def __copy__(self) -> "Snapshot":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Snapshot":
        return self

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise Misuse(NOT_PICKLED)


def capture(cache: Restorable) -> Snapshot:
    """Return a snapshot of a cache that is between two forwards."""
    return Snapshot(
        state=state_of(cache),
        tables=tuple(
            {name: packed(table) for name, table in tables_of(layer).items()}
            for layer in cache.evictor.layers
        ),
        attentions=tuple(layer.attention for layer in cache.evictor.layers),
        token_ids=cache.token_ids.copy(),
        origin=cache.origin,
    )


def put(cache: Restorable, snapshot: Snapshot) -> None:
    """Make `cache` what the snapshot's cache was, and its allocator's energies what they were."""
    devices = [
        next(iter(fields.values()))[0].device if fields else torch.device("cpu")
        for fields in snapshot.tables
    ]
    fill(
        cache,
        snapshot.state,
        lambda layer, name: snapshot.tables[layer][name],
        attentions=snapshot.attentions,
        devices=devices,
        token_ids=snapshot.token_ids.copy(),
    )
    learned = snapshot.state.learned
    if learned is not None:
        allocator = cache.evictor.policy.allocator
        assert isinstance(allocator, Learner)
        allocator.load_state(learned.latest)


def copy_into(twin: Restorable, cache: Restorable) -> None:
    """Make an empty cache of the same model and policy a copy of `cache`, table by table."""
    layers = cache.evictor.layers
    fill(
        twin,
        state_of(cache),
        lambda layer, name: packed(tables_of(layers[layer])[name]),
        attentions=[layer.attention for layer in layers],
        devices=[
            layer.storage.device if layer.is_filled else torch.device("cpu") for layer in layers
        ],
        token_ids=cache.token_ids.copy(),
    )


def fill(
    cache: Restorable,
    state: CacheState,
    read: Callable[[int, str], Sequence[Tensor]],
    *,
    attentions: Sequence[Attention | None],
    devices: Sequence[torch.device],
    token_ids: TokenIds,
) -> None:
    """Make `cache` what `state` and tensors describe; they must fit together.

    Args:
        read: layer and table to the entries of each field.
        attentions, devices: per layer.
        token_ids: ids fed, which become the cache's own.
    """
    cache.reset()
    evictor = cache.evictor
    cache.meter.peak = max(cache.meter.peak, state.peak)
    if state.batch is None:
        cache.token_ids = token_ids
        cache.pending = _lists(state.pending)
        return
    try:
        with cache.progress.changing():
            evictor.set_batch(state.sharing)
            if state.learned is not None:
                evictor.allowance.use_state(state.learned.used)
            for i, (layer, own) in enumerate(zip(evictor.layers, state.layers, strict=True)):
                _begin(layer, own, state.batch, evictor.geometry.num_q_heads, devices[i])
                for name, table in tables_of(layer).items():
                    table.fill(own.extents[name], read(i, name))
                layer.seen, layer.fed[:] = state.seen, state.fed
                layer.attention = attentions[i]
    except BaseException:
        cache.reset()  # a part of a cache is of no use
        raise
    cache.batch, cache.num_new, cache.token_ids = state.batch, state.num_new, token_ids
    cache.confidences = None if state.confidences is None else list(state.confidences)
    cache.pending = _lists(state.pending)


def _begin(
    layer: CacheLayer, state: LayerState, batch: int, num_q_heads: int, device: torch.device
) -> None:
    dtype = getattr(torch, state.dtype)
    layer.begin(batch, num_q_heads=num_q_heads, dtype=dtype, device=device)
    if layer.policy is not None:
        assert state.policy is not None
        layer.policy.num_steps = state.policy.num_steps
        known = enumerate(state.policy.qualities)
        layer.policy.ranks.qualities = {i: each for i, each in known if each is not None}


def state_of(cache: Restorable) -> CacheState:
    """Return everything but the tensors. Raises CacheFileError for a `pending` that is invalid."""
    evictor = cache.evictor
    layers = []
    for layer in evictor.layers if cache.batch is not None else []:
        assert layer.attention is not None
        layers.append(
            LayerState(
                dtype=str(layer.storage.layout.dtype).removeprefix("torch."),  # type: ignore[arg-type]
                scale=layer.attention.scale,
                extents={name: tuple(table.extents) for name, table in tables_of(layer).items()},
                policy=None if layer.policy is None else _policy_state(layer.policy),
            )
        )
    return CacheState(
        batch=cache.batch,
        sharing=evictor.allowance.batch,
        seen=evictor.layers[0].seen,
        fed=tuple(evictor.layers[0].fed),
        num_new=cache.num_new,
        peak=cache.meter.peak,
        has_ids=cache.token_ids.is_complete,
        confidences=None if cache.confidences is None else tuple(cache.confidences),
        pending=_tuples(cache.pending),
        layers=tuple(layers),
        learned=_learned(evictor),
    )


def _policy_state(policy: LayerPolicy) -> PolicyState:
    assert not policy.ranks.noted, "a forward has not ended"
    return PolicyState(
        num_steps=policy.num_steps,
        qualities=tuple(policy.ranks.qualities.get(i) for i in range(len(policy.fed))),
    )


def _learned(evictor: Evictor) -> LearnedState | None:
    allocator = evictor.policy.allocator
    if not isinstance(allocator, Learner):
        return None
    return LearnedState(latest=dict(allocator.state), used=dict(evictor.allowance.state))


def tables_of(layer: CacheLayer) -> dict[str, Table]:
    """Return all tables of a layer by name; none before the first forward."""
    return layer.storage.tables if layer.is_filled else {}


def packed(table: Table) -> tuple[Tensor, ...]:
    """Return a copy of every field's entries."""
    return tuple(table.packed(f) for f in range(len(table.fields)))


def _tuples(pending: Sequence[Sequence[int]] | None) -> tuple[tuple[int, ...], ...] | None:
    if pending is None:
        return None
    is_valid = isinstance(pending, list | tuple) and all(
        isinstance(ids, list | tuple) and all(type(token) is int for token in ids)
        for ids in pending
    )
    if not is_valid:
        raise CacheFileError(
            f"pending must be a list of token ids for every sequence; found {pending!r}"
        )
    return tuple(tuple(ids) for ids in pending)


def _lists(pending: Sequence[Sequence[int]] | None) -> list[list[int]] | None:
    return None if pending is None else [list(ids) for ids in pending]
