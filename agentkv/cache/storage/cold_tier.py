"""The cold tier of a layer: entries that were evicted and may be fetched again.

The entries are on the host: in the memory of a device they would free nothing. Digests are where
the layer is, and are scanned there.

Shapes: S segments of each sequence, W heads per segment, G query heads per key-value head, T cold
entries of a segment, D head size.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from agentkv.cache.geometry import LayerShape
from agentkv.cache.storage.choose import TORCH, backend_for, cold_layout_for
from agentkv.cache.storage.cold_memory import IN_MEMORY, ColdMemory
from agentkv.cache.storage.digests import Digests
from agentkv.cache.storage.layer_storage import SCALES_GROWTH, LayerStorage, max_blocks
from agentkv.cache.storage.loans import Loans
from agentkv.cache.storage.representatives import Representatives
from agentkv.cache.storage.sizes import EntrySize
from agentkv.cache.storage.table import EntryTable, Meter
from agentkv.cache.storage.turn_keys import Steps, turn_entries
from agentkv.policies.recall import LookBack
from agentkv_kernels.entries import DensePart
from agentkv_kernels.formats import BLOCK
from agentkv_kernels.layout import KEYS, NORMS, TRACKED, Layout

HOST = torch.device("cpu")

GROWTH = 0.03125
"""Unused share of a cold tier that grows (our choice). Laying it out anew copies all of it, which
at this share costs a token the copies of 32 entries of each segment."""

FREED = 0.125
"""Share of its bound that a tier frees when it would exceed it: dropping entries copies all others
(our choice)."""


def most_cold_nbytes(layout: Layout, recall: LookBack, *, num_tokens: int) -> int:
    """Return the most bytes of a layer's cold tier and its index after a sequence of so many
    tokens. All of them may be there: what came back to the layer stays in the tier.

    Args:
        layout: of the tier.
    """
    size = EntrySize.of(layout)
    total = _most_nbytes(size, 0, num_tokens, recall.cold)
    if recall.representatives:
        num_entries = num_tokens if recall.cold is None else min(num_tokens, recall.cold)
        total += Representatives.most_nbytes(layout, num_entries)
    elif recall.digests:
        total += Digests.most_nbytes(layout, num_tokens, block=recall.block)
    return layout.segments_per_sequence * total


def _most_nbytes(size: EntrySize, count: int, more: int, bound: int | None) -> int:
    """Return the most bytes of a segment that has `count` entries once `more` came to it.

    Args:
        bound: see `LookBack.cold`.
    """
    if bound is not None:
        more = min(more, bound)
    capacity = math.ceil((count + more) * (1 + GROWTH)) + BLOCK
    if bound is not None:
        capacity = min(capacity, max(count, bound) + 1)
    # blocks come with every eviction, and are merged once there are more than `max_blocks`
    num_blocks = max(max_blocks(count) + math.ceil(more / BLOCK), max_blocks(count + more))
    return (
        capacity * (size.metadata + (size.quantized or size.dense))
        + math.ceil(num_blocks * (1 + SCALES_GROWTH)) * size.block
    )


class ColdTier:
    """Evicted entries of one layer, in the order in which they were evicted first.

    Keys and values have one format, and are encoded once: an entry that comes back is lent to the
    layer, and stays here for the time when it is evicted again. Only `drop_span` and the bound of
    `LookBack.cold` remove entries, and only `turn` encodes keys again.

    Args:
        hot: storage that entries come from and are lent to.
        recall: what the tier is for.
        num_q_heads: query heads of the layer.
        meter, index_meter: count the bytes of the entries, and those of the index.
        memory: where the entries are.
    """

    def __init__(
        self,
        hot: LayerStorage,
        recall: LookBack,
        *,
        num_q_heads: int,
        meter: Meter,
        index_meter: Meter,
        memory: ColdMemory = IN_MEMORY,
    ) -> None:
        layout = cold_layout_for(hot.layout, recall.format)
        self._backend, self._size = backend_for(layout, num_q_heads, HOST), EntrySize.of(layout)
        self._bound = recall.cold
        self.storage = LayerStorage(
            layout,
            batch=hot.batch,
            device=HOST,
            meter=meter,
            growth=GROWTH,
            most=self._bound,
            memory=memory,
        )
        self.index: Digests | Representatives | None = None
        """What looks scan to choose blocks; None: all keys."""
        block, num_segments = recall.block, hot.num_segments
        if recall.representatives:
            self.index = Representatives(
                layout,
                num_segments,
                block=block,
                count=recall.representatives,
                key_nbytes=self.entry_nbytes // 2,
                meter=index_meter,
            )
        elif recall.digests:
            self.index = Digests(
                layout, num_segments, block=block, device=hot.device, meter=index_meter
            )
        self.loans = Loans(hot.num_segments)
        """The entries that are hot at present."""

    @property
    def lent(self) -> list[dict[int, int]]:
        """Per segment, the entries that are hot at present: number in storage by position."""
        return [self.loans.of(segment) for segment in range(self.storage.num_segments)]

    @property
    def is_compiled(self) -> bool:
        """True if compiled code can look at the entries."""
        return self._backend.is_compiled and (self.index is None or self.index.is_compiled)

    @property
    def nbytes(self) -> int:
        """Bytes of all entries, unused capacity included."""
        return self.storage.nbytes

    @property
    def index_nbytes(self) -> int:
        """Bytes of the index, unused capacity included."""
        return 0 if self.index is None else self.index.table.nbytes

    @property
    def tables(self) -> dict[str, EntryTable]:
        """All tables by name."""
        tables = {f"cold {name}": table for name, table in self.storage.tables.items()}
        return tables if self.index is None else {**tables, "cold index": self.index.table}

    def look_nbytes(self, segment: int, num_fetched: int) -> int:
        """Return the bytes that a look reads in a segment to choose among its entries, and those of
        the entries that it fetches.

        It chooses by all keys, half of the bytes of the entries, or by its index.
        """
        return self.scan_nbytes(segment) + num_fetched * self.entry_nbytes

    @property
    def entry_nbytes(self) -> int:
        """Bytes that a look reads of an entry that it fetches."""
        return self._size.quantized or self._size.dense

    def scan_nbytes(self, segment: int) -> int:
        """Return the bytes that a look reads in a segment to choose among its entries."""
        return self.keys_nbytes(segment) if self.index is None else self.index.read_nbytes(segment)

    def keys_nbytes(self, segment: int) -> int:
        """Return the bytes of all keys of a segment."""
        cold = self.storage
        num_blocks = 0 if cold.scales is None else cold.scales.descriptor.count(segment)
        num_entries = cold.metadata.descriptor.count(segment)
        return (num_entries * self.entry_nbytes + num_blocks * self._size.block) // 2

    def num_entries(self, sequence: int) -> int:
        """Return the number of entries in all segments of a sequence that are not lent."""
        lent = sum(map(self.loans.count, self.storage.segments(sequence)))
        return self.storage.num_entries(sequence) - lent

    def grown_nbytes(self, more: int) -> int:
        """Return the most bytes of the tier once `more` further entries came to every segment."""
        counts, bound = self.storage.counts, self._bound
        return sum(_most_nbytes(self._size, count, more, bound) for count in counts)

    def take_over(self, hot: LayerStorage, picks: Sequence[Tensor]) -> None:
        """Store copies of entries that are about to leave `hot`, unless they were lent to it.

        Where they would exceed the bound, the entries that were evicted first leave.

        Args:
            picks: per segment their numbers (n,) in storage order, ascending.
        """
        picks = [self._take_back(hot, segment, pick) for segment, pick in enumerate(picks)]
        picks = self._make_room(hot, picks)
        counts = [pick.shape[0] for pick in picks]
        if not any(counts):
            return
        cold = self.storage
        self._backend.copy_over(hot, cold, picks)
        if self.index is not None:
            for segment, count in enumerate(counts):
                if count:
                    new = cold.positions(segment)[-count:].to(hot.device)
                    keys = hot.read(KEYS, segment, picks[segment], cold.layout.dtype)
                    self.index.take_over(hot, segment, new, keys)

    def _take_back(self, hot: LayerStorage, segment: int, pick: Tensor) -> Tensor:
        """Take back the lent ones among some entries, with their statistics; return the others."""
        lent = self.loans.of(segment)
        if not lent or not pick.shape[0]:
            return pick
        numbers = [lent.pop(place, -1) for place in hot.positions(segment)[pick].tolist()]
        if max(numbers) < 0:
            return pick
        self.loans.set(segment, lent.items())
        known = torch.tensor(numbers)
        is_known = known >= 0
        known, is_known_there = known[is_known], is_known.to(pick.device)
        for field in (TRACKED, NORMS):
            if self.storage.metadata.tensors[field].numel():
                found = hot.metadata.entries(field, segment)[:, pick[is_known_there]]
                self.storage.metadata.entries(field, segment)[:, known] = found.to(HOST)
        return pick[~is_known_there]

    def _make_room(self, hot: LayerStorage, picks: Sequence[Tensor]) -> list[Tensor]:
        """Drop the entries that were evicted first, where a segment would exceed the bound.

        Args:
            picks: per segment the numbers (n,) of hot entries that are to follow the cold ones.

        Returns:
            The last of them, for which there is room.
        """
        room, bound = list(picks), self._bound
        if bound is None:
            return room
        keep: list[Tensor | None] = [None] * len(room)
        for segment, count in enumerate(self.storage.counts):
            excess = count + room[segment].shape[0] - bound
            if excess <= 0:
                continue
            excess += int(bound * FREED)
            is_hot = torch.zeros(count, dtype=torch.bool)
            is_hot[self._hot_numbers(hot, segment)] = True
            stays = is_hot | ((~is_hot).cumsum(0) > excess)
            num_gone = count - int(stays.sum())
            room[segment] = room[segment][excess - num_gone :]
            if num_gone:
                keep[segment] = stays.nonzero().squeeze(1)
        if any(each is not None for each in keep):
            TORCH.keep(self.storage, keep)
            self._follow()
        return room

    def _hot_numbers(self, hot: LayerStorage, segment: int) -> list[int]:
        """End the loans of entries that the model's window has hidden; return the numbers of all
        others."""
        lent, held = self.loans.of(segment), set(hot.positions(segment).tolist())
        self.loans.set(segment, [each for each in lent.items() if each[0] in held])
        return list(self.loans.of(segment).values())

    def best(
        self,
        segment: int,
        q: Tensor,
        *,
        scale: float,
        others: Tensor,
        oldest: int,
        recall: LookBack,
    ) -> Tensor:
        """Return the numbers (n,) of a segment's entries to fetch, in order of position.

        Args:
            q: (1, W * G, 1, D), rotated.
            scale, others: as in `Backend.largest_shares`.
            oldest: lowest position that the queries may see.
            recall: says how many blocks, and of what size.
        """
        scores = self._shares(segment, q, scale=scale, others=others)
        lent = list(self.loans.of(segment).values())
        return self._backend.best_blocks(
            self.storage,
            segment,
            scores,
            lent=lent,
            oldest=oldest,
            blocks=recall.blocks,
            block=recall.block,
            least=recall.draw,
        )

    def _shares(self, segment: int, q: Tensor, *, scale: float, others: Tensor) -> Tensor:
        """Return the largest share of attention, (T,) on the host, that a token would give each
        entry of a segment; with digests, a bound of it; with representatives, the place of its
        block. The arguments are those of `best`."""
        if self.index is not None:
            return self.index.shares(self.storage, segment, q, scale=scale, others=others)
        lent = list(self.loans.of(segment).values())
        return self._backend.largest_shares(
            self.storage, segment, q.to(HOST), lent=lent, scale=scale, others=others.to(HOST)
        )

    def read(self, segment: int, pick: Tensor, dtype: torch.dtype) -> DensePart:
        """Return a decoded copy of a segment's entries, (1, W, n, D), on the host."""
        [part] = self.storage.parts(segment)
        keys, values = part.pick(pick).decode(dtype)
        return DensePart(keys, values, part.positions[:, pick])

    def unlent(self, segment: int, dtype: torch.dtype) -> list[DensePart]:
        """Return decoded copies of a segment's entries that are not hot at present, (1, W, n, D),
        on the host; none if there are none."""
        num_entries = self.storage.counts[segment]
        if num_entries == self.loans.count(segment):
            return []
        [part] = self._backend.parts(self.storage, segment)
        if lent := list(self.loans.of(segment).values()):
            stays = torch.ones(num_entries, dtype=torch.bool)
            stays[lent] = False
            part = part.pick(stays.nonzero().squeeze(1))
        keys, values = part.decode(dtype)
        return [DensePart(keys, values, part.positions)]

    def promote(self, hot: LayerStorage, picks: Sequence[Tensor]) -> None:
        """Lend entries to `hot`, dense and behind all others.

        Args:
            picks: per segment their numbers (n,), in the order in which they are stored.
        """
        counts, cold = [pick.shape[0] for pick in picks], self.storage
        if not any(counts):
            return
        for table in (hot.metadata, hot.dense):
            table.reserve_for(counts)  # others will leave at once, so that no more is needed
            table.extend(counts)
        for segment, (pick, count) in enumerate(zip(picks, counts, strict=True)):
            if not count:
                continue
            for field in range(len(cold.metadata.fields)):
                found = cold.metadata.entries(field, segment)[:, pick]
                hot.metadata.entries(field, segment)[:, -count:] = found
            found_entries = self.read(segment, pick, hot.layout.dtype)
            for field, x in enumerate((found_entries.keys, found_entries.values)):
                hot.dense.entries(field, segment)[:, -count:] = x[0]
            places = cold.positions(segment)[pick].tolist()
            self.loans.add(segment, places, pick.tolist())

    def drop_span(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Drop the entries of each segment whose position is first..last - 1 of its range."""
        TORCH.drop_span(self.storage, ranges)
        self._follow()

    def _follow(self) -> None:
        """Bring index and loans in line with the entries, some of which have left."""
        if self.index is not None:
            segments = range(self.storage.num_segments)
            self.index.keep([self.storage.positions(segment) for segment in segments])
        for segment, lent in enumerate(self.lent):
            if lent:
                self._lend(segment, torch.tensor(list(lent)))

    def turn(self, sequence: int, steps: Steps, shape: LayerShape) -> None:
        """Turn the keys of a sequence to other rotary positions."""
        turn_entries(self.storage, sequence, steps, shape)
        if self.index is not None:
            for segment in self.storage.segments(sequence):
                self.index.note_turn(self.storage, segment)

    def lend_all(self, hot: LayerStorage) -> None:
        """Take what is hot and cold at once as lent, after both were filled anew."""
        for segment in range(hot.num_segments):
            self._lend(segment, hot.positions(segment))
        # loans of what the model's window hides have ended
        self._make_room(hot, [torch.arange(0)] * hot.num_segments)

    def _lend(self, segment: int, places: Tensor) -> None:
        """Take the entries at some positions of a segment as lent, and no others."""
        positions = self.storage.positions(segment)
        numbers = torch.isin(positions, places.to(HOST)).nonzero().squeeze(1)
        self.loans.set(segment, zip(positions[numbers].tolist(), numbers.tolist(), strict=True))

    def reorder(self, index: Sequence[int]) -> None:
        """Make sequence i a copy of what sequence index[i] was."""
        before, lent = self.storage, self.lent
        segments = [segment for sequence in index for segment in before.segments(sequence)]
        self.storage, self.loans = before.take(index), Loans(len(segments))
        for i, segment in enumerate(segments):
            self.loans.set(i, lent[segment].items())
        before.release()
        if self.index is not None:
            table = self.index.table
            self.index.table = table.take(segments)
            table.release()

    def trim(self) -> None:
        """Return unused memory."""
        if self.storage.scales is not None:
            self.storage.scales.trim()

    def release(self) -> None:
        """Return all memory; the tier must not be used afterwards."""
        self.storage.release()
        if self.index is not None:
            self.index.table.release()

    def check(self, hot: LayerStorage) -> None:
        """Audit the structure. Raises AssertionError naming what is broken."""
        self.storage.check()
        for segment, lent in enumerate(self.lent):
            places = self.storage.positions(segment)
            assert [int(places[number]) for number in lent.values()] == list(lent), (
                "another entry is lent"
            )
            both = places[torch.isin(places, hot.positions(segment).to(HOST))].tolist()
            assert set(both) <= set(lent), "an entry is hot and cold at once, and not lent"
            most = math.inf if self._bound is None else max(self._bound, len(lent))
            assert places.shape[0] <= most, f"{places.shape[0]} cold entries, {most} may be there"
            if self.index is not None:
                is_dense = self.storage.codes is None
                keys = self.storage.dense.entries(KEYS, segment) if is_dense else None
                self.index.check(segment, places, keys)
        if self.storage.codes is not None:
            assert not any(self.storage.dense.counts), "a cold entry is not quantized"
