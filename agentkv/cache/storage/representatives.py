"""The index of a cold tier: entries that stand for their block, which a look scores alone.

Source: InfLLM (arXiv 2402.04617), section 3.

Shapes: W heads of a segment, G query heads per head, N blocks of it, n entries, r entries that
stand for a block, D head size; T cold entries of a segment.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from agentkv.cache.storage.layer_storage import LayerStorage
from agentkv.cache.storage.table import EntryTable, Meter
from agentkv_kernels.formats import BLOCK
from agentkv_kernels.layout import Field, Layout

_POSITION, _CLOSENESS = range(2)
"""Fields of the table: position of an entry, and how close the queries after it were."""


class Representatives:
    """Which entries of each block of one layer's cold entries stand for it.

    They are those to which the queries after them were closest while they were hot. Each head has
    its own. The index is on the host, in the order of the cold tier.

    Args:
        layout: of the cold tier.
        block: positions of a block.
        count: entries of a block that stand for it.
        key_nbytes: bytes of the keys of an entry in the cold tier.
        meter: counts the bytes.
    """

    is_compiled: ClassVar[bool] = False
    """Looks that scan it are not compiled."""

    def __init__(
        self,
        layout: Layout,
        num_segments: int,
        *,
        block: int,
        count: int,
        key_nbytes: int,
        meter: Meter,
    ) -> None:
        self.block, self.count, self._key_nbytes = block, count, key_nbytes
        device = torch.device("cpu")
        self.table = EntryTable(_fields(layout), num_segments, device=device, meter=meter)

    @staticmethod
    def most_nbytes(layout: Layout, num_entries: int) -> int:
        """Return the most bytes of a segment's table of so many entries."""
        each = sum(field.heads * field.num_bytes for field in _fields(layout))
        return (num_entries + BLOCK) * each

    def closeness(self, segment: int) -> Tensor:
        """Return how close the queries after each entry were to its key, (W, T) float32."""
        return self.table.entries(_CLOSENESS, segment)

    def read_nbytes(self, segment: int) -> int:
        """Return the bytes that a look scans: the table, and the keys that stand for blocks."""
        own = self.table.entries(_POSITION, segment)[0]
        sizes = torch.unique(own // self.block, return_counts=True)[1]
        keys = int(sizes.clamp_max(self.count).sum()) * self._key_nbytes
        return keys + own.nbytes + self.closeness(segment).nbytes

    def take_over(self, hot: LayerStorage, segment: int, positions: Tensor, keys: Tensor) -> None:
        """Note entries that are about to leave `hot`: the mean product of their keys with the
        latest queries after them, over the query heads of each head; 0 if there is none.

        Args:
            positions: (n,), at least one.
            keys: (W, n, D).
        """
        queries, places = _latest_queries(hot, segment)
        products = queries.to(torch.float32).mean(dim=1) @ keys.to(torch.float32).mT  # (W, w, n)
        is_later = places[:, None] > positions
        sums = products.masked_fill(~is_later, 0.0).sum(dim=1)
        num_new, more = positions.shape[0], [0] * self.table.num_segments
        more[segment] = num_new
        self.table.extend(more)
        self.table.entries(_POSITION, segment)[0, -num_new:] = positions
        self.closeness(segment)[:, -num_new:] = sums / is_later.sum(dim=0).clamp_min(1)

    def note_turn(self, cold: LayerStorage, segment: int) -> None:
        """Do nothing: keys are read from the tier, and closeness is of the time of eviction."""

    def keep(self, positions: Sequence[Tensor]) -> None:
        """Drop all entries but those of each segment at these positions (n,)."""
        keep: list[Tensor | None] = []
        for segment, places in enumerate(positions):
            stays = torch.isin(self.table.entries(_POSITION, segment)[0], places)
            keep.append(None if bool(stays.all()) else stays.nonzero().squeeze(1))
        self.table.keep(keep)

    def shares(
        self, cold: LayerStorage, segment: int, q: Tensor, *, scale: float, others: Tensor
    ) -> Tensor:
        """Return a score of each entry, (T,) float32, which stands for its share of attention: the
        place of its block among all, 1 for the least relevant.

        The relevance of a block is the mean product of a token's queries with the keys that stand
        for it, over all query heads. Of equal blocks the lower number ranks higher.

        Args:
            q: (1, W * G, 1, D), rotated.
            scale, others: as in `Backend.largest_shares`; ranks do not depend on them.
        """
        heads = cold.layout.num_heads
        means = q.to(cold.device, torch.float32).view(heads, -1, q.shape[3]).mean(dim=1)
        blocks, own = torch.unique(cold.positions(segment) // self.block, return_inverse=True)
        [part], relevance = cold.parts(segment), torch.zeros(blocks.shape[0])
        for head, closeness in enumerate(self.closeness(segment)):
            chosen = _best_of_groups(closeness, own, self.count)
            products = part.pick(chosen).decode_keys()[0, head] @ means[head]
            sums = torch.zeros_like(relevance).index_add_(0, own[chosen], products)
            relevance += sums / torch.bincount(own[chosen], minlength=blocks.shape[0])
        order = relevance.argsort(descending=True, stable=True)
        ranks = torch.empty_like(relevance)
        ranks[order] = torch.arange(blocks.shape[0], 0, -1, dtype=torch.float32)
        return ranks[own]

    def check(self, segment: int, positions: Tensor, keys: Tensor | None) -> None:
        """Audit the index of a segment's entries, at positions (n,). Raises AssertionError."""
        found = self.table.entries(_POSITION, segment)[0]
        assert torch.equal(found, positions), "the index has other entries than the cold tier"


def _fields(layout: Layout) -> tuple[Field, ...]:
    """Return the fields of an entry: its position, and the closeness of each head."""
    return Field(1, (), torch.int32), Field(layout.num_heads, (), torch.float32)


def _latest_queries(hot: LayerStorage, segment: int) -> tuple[Tensor, Tensor]:
    """Return the latest queries of a segment, (W, G, w, D), and their positions (w,)."""
    assert hot.queries is not None, "the recall asks for them"
    sequence, own = divmod(segment, hot.layout.segments_per_sequence)
    queries, places = hot.queries.of(sequence)
    of_segment = queries.chunk(hot.layout.segments_per_sequence)[own]
    return of_segment.view(hot.layout.num_heads, -1, *queries.shape[1:]), places


def _best_of_groups(values: Tensor, groups: Tensor, count: int) -> Tensor:
    """Return the numbers (n,) of the `count` highest values (T,) of each group, the lower number
    first among equals.

    Args:
        groups: (T,), the group of each value.
    """
    order = values.argsort(descending=True, stable=True)
    order = order[groups[order].argsort(stable=True)]
    sizes = torch.bincount(groups)
    starts = sizes.cumsum(0) - sizes
    places = torch.arange(order.shape[0]) - starts[groups[order]]
    return order[places < count]
