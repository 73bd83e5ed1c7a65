"""Segments to try kernels on: ragged, and full of poison wherever there is no entry."""

import math

import torch

from agentkv_kernels.formats import BLOCK, FORMATS
from agentkv_kernels.ragged import DenseEntries, Int8Entries, RaggedLayout, StoredEntries


class RandomSegments:
    """Random segments of entries on a device.

    Args:
        segments: of each segment, its quantised entries and those in the model's dtype.
        behind: capacity behind the entries of every segment, beyond what it has anyway.
    """

    def __init__(
        self,
        segments,
        *,
        heads,
        head_dim,
        dtype=torch.float32,
        seed=0,
        behind=0,
        device="cpu",
    ):
        self.draw = torch.Generator().manual_seed(seed)
        self.segments, self.heads, self.head_dim, self.device = segments, heads, head_dim, device
        self.behind = behind
        coded, dense = [c for c, _ in segments], [d for _, d in segments]
        layout, positions = self.field([c + d for c, d in segments], 1, (), torch.int32)
        for segment, (c, d) in enumerate(segments):
            places = torch.randperm(3 * (c + d) + 1, generator=self.draw)[: c + d].sort()[0]
            layout.entries(positions, segment, 1)[0] = places.to(device)
        dense_boxes, keys = self.field(dense, heads, (head_dim,), dtype)
        values = torch.full_like(keys, math.nan)
        for segment, (_, d) in enumerate(segments):
            for flat in (keys, values):
                entries = self.numbers(heads, d, head_dim).to(device)
                dense_boxes.entries(flat, segment, heads)[:] = entries.to(dtype)
        dense_entries = DenseEntries(dense_boxes, keys, values)
        codes = self.coded(coded) if any(coded) or behind else None
        self.stored = StoredEntries(heads, layout, positions, dense_entries, codes)

    def numbers(self, *shape):
        return torch.randn(shape, generator=self.draw) * 2

    def field(self, counts, heads, inner, dtype):
        """RaggedLayout with capacity before and behind the entries, and their tensor full of
        poison."""
        starts = [(3 * i + 1) % 5 for i in range(len(counts))]
        capacities = [
            start + n + i % 3 + self.behind
            for i, (n, start) in enumerate(zip(counts, starts, strict=True))
        ]
        flat = torch.empty((heads * sum(capacities), *inner), dtype=dtype)
        flat.fill_(math.nan if dtype.is_floating_point else 127)
        return RaggedLayout.of(capacities, starts, counts, device=self.device), flat.to(self.device)

    def coded(self, counts):
        """Quantised entries whose blocks lost some, and here and there all, of what they had."""
        heads, size = self.heads, self.head_dim
        layout, keys = self.field(counts, heads, (size,), torch.int8)
        values = torch.full_like(keys, 127)
        _, ids = self.field(counts, 1, (), torch.int32)
        born = [n and n + 20 + 60 * (n % 2) for n in counts]
        num_blocks = [-(-n // BLOCK) for n in born]
        blocks, key_exponents = self.field(num_blocks, heads, (size,), torch.int8)
        value_exponents = torch.full_like(key_exponents, 127)
        ids.fill_(1 << 30)
        for segment, (n, first) in enumerate(zip(counts, born, strict=True)):
            if not n:
                continue
            stays = torch.randperm(first, generator=self.draw)[:n].sort()[0]
            layout.entries(ids, segment, 1)[0] = (stays // BLOCK).int().to(self.device)
            for flat, exponents in ((keys, key_exponents), (values, value_exponents)):
                # channels that differ in size by far, and one that is always 0
                spread = torch.linspace(-3, 1, size).exp2()
                spread[-1] = 0
                # blocks that differ in size by far, too: what is merged must be shifted
                entries = self.numbers(heads, first, size) * spread
                entries *= (-5.0 * (torch.arange(first) // BLOCK % 4)).exp2()[:, None]
                codes, scales = FORMATS["int8"].encode(entries)
                layout.entries(flat, segment, heads)[:] = codes[:, stays].to(self.device)
                blocks.entries(exponents, segment, heads)[:] = scales.to(self.device)
        return Int8Entries(layout, keys, values, ids, blocks, key_exponents, value_exponents)

    def tracked(self, size):
        """A number or several for every entry: (R, size) float32 in the layout of the positions."""
        layout, flat = (
            self.stored.layout,
            torch.full((self.stored.positions.shape[0], size), math.nan),
        )
        flat = flat.to(self.device)
        for segment, (c, d) in enumerate(self.segments):
            layout.entries(flat, segment, 1)[0] = self.numbers(c + d, size).to(self.device)
        return flat

    def queries(self, group):
        q = self.numbers(len(self.segments), self.heads * group, self.head_dim)
        return q.to(self.device, self.stored.dense.keys.dtype)
