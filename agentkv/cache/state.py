"""All that a cache is between two forwards, taken out of it and put back."""

import copy
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Self, SupportsIndex

import torch
from torch import Tensor

from agentkv.cache.budget import Budget
from agentkv.cache.file import CacheFileError
from agentkv.cache.forward import ForwardCache
from agentkv.cache.hf import Misuse
from agentkv.cache.keeper import Keeper
from agentkv.cache.layer import LayerStore
from agentkv.cache.notes import KeeperNote, LayerNote, Learned, Notes
from agentkv.cache.stream import IdStream
from agentkv.cache.table import Table
from agentkv.cache.view import Attention
from agentkv.policies.slots import Learner

NOT_PICKLED = (
    "a cache and its snapshots cannot be pickled: compiled code finds their memory by address. "
    "Write a cache to a file with `save` and make it again with `Cache.load`; inside a process "
    "take a `snapshot`, or copy.deepcopy"
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole state of a cache at one moment.

    A snapshot shares no memory with the cache and never changes, so copying one returns it.
    """

    notes: Notes
    tables: tuple[dict[str, tuple[Tensor, ...]], ...]
    """Per layer and table, every field's rows."""
    attentions: tuple[Attention | None, ...]
    """Per layer: of the latest forward then."""
    ids: IdStream
    origin: object
    """Marks the caches that can restore it: the one it was taken from, and copies of that one."""

    @property
    def seen(self) -> int:
        """Tokens fed by then, in columns of the batch."""
        return self.notes.seen

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors, which no cache counts as its own."""
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


class StatefulCache(ForwardCache):
    """A cache that can be copied, and taken back to an earlier turn."""

    def _set_up(self, *args: Any) -> None:
        super()._set_up(*args)
        self._origin: object = object()
        """Shared with copies."""

    def __copy__(self) -> Self:
        """As `copy.deepcopy`: half a copy would share memory."""
        return copy.deepcopy(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """An independent cache that goes on exactly as this one would, for `copy.deepcopy`.

        It belongs to the same model; to the model's copy where that was copied just before, with
        what holds both. What the policy's allocator has learned is copied too, and what either
        learns from then on the other does not; caches that share a policy and are copied together
        go on to share one. To be taken between forwards.

        Raises:
            Misuse: a ValueError; a forward is going on, or did not end.
        """
        self._progress.require_rest()
        twin = memo[id(self)] = object.__new__(type(self))
        model, modules = self._model, self._modules
        base = model()
        if base is not None and id(base) in memo:
            model = weakref.ref(memo[id(base)])
            modules = {id(memo[module]) for module in modules if module in memo}
        policy = self.policy
        if policy.allocator.learns:
            policy = replace(policy, allocator=copy.deepcopy(policy.allocator, memo))
        twin._set_up(self.geometry, model, modules, policy, self._budget, self.prefill, self.chunk)
        twin._origin = self._origin
        twin.put(
            self.notes(),
            lambda layer, name: _packed(tables_of(self.stores[layer])[name]),
            attentions=[store.attention for store in self.stores],
            devices=self._devices(),
            ids=self._ids.copy(),
        )
        twin._has_gate, twin._unsettled = self._has_gate, self._unsettled
        for name, value in vars(self).items():
            if name not in vars(twin):  # what its owner has hung on it
                vars(twin)[name] = copy.deepcopy(value, memo)
        return twin

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise Misuse(NOT_PICKLED)

    def _devices(self) -> list[torch.device]:
        """The device of each layer."""
        lanes = [store.lanes for store in self.stores]
        return [torch.device("cpu") if each is None else each.device for each in lanes]

    @property
    def budget(self) -> Budget:
        """As it was asked for."""
        return self._budget

    def reset(self) -> None:
        """Forget everything."""
        raise NotImplementedError

    def check(self) -> None:
        """Audit the whole structure. Raises AssertionError saying what is broken."""
        raise NotImplementedError

    @property
    def ids(self) -> Tensor | None:
        """(B, seen) int32 on the CPU: the tokens fed so far, padding included. None before the
        first, and for good once embeddings were fed."""
        return self._ids.all()

    def snapshot(self) -> Snapshot:
        """What the cache is now, to go back to with `restore`: an independent copy, on the devices
        of the layers. Its bytes are its own `nbytes` and not the cache's.

        To be taken between forwards, at a turn's end for example.

        Raises:
            Misuse: a ValueError; a forward is going on in another thread, or did not end.
        """
        self._progress.require_rest()
        return Snapshot(
            notes=self.notes(),
            tables=tuple(
                {name: _packed(table) for name, table in tables_of(store).items()}
                for store in self.stores
            ),
            attentions=tuple(store.attention for store in self.stores),
            ids=self._ids.copy(),
            origin=self._origin,
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Become what the cache was when `snapshot` was taken, and go on exactly so; a snapshot can
        be restored any number of times, in copies of the cache too.

        What the policy's allocator has learned since is forgotten too, by all caches that share
        the policy value, as it would be learned twice otherwise. The peak stays.

        Raises:
            Misuse: a ValueError; it is a snapshot of another cache.
        """
        if not isinstance(snapshot, Snapshot) or snapshot.origin is not self._origin:
            raise Misuse(
                "this is no snapshot of this cache; restore it in the cache it was taken of, or "
                "carry a cache over with `save` and `Cache.load`"
            )

        def packed(layer: int, name: str) -> Sequence[Tensor]:
            return snapshot.tables[layer][name]

        devices = [
            next(iter(fields.values()))[0].device if fields else torch.device("cpu")
            for fields in snapshot.tables
        ]
        self.put(
            snapshot.notes,
            packed,
            attentions=snapshot.attentions,
            devices=devices,
            ids=snapshot.ids.copy(),
        )
        allocator, learned = self.policy.allocator, snapshot.notes.learned
        if learned is not None:
            assert isinstance(allocator, Learner)
            allocator.remember(learned.remembered)

    def notes(self) -> Notes:
        """Everything but the tensors. Raises CacheFileError for what cannot be written down."""
        layers = []
        for store in self.stores if self._batch is not None else []:
            assert store.lanes is not None and store.attention is not None
            layers.append(
                LayerNote(
                    dtype=str(store.lanes.shape.dtype).removeprefix("torch."),  # type: ignore[arg-type]
                    scale=store.attention.scale,
                    tables={name: tuple(t.layout) for name, t in tables_of(store).items()},
                    keeper=None if store.keeper is None else _keeper_note(store.keeper),
                )
            )
        return Notes(
            batch=self._batch,
            shared_by=self.allowance.batch,
            seen=self.seen,
            fed=tuple(self.stores[0].fed),
            num_new=self._num_new,
            peak=self._meter.peak,
            has_ids=self._ids.is_whole,
            confidences=None if self.confidences is None else tuple(self.confidences),
            pending=_tuples(self.pending),
            layers=tuple(layers),
            learned=self._learned(),
        )

    def _learned(self) -> Learned | None:
        allocator = self.policy.allocator
        if not isinstance(allocator, Learner):
            return None
        known, used = dict(allocator.remembered), dict(self.allowance.memory)
        return Learned(remembered=known, gone_by=used)

    def put(
        self,
        notes: Notes,
        packed: Callable[[int, str], Sequence[Tensor]],
        *,
        attentions: Sequence[Attention | None],
        devices: Sequence[torch.device],
        ids: IdStream,
    ) -> None:
        """Become what `notes` and tensors say; they must go together.

        Args:
            packed: layer and name of a table to the rows of each of its fields.
            devices: of each layer.
            ids: the tokens fed, which become the cache's own.
        """
        self.reset()
        self._meter.peak = max(self._meter.peak, notes.peak)
        if notes.batch is None:
            self._ids = ids
            self.pending = _lists(notes.pending)
            return
        try:
            with self._progress.changing():
                self._share_bytes(notes.shared_by)
                if notes.learned is not None:
                    self.allowance.go_by(notes.learned.gone_by)
                for i, (store, note) in enumerate(zip(self.stores, notes.layers, strict=True)):
                    self._begin(store, note, notes.batch, devices[i])
                    for name, table in tables_of(store).items():
                        table.fill_again(note.tables[name], packed(i, name))
                    store.seen, store.fed[:] = notes.seen, notes.fed
                    store.attention = attentions[i]
        except BaseException:
            self.reset()  # half a cache would be none
            raise
        self._batch, self._num_new, self._ids = notes.batch, notes.num_new, ids
        self.confidences = None if notes.confidences is None else list(notes.confidences)
        self.pending = _lists(notes.pending)

    def _begin(self, store: LayerStore, note: LayerNote, batch: int, device: torch.device) -> None:
        store.begin(
            batch,
            num_q_heads=self.geometry.num_q_heads,
            dtype=getattr(torch, note.dtype),
            device=device,
        )
        keeper, said = store.keeper, note.keeper
        if keeper is None:
            return
        assert said is not None
        keeper.num_steps = said.num_steps
        known = enumerate(said.qualities)
        keeper.ranks.qualities = {i: quality for i, quality in known if quality is not None}


def tables_of(store: LayerStore) -> dict[str, Table]:
    """All tables of a layer, by name."""
    if store.lanes is None:
        return {}
    names = ("about", "whole", "codes", "scales")
    named = dict(zip(names, store.lanes.tables, strict=False))
    if store.ring is not None:
        named["queries"] = store.ring.table
    return named


def _packed(table: Table) -> tuple[Tensor, ...]:
    """A copy of every field's rows."""
    return tuple(table.packed(f) for f in range(len(table.fields)))


def _keeper_note(keeper: Keeper) -> KeeperNote:
    assert not keeper.ranks.noted, "a forward has not ended"
    return KeeperNote(
        num_steps=keeper.num_steps,
        qualities=tuple(keeper.ranks.qualities.get(i) for i in range(len(keeper.fed))),
    )


def _tuples(pending: Sequence[Sequence[int]] | None) -> tuple[tuple[int, ...], ...] | None:
    if pending is None:
        return None
    is_right = isinstance(pending, list | tuple) and all(
        isinstance(ids, list | tuple) and all(type(token) is int for token in ids)
        for ids in pending
    )
    if not is_right:
        raise CacheFileError(
            "pending must be a list with a list of token ids, whole numbers, for every sequence; "
            f"found {pending!r}"
        )
    return tuple(tuple(ids) for ids in pending)


def _lists(pending: Sequence[Sequence[int]] | None) -> list[list[int]] | None:
    return None if pending is None else [list(ids) for ids in pending]
