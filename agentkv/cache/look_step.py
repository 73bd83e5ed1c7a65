"""A compiled step that looks back: what it is told of the cold tiers, and what it found.

Shapes: L layers, B sequences that look back, H key-value heads, D head size; n entries that a
segment may fetch.
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import or_
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentkv.cache.layer import CacheLayer
from agentkv.policies.gates import Fixed
from agentkv.policies.parameters import MOST
from agentkv.policies.recall import LookBack
from agentkv_kernels import decoder as numbers
from agentkv_kernels.formats import BLOCK
from agentkv_kernels.layout import NORMS

UNSETTLED = (-1, 0, 0, 0, 0)
"""Rule of a segment that the caller settles."""


class LookStep:
    """The looks of one compiled step.

    Args:
        layers: of one cache.
        sequences: those that look back, in ascending order.
        recall: of the cache's policy.
        group: query heads per key-value head.
        appends: its tokens are new; else they are the newest ones, computed again.
    """

    def __init__(
        self,
        layers: Sequence[CacheLayer],
        sequences: Sequence[int],
        recall: LookBack,
        group: int,
        *,
        appends: bool,
    ) -> None:
        self._layers, self.sequences, self._recall, self._group = layers, sequences, recall, group
        self.appends = appends
        self._num_heads = layers[0].shape.num_heads
        self._counts = np.zeros((len(layers), len(sequences), self._num_heads), np.int64)
        self._picks = self._positions = np.empty((*self._counts.shape, 0), np.int64)
        self._rules = np.array(
            [[rule_of(layer, sequence) for sequence in sequences] for layer in layers], np.int64
        )
        self._outcomes = np.zeros(self._rules.shape[:2], np.int64)
        self.unsettled: list[CacheLayer] = []
        """Layers that may hold more than the policy allows, once the step is done."""
        self._alive: list[Any] = []
        self.read_nbytes = 0
        """Bytes read in cold tiers and their digests, over all layers and segments."""

    def _segments(self, layer: CacheLayer) -> Iterator[tuple[int, int, int]]:
        """Yield each segment with its row among `sequences` and the number of its first head."""
        storage = layer.storage
        for row, sequence in enumerate(self.sequences):
            for i, segment in enumerate(storage.segments(sequence)):
                yield segment, row, i * storage.layout.num_heads

    def begin(self) -> int:
        """Return the address of the numbers of the look. Segments that it settles have capacity for
        what they fetch, unless their cold tier has none."""
        recall, shape = self._recall, self._counts.shape
        tiers, digests, loans = (np.zeros(shape[0], np.int64) for _ in range(3))
        segments, oldest = np.zeros(shape[:2], np.int64), np.zeros(shape[:2], np.int64)
        most_cold = most_hot = most_picked = 0
        for i, layer in enumerate(self._layers):
            storage, cold, window = layer.storage, layer.cold, layer.shape.window
            segments[i] = [storage.segments(sequence).start for sequence in self.sequences]
            most_hot = max(most_hot, *storage.counts)
            if cold is None:
                continue
            tiers[i], loans[i] = cold.storage.descriptor.address, cold.loans.address
            sizes = counts = cold.storage.counts
            if cold.index is not None:
                digests[i] = cold.index.table.descriptor.address
                sizes = sizes + cold.index.table.counts
            most_cold = max(most_cold, *sizes)
            if window is not None:
                fed = [layer.fed[sequence] + self.appends for sequence in self.sequences]
                oldest[i] = [num_seen - window for num_seen in fed]
            self.read_nbytes += sum(cold.scan_nbytes(own) for own, _, _ in self._segments(layer))
            most = recall.blocks * recall.block
            free = [min(most, n - cold.loans.count(s)) for s, n in enumerate(counts)]
            most_picked = max(most_picked, *free)
            self._prepare(i, free)
            loans[i] = cold.loans.address
        most_hot += self.appends
        self._picks = np.empty((*shape, most_picked), np.int64)
        self._positions = np.empty_like(self._picks)
        dim = self._layers[0].shape.head_dim
        arrays = {
            numbers.COLD_TIERS: tiers,
            numbers.DIGESTS: digests,
            numbers.LOANS: loans,
            numbers.SEGMENTS: segments,
            numbers.OLDEST: oldest,
            numbers.SHARES: np.empty((*shape[1:], most_cold), np.float32),
            numbers.HOT_LOGITS: np.empty((*shape[1:], self._group, most_hot), np.float32),
            numbers.FETCHED: np.empty((*shape[1:], 2, most_picked, dim), np.float32),
            numbers.PICKS: self._picks,
            numbers.PICKED_POSITIONS: self._positions,
            numbers.PICK_COUNTS: self._counts,
            numbers.RULES: self._rules,
            numbers.OUTCOMES: self._outcomes,
        }
        look = np.zeros(numbers.LOOK_NUMBERS, np.int64)
        for place, array in arrays.items():
            look[place] = array.ctypes.data
        look[numbers.NUM_BLOCKS], look[numbers.BLOCK_SIZE] = recall.blocks, recall.block
        look[numbers.LEAST_SHARE] = np.float32(recall.draw).view(np.int32)
        look[numbers.APPENDS] = self.appends
        look[numbers.MOST_COLD], look[numbers.MOST_HOT] = most_cold, most_hot
        look[numbers.MOST_PICKED] = most_picked
        self._alive = [look, *arrays.values()]
        return int(look.ctypes.data)

    def _prepare(self, layer_idx: int, free: Sequence[int]) -> None:
        """Let compiled code settle a layer's segments: no fork shares what it changes in place, and
        the loans have room for what each segment may fetch."""
        layer = self._layers[layer_idx]
        storage, cold = layer.storage, layer.cold
        assert cold is not None
        for row, sequence in enumerate(self.sequences):
            if self._rules[layer_idx, row, numbers.MOST_HELD] < 0:
                continue
            storage.own()
            for table in (cold.storage.codes, cold.storage.scales):
                if table is not None:  # blocks of scales may be merged in place
                    table.own()
            cold.loans.reserve(cold.loans.count(sequence) + free[sequence])

    def finish(self, values: Tensor) -> None:
        """Take what the step found; fetched entries of segments that are not settled become hot if
        they are promoted.

        Args:
            values: (L, B, H, D), the new ones.
        """
        num_fetched = self._counts.sum(axis=(1, 2)).tolist()
        for i, layer in enumerate(self._layers):
            storage, cold = layer.storage, layer.cold
            if self.appends:
                layer.finish_step(values[i, :, :, None], None)
            elif storage.layout.num_norms:
                self._write_norms(layer, values[i])
            if cold is None:
                continue
            for row, outcome in enumerate(self._outcomes[i].tolist()):
                if not outcome and self._rules[i, row, numbers.MOST_HELD] >= 0:
                    self._outcomes[i, row] = self._settle(i, row)
            of_rows = self._outcomes[i].tolist()
            outcomes = reduce(or_, of_rows)
            if outcomes & numbers.HAS_EVICTED:
                layer.evicted_at = layer.seen
            self.read_nbytes += num_fetched[i] * cold.entry_nbytes
            is_settled = all(each & numbers.SETTLED for each in of_rows)
            if not is_settled:
                self.unsettled.append(layer)
                if self._recall.promotes and num_fetched[i]:
                    cold.promote(storage, self._unsettled_picks(i))
            if outcomes & numbers.IS_LOOSE:
                layer.backend.tidy(storage)
                cold.trim()

    def _settle(self, layer_idx: int, row: int) -> int:
        """Settle a segment whose tables lacked capacity in the step; return the outcome, 0 if cold
        entries must leave for it."""
        # imported here because Numba takes half a second, and is optional
        from agentkv_kernels.numba.settle import counts_to_settle, settle_later

        hot, cold = self._layers[layer_idx].storage, self._layers[layer_idx].cold
        assert cold is not None
        segment, rule = self.sequences[row], self._rules[layer_idx, row]
        count = self._counts[layer_idx, row, 0]
        picks, places = (x[layer_idx, row, 0, :count] for x in (self._picks, self._positions))
        own = hot.descriptor.address, cold.storage.descriptor.address, cold.loans.address
        needed = np.zeros(6, np.int64)
        counts_to_settle(*own, segment, rule, count, needed)
        entries, dense, codes, blocks, cold_entries, cold_blocks = needed.tolist()
        if cold_entries > rule[numbers.COLD_BOUND]:
            return 0
        for table, wanted in (
            (hot.metadata, entries),
            (hot.dense, dense),
            (hot.codes, codes),
            (hot.scales, blocks + codes // BLOCK),  # more come before they are merged
            (cold.storage.metadata, cold_entries),
            (cold.storage.codes, cold_entries),
            (cold.storage.scales, cold_blocks),
        ):
            if table is not None:
                table.reserve_in(segment, wanted)
        return int(settle_later(*own, segment, rule, picks, places))

    def _unsettled_picks(self, layer_idx: int) -> list[Tensor]:
        """Return the entries that each segment of a layer has fetched and not settled."""
        layer = self._layers[layer_idx]
        picks = [torch.arange(0)] * layer.storage.num_segments
        for segment, row, head in self._segments(layer):
            if not self._outcomes[layer_idx, row] & numbers.SETTLED:
                count = self._counts[layer_idx, row, head]
                picks[segment] = torch.from_numpy(self._picks[layer_idx, row, head, :count])
        return picks

    def _write_norms(self, layer: CacheLayer, values: Tensor) -> None:
        """Write the norms of the newest entries."""
        assert layer.attention is not None
        storage = layer.storage
        norms = layer.norms_of(values[:, :, None], layer.attention)
        assert norms is not None
        for segment, row, head in self._segments(layer):
            own = norms[row, head : head + storage.layout.num_heads]
            storage.metadata.entries(NORMS, segment)[:, -1:] = own

    def positions(self, row: int) -> Any:
        """Return the positions (N,) int64 of all entries that a sequence has fetched."""
        counts = self._counts[:, row]
        is_found = np.arange(self._positions.shape[3]) < counts[..., None]
        return self._positions[:, row][is_found]


def rule_of(layer: CacheLayer, sequence: int) -> tuple[int, int, int, int, int]:
    """Return the rule by which compiled code settles a sequence in a layer; see `RULES`.

    It settles what the policy evicts by age alone, from a layer whose stored entries carry nothing
    but their positions, to a cold tier in int8.
    """
    own, cold, layout = layer.policy, layer.cold, layer.storage.layout
    if own is None or cold is None or not layout.promotes or cold.index is not None:
        return UNSETTLED
    policy, recall = own.fitted(sequence), own.policy.recall
    assert isinstance(recall, LookBack)
    gate, selector, precision = policy.gate, policy.selector, policy.precision
    is_plain = not layout.tracked.num_bytes and not layout.num_norms and not layout.by_rank
    is_plain &= layout.segments_per_sequence == 1
    is_int8 = cold.storage.scales is not None and (
        layer.storage.codes is None or layer.storage.scales is not None
    )
    if not (is_plain and is_int8 and policy.scorer.by_age) or precision.sure is not None:
        return UNSETTLED
    budgets = own.budgets(sequence)
    if type(gate) is not Fixed or not gate.bounded or budgets is None:
        return UNSETTLED
    if own.has_scattered_pins(sequence):
        return UNSETTLED
    target, most = budgets[own.index], budgets[own.index] + gate.slack
    first, recent = selector.sinks, precision.recent
    if first + recall.blocks * recall.block > target:
        return UNSETTLED  # it might evict what it has fetched
    bound = MOST if recall.cold is None else recall.cold
    return most, target, first, -1 if recent is None else recent, bound
