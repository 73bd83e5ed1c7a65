"""The index of a cold tier: entries that stand for their block, which a look scores alone.

Source: InfLLM (arXiv 2402.04617), section 3.

Shapes: W heads of a segment, G query heads per head, N blocks of it, n entries, r entries that
stand for a block, D head size; T cold entries of a segment.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from agentkv.cache.storage.table import EntryTable, Meter
from agentkv_kernels.layout import Field, Layout

_HOST = torch.device("cpu")


class Representatives:
    """Which entries of each block of one layer's cold entries stand for it.

    They are those to which the queries after them were closest while they were hot. Each head has
    its own. Entries have the numbers that they have in the cold tier.

    Args:
        layout: of the cold tier.
        block: positions of a block.
        count: entries of a block that stand for it.
        meter: counts the bytes.
    """

    def __init__(
        self, layout: Layout, num_segments: int, *, block: int, count: int, meter: Meter
    ) -> None:
        self.block, self.count = block, count
        fields = (Field(layout.num_heads, (), torch.float32),)
        self.table = EntryTable(fields, num_segments, device=_HOST, meter=meter)

    def closeness(self, segment: int) -> Tensor:
        """Return what each entry was given, (W, T) float32."""
        return self.table.entries(0, segment)

    def add(
        self, segment: int, positions: Tensor, keys: Tensor, queries: Tensor, places: Tensor
    ) -> None:
        """Note new entries, the last ones of a segment: the mean product of their keys with the
        queries after them, over the query heads of each head; 0 if there is none.

        Args:
            positions: (n,), at least one.
            keys: (W, n, D).
            queries: (W, G, w, D).
            places: (w,), positions of the queries.
        """
        products = queries.to(torch.float32).mean(dim=1) @ keys.to(torch.float32).mT  # (W, w, n)
        is_later = places[:, None] > positions
        sums = products.masked_fill(~is_later, 0.0).sum(dim=1)
        more = [0] * self.table.num_segments
        more[segment] = positions.shape[0]
        self.table.extend(more)
        found = sums / is_later.sum(dim=0).clamp_min(1)
        self.closeness(segment)[:, -positions.shape[0] :] = found.to(_HOST)

    def keep(self, stays: Sequence[Tensor | None]) -> None:
        """Drop all entries but those of each segment with these numbers (n,); None: all stay."""
        self.table.keep(stays)

    def num_read(self, positions: Tensor) -> int:
        """Return how many keys of each head a look scores among entries at positions (T,)."""
        sizes = torch.unique(positions // self.block, return_counts=True)[1]
        return int(sizes.clamp_max(self.count).sum())

    def scores(
        self, segment: int, positions: Tensor, q: Tensor, keys_of: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Return a score of each entry, (T,) float32 above 0: the place of its block among all, 1
        for the least relevant.

        The relevance of a block is the mean product of a token's queries with the keys that stand
        for it, over all query heads. Of equal blocks the lower number ranks higher.

        Args:
            positions: (T,) of the entries.
            q: (W, G, D) float32, rotated.
            keys_of: gives the keys (W, n, D) float32 of entries by their numbers (n,).
        """
        blocks, own = torch.unique(positions // self.block, return_inverse=True)
        relevance = torch.zeros(blocks.shape[0])
        for head, closeness in enumerate(self.closeness(segment)):
            chosen = _best_of_groups(closeness, own, self.count)
            products = keys_of(chosen)[head] @ q[head].mean(dim=0).to(_HOST)
            sums = torch.zeros_like(relevance).index_add_(0, own[chosen], products)
            relevance += sums / torch.bincount(own[chosen], minlength=blocks.shape[0])
        order = relevance.argsort(descending=True, stable=True)
        ranks = torch.empty_like(relevance)
        ranks[order] = torch.arange(blocks.shape[0], 0, -1, dtype=torch.float32)
        return ranks[own]

    def check(self, counts: Sequence[int]) -> None:
        """Audit the index of segments that hold so many entries. Raises AssertionError."""
        assert self.table.counts == list(counts), "an entry has no closeness, or one too many"


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
