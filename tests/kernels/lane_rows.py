"""LayerStorage to try kernels on: ragged, with holes, and full of poison wherever there is no row."""

import math

import torch

from agentkv_kernels.formats import BLOCK, FORMATS
from agentkv_kernels.ragged import DenseEntries, Int8Entries, RaggedLayout, StoredEntries


class Lot:
    """Random lanes of rows on a device.

    Args:
        lanes: of each lane, its quantized rows and those in the model's dtype.
        absent: the share of rows that are not there; they hold poison too.
        behind: room behind the rows of every lane, beyond what it has anyway.
    """

    def __init__(
        self,
        lanes,
        *,
        heads,
        head_dim,
        dtype=torch.float32,
        absent=0.0,
        seed=0,
        behind=0,
        device="cpu",
    ):
        self.draw = torch.Generator().manual_seed(seed)
        self.storage, self.heads, self.head_dim, self.device = lanes, heads, head_dim, device
        self.behind = behind
        coded, dense = [c for c, _ in lanes], [d for _, d in lanes]
        boxes, positions = self.field([c + d for c, d in lanes], 1, (), torch.int32)
        is_padded = absent > 0
        for lane, (c, d) in enumerate(lanes):
            places = torch.randperm(3 * (c + d) + 1, generator=self.draw)[: c + d].sort()[0]
            gone = torch.rand(c + d, generator=self.draw) < absent
            boxes.rows(positions, lane, 1)[0] = places.masked_fill(gone, -1).to(device)
        dense_boxes, keys = self.field(dense, heads, (head_dim,), dtype)
        values = torch.full_like(keys, math.nan)
        for lane, (c, d) in enumerate(lanes):
            there = boxes.rows(positions, lane, 1)[0, c:] >= 0
            for flat in (keys, values):
                rows = self.numbers(heads, d, head_dim).to(device)
                rows[:, ~there] = math.nan
                dense_boxes.rows(flat, lane, heads)[:] = rows.to(dtype)
        whole = DenseEntries(dense_boxes, keys, values)
        codes = self.coded(coded) if any(coded) or behind else None
        self.stored = StoredEntries(heads, boxes, positions, whole, codes, is_padded)

    def numbers(self, *shape):
        return torch.randn(shape, generator=self.draw) * 2

    def field(self, counts, heads, inner, dtype):
        """RaggedLayout with room before and behind the rows, and their tensor full of poison."""
        starts = [(3 * i + 1) % 5 for i in range(len(counts))]
        rooms = [
            start + n + i % 3 + self.behind
            for i, (n, start) in enumerate(zip(counts, starts, strict=True))
        ]
        flat = torch.empty((heads * sum(rooms), *inner), dtype=dtype)
        flat.fill_(math.nan if dtype.is_floating_point else 127)
        return RaggedLayout.of(rooms, starts, counts, device=self.device), flat.to(self.device)

    def coded(self, counts):
        """Quantised rows whose blocks lost some, and here and there all, of what they had."""
        heads, size = self.heads, self.head_dim
        boxes, keys = self.field(counts, heads, (size,), torch.int8)
        values = torch.full_like(keys, 127)
        _, ids = self.field(counts, 1, (), torch.int32)
        born = [n and n + 20 + 60 * (n % 2) for n in counts]
        num_blocks = [-(-n // BLOCK) for n in born]
        blocks, key_exponents = self.field(num_blocks, heads, (size,), torch.int8)
        value_exponents = torch.full_like(key_exponents, 127)
        ids.fill_(1 << 30)
        for lane, (n, first) in enumerate(zip(counts, born, strict=True)):
            if not n:
                continue
            stays = torch.randperm(first, generator=self.draw)[:n].sort()[0]
            boxes.rows(ids, lane, 1)[0] = (stays // BLOCK).int().to(self.device)
            for flat, exponents in ((keys, key_exponents), (values, value_exponents)):
                # channels that differ in size by far, and one that is always 0
                spread = torch.linspace(-3, 1, size).exp2()
                spread[-1] = 0
                # blocks that differ in size by far, too: what is merged must be shifted
                rows = self.numbers(heads, first, size) * spread
                rows *= (-5.0 * (torch.arange(first) // BLOCK % 4)).exp2()[:, None]
                codes, scales = FORMATS["int8"].encode(rows)
                boxes.rows(flat, lane, heads)[:] = codes[:, stays].to(self.device)
                blocks.rows(exponents, lane, heads)[:] = scales.to(self.device)
        return Int8Entries(boxes, keys, values, ids, blocks, key_exponents, value_exponents)

    def statistic(self, size):
        """A number or several for every row: (R, size) float32 in the boxes of the positions."""
        boxes, flat = (
            self.stored.boxes,
            torch.full((self.stored.positions.shape[0], size), math.nan),
        )
        flat = flat.to(self.device)
        for lane, (c, d) in enumerate(self.storage):
            boxes.rows(flat, lane, 1)[0] = self.numbers(c + d, size).to(self.device)
        return flat

    def queries(self, group):
        q = self.numbers(len(self.storage), self.heads * group, self.head_dim)
        return q.to(self.device, self.stored.dense.keys.dtype)
