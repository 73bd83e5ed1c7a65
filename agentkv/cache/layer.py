"""One layer of the cache: appends new tokens and attends over everything it stores.

Shapes: B sequences, H key-value heads, G query heads per key-value head, Q new tokens, D head size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from agentkv.cache.eviction.layer_policy import LayerPolicy
from agentkv.cache.eviction.view import LayerUnit
from agentkv.cache.geometry import Attention, LayerShape
from agentkv.cache.hf.projection import output_projection
from agentkv.cache.storage.backend import (
    Backend,
    LastWeights,
    MassObserver,
    hand_out_mass,
)
from agentkv.cache.storage.choose import backend_for, layout_for
from agentkv.cache.storage.cold_memory import IN_MEMORY, ColdMemory
from agentkv.cache.storage.cold_tier import ColdTier
from agentkv.cache.storage.layer_storage import LayerStorage
from agentkv.cache.storage.table import EntryTable, Meter, Which
from agentkv.cache.storage.turn_keys import Steps, turn_entries
from agentkv.policies.entries import AttentionUpdate
from agentkv.policies.recall import LookBack
from agentkv.policies.slots import Tracker
from agentkv_kernels.entries import DensePart
from agentkv_kernels.layout import Addressed


class Looking(Protocol):
    """Attends for new tokens that look back."""

    def attend(self, layer: "CacheLayer", query: Tensor, attention: Attention) -> Tensor:
        """Attend with the newest token of each sequence, which the layer stores; as `query`."""
        ...


class CacheLayer(Addressed):
    """The entries of every sequence in one layer.

    Args:
        policy: the policy's state for this layer; None for a layer that only its window bounds.
        meter: counts the bytes.
        cold_meter, index_meter: count the bytes of the cold tier and of its index, if the policy
            looks back.
        cold_memory: where that is.
        looks_back: whether the newest token may be computed again; the layer then keeps what its
            window shows that token until the next one comes.
        dtype: of dense entries; None: the model's.
        is_shared: whether later layers attend to its entries, which then leave when the forward
            ends.
    """

    def __init__(
        self,
        shape: LayerShape,
        *,
        policy: LayerPolicy | None,
        meter: Meter,
        cold_meter: Meter | None = None,
        index_meter: Meter | None = None,
        cold_memory: ColdMemory = IN_MEMORY,
        looks_back: bool = False,
        dtype: torch.dtype | None = None,
        is_shared: bool = False,
    ) -> None:
        self.shape, self.policy, self.meter, self.dtype = shape, policy, meter, dtype
        self.is_shared = is_shared
        self.cold_meter, self.cold_memory = cold_meter or Meter(), cold_memory
        self.index_meter = index_meter or Meter()
        self.looks_back = looks_back
        self.cold: ColdTier | None = None
        """Evicted entries that may be fetched again; None unless the policy looks back."""
        self._storage: LayerStorage | None = None
        self._backend: Backend | None = None
        self.seen = 0
        """Columns of the token stream that were fed, padding included."""
        self.fed: list[int] = []
        """Tokens that each sequence was fed. The next one has this position: padding has none, so a
        sequence is the same alone and in a batch."""
        self.attention: Attention | None = None
        """Attention of the latest forward."""
        self.evicted_at = self.padded_at = 0
        """Columns seen when the policy last evicted, and after the latest forward with padding."""
        self.has_gaps = False
        """True if tokens may be missing between the first one stored and the last, apart from
        those that the policy has evicted."""
        self.num_spared = 0
        """Newest tokens that may be forgotten: what the model's window showed them stays, and so do
        the queries that theirs have replaced."""

    @property
    def is_filled(self) -> bool:
        """True once storage has begun."""
        return self._storage is not None

    @property
    def storage(self) -> LayerStorage:
        """Storage of a layer that has begun."""
        assert self._storage is not None, "the layer was fed nothing yet"
        return self._storage

    @property
    def backend(self) -> Backend:
        """Backend of a layer that has begun."""
        assert self._backend is not None, "the layer was fed nothing yet"
        return self._backend

    def use_backend(self, backend: Backend) -> None:
        """Replace the backend of a layer that has begun, to time or check its operations."""
        assert self._storage is not None, "the layer was fed nothing yet"
        self._backend = backend

    @property
    def nbytes(self) -> int:
        """Bytes of all storage, unused capacity included and the cold tier excluded."""
        return 0 if self._storage is None else self._storage.nbytes

    @property
    def tables(self) -> dict[str, EntryTable]:
        """All tables by name, those of the cold tier included."""
        tables = dict(self.storage.tables)
        if self.cold is not None:
            tables |= self.cold.tables
        return tables

    def count_growth(self) -> None:
        """Count the bytes that compiled code has appended to tables which forks share."""
        for table in self.tables.values() if self.is_filled else ():
            table.count_growth()

    def begin(
        self, batch: int, *, num_q_heads: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Create empty storage for `batch` sequences and choose its backend."""
        policy = None if self.policy is None else self.policy.policy
        layout = layout_for(self.shape, policy, dtype=dtype, num_q_heads=num_q_heads)
        self._backend = backend_for(layout, num_q_heads, device)
        self._storage = LayerStorage(layout, batch=batch, device=device, meter=self.meter)
        if policy is not None and isinstance(policy.recall, LookBack):
            self.cold = ColdTier(
                self._storage,
                policy.recall,
                num_q_heads=num_q_heads,
                meter=self.cold_meter,
                index_meter=self.index_meter,
                memory=self.cold_memory,
            )
        self.fed = [0] * batch
        if self.policy is not None:
            self.policy.begin(self.fed)

    @property
    def tracker(self) -> Tracker | None:
        """The statistic that each entry carries; None for none."""
        return None if self.policy is None else self.policy.policy.scorer.tracker

    def attention_of(self, module: nn.Module, scale: float, sinks: Tensor | None) -> Attention:
        """Return what the layer's attention module brings to a forward."""
        projection = None
        if self.policy is not None and self.policy.policy.selector.norms is not None:
            projection = output_projection(module, self.shape.projection, self.shape.head_dim)
        known = self.attention
        if known is not None and known.scale == scale and known.sinks is sinks:
            if known.projection is projection:
                return known
        return Attention(scale, sinks, projection)

    def sinks_of(self, segment: int, attention: Attention) -> Tensor | None:
        """Return the sink logits of a segment's query heads; None for none."""
        if attention.sinks is None:
            return None
        per = self.storage.layout.segments_per_sequence
        return attention.sinks.view(per, -1)[segment % per]

    def unit(self, sequence: int) -> LayerUnit:
        """Return one sequence, to be shown to the policy."""
        assert self.attention is not None
        return LayerUnit(self.storage, sequence, self.attention, self.shape)

    def attend(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        is_token: Tensor | None,
        attention: Attention,
        *,
        look: "Looking | None" = None,
        reads_cold: bool = False,
    ) -> Tensor:
        """Append new tokens and attend over all entries.

        Only entries that no later token can see are dropped.

        Args:
            q: (B, H * G, Q, D), rotated.
            keys, values: (B, H, Q, D).
            is_token: (B, Q) bool on the CPU, False for padding, which is not stored and yields
                zeros; None: no padding.
            look: of one new token per sequence, which looks back.
            reads_cold: several new tokens attend to cold entries too.

        Returns:
            (B, Q, H * G, D).
        """
        if not self.is_filled:
            dtype = self.dtype or keys.dtype
            self.begin(q.shape[0], num_q_heads=q.shape[1], dtype=dtype, device=keys.device)
        if self.looks_back:
            self._drop_hidden()
        self.attention = attention
        num_new, columns = q.shape[2], None
        if is_token is not None and not is_token.all():
            columns = [row.nonzero().squeeze(1).to(q.device) for row in is_token]
        if look is not None:
            norms = self.norms_of(values, attention)
            self.backend.append(self.storage, keys, values, norms, first=self.fed)
            output = look.attend(self, q, attention)
            self.storage.note_queries(q, first=self.fed, columns=None, spared=self.num_spared)
        elif num_new == 1 and columns is None:
            output = self._append_attend(q, keys, values, attention)
        else:
            others = self._others(num_new) if reads_cold else None
            output = self._append_then_attend(q, keys, values, columns, attention, others)
        self._advance(num_new, columns)
        return output.transpose(1, 2)

    def attend_again(
        self,
        q: Tensor,
        is_token: Tensor | None,
        *,
        num_new: int,
        scale: float,
        sinks: Tensor | None,
        reads_cold: bool = False,
    ) -> Tensor:
        """Attend as a later layer that shares the entries, with the last of the new tokens.

        No statistic counts its attention.

        Args:
            q: (B, H * G, q, D), rotated.
            is_token: (B, q) bool on the CPU, as in `attend`.
            num_new: columns of the forward.
            reads_cold: as in `attend`.

        Returns:
            (B, q, H * G, D).
        """
        num_q, columns = q.shape[2], None
        first = [num_seen - num_q for num_seen in self.fed]
        if is_token is not None and not is_token.all():
            columns = [row.nonzero().squeeze(1).to(q.device) for row in is_token]
            first = [n - own.shape[0] for n, own in zip(self.fed, columns, strict=True)]
        output = self.backend.attend(
            self.storage,
            q,
            first=first,
            columns=columns,
            scale=scale,
            sinks=sinks,
            # whatever the window hides from a single new token is dropped already
            window=None if num_new == 1 else self.shape.window,
            observer=None,
            others=self._others(num_new) if reads_cold else None,
        )
        return output.transpose(1, 2)

    def finish(self) -> None:
        """Drop what no later token can see, once every layer that reads the entries has attended.

        It stays if it may be read again.
        """
        self._drop_hidden(spared=max(int(self.looks_back), self.num_spared))

    def _advance(self, num_new: int, columns: Sequence[Tensor] | None) -> None:
        """Count new tokens, and drop what is not seen again unless later layers attend to it."""
        self.seen += num_new
        for i in range(len(self.fed)):
            self.fed[i] += num_new if columns is None else columns[i].shape[0]
        if columns is not None:
            self.padded_at = self.seen
        if not self.is_shared:
            self.finish()
        if self.policy is not None:
            self.policy.num_steps += num_new == 1

    def _drop_hidden(self, *, spared: int = 0) -> None:
        """Drop entries that no later token can see, except for the youngest `spared` positions."""
        if self.shape.window is None:
            return
        storage, num_shown = self.storage, self.shape.window - 1 + spared
        if self.policy is None and not self.has_gaps:
            # the host knows how many go: a device would be waited for in every step
            runs = [(0, max(0, count - num_shown)) for count in storage.counts]
            self.backend.drop_runs(storage, runs)
            return
        per = storage.layout.segments_per_sequence
        hidden = [(0, max(0, seen - num_shown)) for seen in self.fed for _ in range(per)]
        self.backend.drop_span(storage, hidden)

    def norms_of(self, values: Tensor, attention: Attention) -> Tensor | None:
        """Return the norms (B, H, Q, n) of values (B, H, Q, D); None if the layer stores none."""
        num_norms = self.storage.layout.num_norms
        return attention.value_norms(values, num_norms) if num_norms else None

    def _append_attend(
        self, q: Tensor, keys: Tensor, values: Tensor, attention: Attention
    ) -> Tensor:
        """Take one token per sequence."""
        tracker = self.tracker
        ema = None if tracker is None else tracker.ema
        output = self.backend.append_attend(
            self.storage,
            q,
            keys,
            values,
            first=self.fed,
            scale=attention.scale,
            sinks=attention.sinks,
            ema=ema,
            observer=None if tracker is None or ema is not None else self._observer(tracker),
        )
        if self.storage.layout.num_norms:
            self._write_norms(values, attention)
        return output

    def _write_norms(self, values: Tensor, attention: Attention) -> None:
        segments, norms = range(self.storage.num_segments), self.norms_of(values, attention)
        self.backend.write_newest(self.storage, segments, norms=norms)

    @property
    def can_step(self) -> bool:
        """Return whether a compiled step can serve the layer."""
        return self._backend is not None and self._backend.is_compiled

    def can_read(self, num_q_heads: int, dtype: torch.dtype) -> bool:
        """Return whether compiled steps can read several tokens of the layer's one sequence, on the
        CPU: its entries are dense, only keys and values are stored, and each token sees all up to
        its own.

        Args:
            num_q_heads: query heads of a sequence.
            dtype: of the model, for a layer that was fed nothing yet.
        """
        if self.shape.window is not None or self.is_shared:
            return False
        policy = None if self.policy is None else self.policy.policy
        if policy is not None and isinstance(policy.recall, LookBack):
            return False
        if self.is_filled:
            layout, backend = self.storage.layout, self.backend
            is_alone = self.storage.batch == 1
        else:
            own = self.dtype or dtype
            layout = layout_for(self.shape, policy, dtype=own, num_q_heads=num_q_heads)
            backend, is_alone = backend_for(layout, num_q_heads, torch.device("cpu")), True
        keeps_more = layout.num_norms or layout.query_window or layout.by_phase
        is_plain = layout.format is None and self.tracker is None and not keeps_more
        return is_alone and is_plain and backend.is_compiled

    def finish_read(self, num_new: int) -> None:
        """End a compiled step that has appended several tokens of the layer's one sequence."""
        self._advance(num_new, None)

    def begin_step(self, attention: Attention) -> None:
        """Prepare for a compiled step, which `finish_step` ends, or `finish_read`."""
        if self.looks_back:
            self._drop_hidden()
        self.attention = attention
        self.storage.descriptor.set_positions(self.fed)

    def finish_step(self, values: Tensor, mass: Tensor | None) -> None:
        """End a compiled step, which has appended an entry to every segment and attended.

        Args:
            values: (B, H, 1, D), the new ones.
            mass: (R,) in the layout of the metadata, if the layer's tracker has no EMA.
        """
        storage, tracker = self.storage, self.tracker
        if mass is not None and tracker is not None:
            hand_out_mass(storage, mass, self._observer(tracker))
        if storage.layout.num_norms:
            assert self.attention is not None
            self._write_norms(values, self.attention)
        self._advance(1, None)

    def _append_then_attend(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        columns: Sequence[Tensor] | None,
        attention: Attention,
        others: Callable[[int], Sequence[DensePart]] | None,
    ) -> Tensor:
        """Take any number of tokens, some of which may be padding."""
        storage, norms = self.storage, self.norms_of(values, attention)
        self.backend.append(storage, keys, values, norms, first=self.fed, columns=columns)
        tracker = self.tracker
        output = self.backend.attend(
            storage,
            q,
            first=self.fed,
            columns=columns,
            scale=attention.scale,
            sinks=attention.sinks,
            window=self.shape.window,
            observer=None if tracker is None else self._observer(tracker),
            others=others,
        )
        storage.note_queries(q, first=self.fed, columns=columns, spared=self.num_spared)
        return output

    def _others(self, num_new: int) -> Callable[[int], Sequence[DensePart]] | None:
        """Return what gives the cold entries of a segment to new tokens that read them; None if
        there is one token, or no cold tier."""
        return self._cold_parts if num_new > 1 and self.cold is not None else None

    def _cold_parts(self, segment: int) -> list[DensePart]:
        """Return copies of the cold entries of a segment, where the layer is."""
        assert self.cold is not None
        storage = self.storage
        parts = self.cold.unlent(segment, storage.layout.dtype)
        return [part.to(storage.device) for part in parts]

    def _observer(self, tracker: Tracker) -> MassObserver:
        return _TrackerUpdate(tracker, self.storage, self.fed)

    def num_missing(self, sequence: int, start: int, stop: int | None) -> int:
        """Return how many tokens of positions start..stop - 1 have left a segment of a sequence,
        at most; tokens that the layer's window hides do not count.

        Args:
            stop: None for the newest token.
        """
        num_seen, window = self.fed[sequence], self.shape.window
        stop = num_seen if stop is None else min(stop, num_seen)
        if window is not None:
            start = max(start, num_seen - window + 1)
        storage, missing = self.storage, 0
        for segment in storage.segments(sequence):
            positions = storage.positions(segment)
            held = int(((positions >= start) & (positions < stop)).sum())
            missing = max(missing, stop - start - held)
        return missing

    def num_held(self, sequence: int) -> int:
        """Return the number of entries of a sequence in its fullest segment."""
        segments = self.storage.segments(sequence)
        return max(self.storage.counts[segments.start : segments.stop])

    def num_holders(self, sequence: int) -> Tensor:
        """Return how many KV heads store each token of a sequence: (tokens,) int64, on the CPU."""
        storage = self.storage
        positions = [storage.positions(segment) for segment in storage.segments(sequence)]
        counts = torch.bincount(torch.cat(positions), minlength=self.fed[sequence]).cpu()
        return counts * storage.layout.num_heads

    @property
    def num_evicted(self) -> int:
        """Number of entries that have left, of all sequences."""
        if self._storage is None:
            return 0
        storage = self._storage
        num_appended = sum(self.fed) * storage.layout.segments_per_sequence
        return num_appended - sum(map(storage.num_entries, range(storage.batch)))

    def mark_held(self, sequence: int, held: Tensor) -> None:
        """Set `held` (tokens seen,) bool where any segment holds an entry, hot or cold."""
        tiers = [self.storage] if self.cold is None else [self.storage, self.cold.storage]
        for storage in tiers:
            for segment in storage.segments(sequence):
                held[storage.positions(segment).to(held.device, torch.int64)] = True

    def turn(self, sequence: int, steps: Steps) -> None:
        """Turn what is stored of a sequence to other rotary positions; see `turn_entries`."""
        turn_entries(self.storage, sequence, steps, self.shape)
        if self.cold is not None:
            self.cold.turn(sequence, steps, self.shape)

    def drop_span(self, sequence: int, start: int, stop: int) -> None:
        """Drop the entries of positions start..stop - 1 of a sequence."""
        if self.is_filled:
            self.has_gaps = True
            ranges = [(0, 0)] * self.storage.num_segments
            for segment in self.storage.segments(sequence):
                ranges[segment] = (start, stop)
            self.backend.drop_span(self.storage, ranges)
            if self.cold is not None:
                self.cold.drop_span(ranges)

    def confirm(self) -> None:
        """Drop what was spared: the newest tokens stay."""
        if self.num_spared:
            self.num_spared = 0
            if self.is_filled:
                self._drop_hidden(spared=int(self.looks_back))
                self.storage.trim_queries()

    def forget(self, count: int) -> None:
        """Drop the newest `count` tokens of every sequence, none of which is padding.

        Statistics of other entries keep what the queries of these tokens have added.
        """
        if not self.is_filled:
            return
        per = self.storage.layout.segments_per_sequence
        newest = [(num_seen - count, num_seen) for num_seen in self.fed for _ in range(per)]
        self.backend.drop_span(self.storage, newest)
        if self.cold is not None:
            self.cold.drop_span(newest)
        self.seen -= count
        for i in range(len(self.fed)):
            self.fed[i] -= count
        if self.policy is not None:  # nobody noted which of the tokens came singly
            self.policy.num_steps = min(self.policy.num_steps, self.seen)
        self.storage.forget_queries(self.fed)

    def reorder(self, index: Sequence[int]) -> None:
        """Make sequence i a copy of what sequence index[i] was."""
        before = self.storage
        self._storage = before.take(index)
        before.release()
        if self.cold is not None:
            self.cold.reorder(index)
        self.fed = [self.fed[i] for i in index]
        if self.policy is not None:
            self.policy.reorder(index, self.fed)

    def reset(self) -> None:
        """Forget everything and return the memory."""
        if self._storage is not None:
            self._storage.release()
        if self.cold is not None:
            self.cold.release()
        self._storage, self._backend, self.attention, self.cold = None, None, None, None
        self.seen, self.fed = 0, []
        self.evicted_at = self.padded_at = self.num_spared = 0
        self.has_gaps = False
        if self.policy is not None:
            self.policy.begin(self.fed)

    def kept(self) -> list[list[Tensor]]:
        """Return the positions still stored, per sequence and KV head: int64, ascending."""
        storage = self._storage
        if storage is None:
            return []
        positions = [
            storage.positions(segment).long().sort().values
            for segment in range(storage.num_segments)
        ]
        return [
            [
                positions[segment]
                for segment in storage.segments(sequence)
                for _ in range(storage.layout.num_heads)
            ]
            for sequence in range(storage.batch)
        ]

    def check(self) -> None:
        """Audit the structure. Raises AssertionError naming what is broken."""
        storage, window = self._storage, self.shape.window
        if storage is None:
            assert not self.seen, "tokens were seen, but there is no storage"
            return
        storage.check()
        if self.cold is not None:
            self.cold.check(storage)
        if self.policy is not None:
            self.policy.check(storage)
            if storage.queries is not None:
                storage.queries.check(self.fed, is_whole=storage.queries_of_chunks is None)
        for num_seen, heads in zip(self.fed, self.kept(), strict=True):
            assert num_seen <= self.seen, "more tokens than columns"
            for positions in (positions for positions in heads if positions.shape[0]):
                assert int(positions[-1]) < num_seen, "an entry from the future"
                reach = num_seen - int(positions[0]) - max(self.looks_back, self.num_spared)
                assert window is None or reach < window, "an entry that no token can see"


@dataclass(frozen=True, slots=True)
class _TrackerUpdate:
    """Updates the statistic of a tracker by the mass of new tokens."""

    tracker: Tracker
    storage: LayerStorage
    fed: Sequence[int]

    def num_queries(self, num_new: int) -> int:
        return self.tracker.num_queries(num_new)

    def observe(self, which: Which, mass: Tensor, num_new: int, last_weights: LastWeights) -> None:
        per = self.storage.layout.segments_per_sequence
        segments = [which] if isinstance(which, int) else range(self.storage.num_segments)
        seen = AttentionUpdate(
            mass=mass,
            num_queries=self.tracker.num_queries(num_new),
            first=[self.fed[segment // per] for segment in segments],
            num_new=num_new,
            each=last_weights,
        )
        self.tracker.update(self.storage.tracked(which), seen)
