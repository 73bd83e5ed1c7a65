"""A second pass as a compiled step: what it is told of the cold tiers, and what it found.

Shapes: L layers, B sequences that look back, H key-value heads, D head size; n entries that a
segment may fetch.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from torch import Tensor

from agentkv.cache.layer import CacheLayer
from agentkv.policies.recall import LookBack
from agentkv_kernels import decoder as numbers
from agentkv_kernels.layout import NORMS


class LookStep:
    """The looks of one compiled step.

    Args:
        layers: of one cache.
        sequences: those that look back, in ascending order.
        recall: of the cache's policy.
    """

    def __init__(
        self, layers: Sequence[CacheLayer], sequences: Sequence[int], recall: LookBack
    ) -> None:
        self._layers, self.sequences, self._recall = layers, sequences, recall
        self._num_heads = layers[0].shape.num_heads
        self._counts = np.zeros((len(layers), len(sequences), self._num_heads), np.int64)
        self._picks = self._positions = np.empty((*self._counts.shape, 0), np.int64)
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
        """Give all hot segments capacity for what they may fetch, and return the address of the
        numbers of the look."""
        recall, shape = self._recall, self._counts.shape
        tiers, digests = np.zeros(shape[0], np.int64), np.zeros(shape[0], np.int64)
        segments, oldest = np.zeros(shape[:2], np.int64), np.zeros(shape[:2], np.int64)
        lent: list[list[int]] = [[] for _ in range(self._counts.size)]
        most_cold = most_picked = 0
        for i, layer in enumerate(self._layers):
            storage, cold, window = layer.storage, layer.cold, layer.shape.window
            segments[i] = [storage.segments(sequence).start for sequence in self.sequences]
            if cold is None:
                continue
            tiers[i], counts = cold.storage.descriptor.address, cold.storage.counts
            sizes = counts
            if cold.index is not None:
                digests[i] = cold.index.table.descriptor.address
                sizes = sizes + cold.index.table.counts
            most_cold = max(most_cold, *sizes)
            if window is not None:
                oldest[i] = [layer.fed[sequence] - window for sequence in self.sequences]
            more = [0] * storage.num_segments
            for segment, row, head in self._segments(layer):
                hidden = lent[(i * shape[1] + row) * shape[2] + head]
                hidden += cold.lent[segment].values()
                more[segment] = min(recall.blocks * recall.block, counts[segment] - len(hidden))
            most_picked = max(most_picked, *more)
            for table in (storage.metadata, storage.dense):
                table.reserve_for(more)
        self._picks = np.empty((*shape, most_picked), np.int64)
        self._positions = np.empty_like(self._picks)
        arrays = {
            numbers.COLD_TIERS: tiers,
            numbers.DIGESTS: digests,
            numbers.SEGMENTS: segments,
            numbers.OLDEST: oldest,
            numbers.LENT_STARTS: np.array([*accumulate(map(len, lent), initial=0)], np.int64),
            numbers.LENT: np.array([number for own in lent for number in own], np.int64),
            numbers.SHARES: np.empty((*shape[1:], most_cold), np.float32),
            numbers.PICKS: self._picks,
            numbers.PICKED_POSITIONS: self._positions,
            numbers.PICK_COUNTS: self._counts,
        }
        look = np.zeros(numbers.LOOK_NUMBERS, np.int64)
        for place, array in arrays.items():
            look[place] = array.ctypes.data
        look[numbers.NUM_BLOCKS], look[numbers.BLOCK_SIZE] = recall.blocks, recall.block
        look[numbers.MOST_COLD], look[numbers.MOST_PICKED] = most_cold, most_picked
        self._alive = [look, *arrays.values()]
        return int(look.ctypes.data)

    def finish(self, values: Tensor) -> None:
        """Take what the step found; fetched entries stay hot if they are promoted.

        Args:
            values: (L, B, H, D), the new ones.
        """
        for i, layer in enumerate(self._layers):
            storage, cold = layer.storage, layer.cold
            tables = storage.metadata, storage.dense
            if storage.layout.num_norms:
                self._write_norms(layer, i, values[i])
            for segment, row, head in () if cold is None else self._segments(layer):
                count = int(self._counts[i, row, head])
                assert cold is not None
                self.read_nbytes += cold.look_nbytes(segment, count)
                if self._recall.promotes:
                    places = self._positions[i, row, head, :count].tolist()
                    picks = self._picks[i, row, head, :count].tolist()
                    cold.lent[segment].update(zip(places, picks, strict=True))
                    continue
                for table in tables:
                    _, _, start, held = table.descriptor.extent(segment)
                    table.descriptor.set_used(segment, start, held - count)
            for table in tables:
                table.trim()

    def _write_norms(self, layer: CacheLayer, layer_idx: int, values: Tensor) -> None:
        """Write the norms of the newest entries, which stand before the fetched ones."""
        assert layer.attention is not None
        storage = layer.storage
        norms = layer.norms_of(values[:, :, None], layer.attention)
        assert norms is not None
        for segment, row, head in self._segments(layer):
            newest = storage.counts[segment] - int(self._counts[layer_idx, row, head]) - 1
            width = storage.layout.num_heads
            own = norms[row, head : head + width]
            storage.metadata.entries(NORMS, segment)[:, newest : newest + 1] = own

    def positions(self, row: int) -> Any:
        """Return the positions (N,) int64 of all entries that a sequence has fetched."""
        counts = self._counts[:, row]
        is_found = np.arange(self._positions.shape[3]) < counts[..., None]
        return self._positions[:, row][is_found]
