"""The index of a cold tier: digests of its blocks, which a look scans instead of all keys.

Shapes: W heads of a segment, G query heads per head, N blocks of it, n entries, D head size; T cold
entries of a segment.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from agentkv.cache.storage.layer_storage import LayerStorage
from agentkv.cache.storage.table import EntryTable, Meter
from agentkv.cache.storage.turn_keys import AT_ONCE
from agentkv_kernels import digests as kernel
from agentkv_kernels.formats import BLOCK
from agentkv_kernels.layout import (
    DIGEST_BLOCK,
    DIGEST_EXPONENT,
    DIGEST_HIGH,
    DIGEST_LOW,
    Field,
    Layout,
)


class Digests:
    """Digests of the blocks of one layer's cold entries, in the order in which blocks came.

    Args:
        layout: of the cold tier.
        block: positions of a block.
        meter: counts the bytes.
    """

    is_compiled: ClassVar[bool] = True
    """Compiled looks can scan it."""

    def __init__(
        self, layout: Layout, num_segments: int, *, block: int, device: torch.device, meter: Meter
    ) -> None:
        self.block = block
        self.table = EntryTable(_fields(layout), num_segments, device=device, meter=meter)

    @staticmethod
    def most_nbytes(layout: Layout, num_tokens: int, *, block: int) -> int:
        """Return the most bytes of a segment's digests after a sequence of so many tokens."""
        capacity = -(-num_tokens // block) + BLOCK
        return capacity * sum(field.heads * field.num_bytes for field in _fields(layout))

    def read_nbytes(self, segment: int) -> int:
        """Return the bytes of a segment's digests, unused capacity excluded."""
        each = sum(field.heads * field.num_bytes for field in self.table.fields)
        return each * self.table.counts[segment]

    def blocks(self, segment: int) -> Tensor:
        """Return the numbers (N,) of a segment's blocks."""
        return self.table.entries(DIGEST_BLOCK, segment)[0]

    def add(self, segment: int, positions: Tensor, keys: Tensor) -> None:
        """Widen the bounds of some blocks by further entries.

        Args:
            positions: (n,), at least one.
            keys: (W, n, D).
        """
        blocks, inverse = torch.unique(positions // self.block, return_inverse=True)
        shape = (keys.shape[0], blocks.shape[0], keys.shape[2])
        where = inverse[None, :, None].expand(keys.shape)
        low = keys.new_full(shape, torch.inf, dtype=torch.float32)
        low.scatter_reduce_(1, where, keys.to(torch.float32), "amin")
        high = keys.new_full(shape, -torch.inf, dtype=torch.float32)
        high.scatter_reduce_(1, where, keys.to(torch.float32), "amax")
        known, order = self.blocks(segment), torch.arange(blocks.shape[0], device=blocks.device)
        is_new = ~torch.isin(blocks, known)
        old = order[~is_new]
        if old.numel():
            rows = (known[None] == blocks[old, None]).int().argmax(dim=1)
            lows, highs, exponents = self._codes(segment)
            bounds = kernel.decode(lows[:, rows], highs[:, rows], exponents[:, rows])
            wider = torch.minimum(low[:, old], bounds[0]), torch.maximum(high[:, old], bounds[1])
            for codes, new in zip((lows, highs, exponents), kernel.encode(*wider), strict=True):
                codes[:, rows] = new
        new_rows = order[is_new]
        if new_rows.numel():
            more = [0] * self.table.num_segments
            more[segment] = new_rows.shape[0]
            self.table.extend(more)
            values = kernel.encode(low[:, new_rows], high[:, new_rows])
            first = -new_rows.shape[0]
            self.blocks(segment)[first:] = blocks[new_rows].int()
            for codes, new in zip(self._codes(segment), values, strict=True):
                codes[:, first:] = new

    def clear(self, segment: int) -> None:
        """Forget a segment's digests."""
        keep: list[Tensor | None] = [None] * self.table.num_segments
        keep[segment] = torch.arange(0, device=self.table.tensors[DIGEST_BLOCK].device)
        self.table.keep(keep)

    def take_over(self, hot: LayerStorage, segment: int, positions: Tensor, keys: Tensor) -> None:
        """Note entries that are about to leave `hot`; the arguments are those of `add`."""
        self.add(segment, positions, keys)

    def note_turn(self, cold: LayerStorage, segment: int) -> None:
        """Bound the keys of a segment anew, which were turned, a few of its entries at a time."""
        self.clear(segment)
        [part], device = cold.parts(segment), self.blocks(segment).device
        for start in range(0, part.num_entries, AT_ONCE * BLOCK):
            few = part.slice(start, min(start + AT_ONCE * BLOCK, part.num_entries))
            self.add(segment, few.positions[0].to(device), few.decode_keys()[0].to(device))

    def shares(
        self, cold: LayerStorage, segment: int, q: Tensor, *, scale: float, others: Tensor
    ) -> Tensor:
        """Return for each entry the largest share of attention, (T,) on the host, that its block
        would have if it had one entry, whose logit is the block's upper bound.

        Args:
            q: (1, W * G, 1, D), rotated.
            scale, others: as in `Backend.largest_shares`.
        """
        grouped = q.to(torch.float32).view(cold.layout.num_heads, -1, q.shape[3]) * scale
        bounds = self.upper_bounds(segment, grouped)
        totals = torch.logaddexp(bounds.logsumexp(dim=2), others.view(bounds.shape[:2]))
        shares = (bounds - totals.unsqueeze(2)).exp().amax(dim=(0, 1))
        known, order = self.blocks(segment).sort()
        own = cold.positions(segment) // self.block
        return shares[order].to(cold.device)[torch.searchsorted(known.to(cold.device), own)]

    def upper_bounds(self, segment: int, q: Tensor) -> Tensor:
        """Return the largest product that each query may have with a key of each block.

        Args:
            q: (W, G, D) float32.

        Returns:
            (W, G, N) float32.
        """
        return kernel.upper_bounds(q, *self._codes(segment))

    def keep(self, positions: Sequence[Tensor]) -> None:
        """Drop blocks without entries; the bounds of the others stay as wide as they were.

        Args:
            positions: of each segment's entries.
        """
        keep: list[Tensor | None] = []
        for segment, places in enumerate(positions):
            known = self.blocks(segment)
            stays = torch.isin(known, (places // self.block).to(known.device))
            keep.append(None if bool(stays.all()) else stays.nonzero().squeeze(1))
        self.table.keep(keep)

    def check(self, segment: int, positions: Tensor, keys: Tensor | None) -> None:
        """Audit the digests of a segment's entries. Raises AssertionError naming what is broken.

        Args:
            positions: (n,).
            keys: (W, n, D); None: they are quantized, which may leave the bounds.
        """
        positions = positions.to(self.blocks(segment).device)
        blocks = torch.unique(positions // self.block)
        known, order = self.blocks(segment).sort()
        assert torch.equal(known.long(), blocks.long()), "another set of blocks has digests"
        if keys is not None:
            rows = order[torch.searchsorted(blocks, positions // self.block)]
            low, high, exponents = (codes[:, rows] for codes in self._codes(segment))
            bounds = kernel.decode(low, high, exponents)
            keys = keys.to(bounds[0].device)
            is_inside = (keys >= bounds[0]) & (keys <= bounds[1])
            assert bool(is_inside.all()), "a key is out of its block's bounds"

    def _codes(self, segment: int) -> tuple[Tensor, Tensor, Tensor]:
        low, high, exponent = (
            self.table.entries(field, segment)
            for field in (DIGEST_LOW, DIGEST_HIGH, DIGEST_EXPONENT)
        )
        return low, high, exponent


def _fields(layout: Layout) -> tuple[Field, ...]:
    """Return the fields of a digest: the number of its block, bounds and their exponents."""
    heads, dim = layout.num_heads, layout.head_dim
    return (
        Field(1, (), torch.int32),
        Field(heads, (dim,), torch.int8),
        Field(heads, (dim,), torch.int8),
        Field(heads, (), torch.int8),
    )
