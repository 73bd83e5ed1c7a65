"""What must hold of rows that go, wherever the kernel runs."""

from dataclasses import dataclass

import torch

from agentkv_kernels.layout import Index
from agentkv_kernels.ragged import Leaving, RaggedLayout


@dataclass(frozen=True)
class Leave:
    """Of each lane a run of rows goes, or one that only the device knows: as lists do it."""

    counts: list[int]
    runs: list[tuple[int, int]]
    """First row and how many."""
    fields: tuple[tuple[int, int, torch.dtype], ...]
    """Heads, numbers of a row, dtype."""
    unseen: bool = False

    def __call__(self, device):
        from agentkv_kernels.triton import close as kernels

        starts = [i % 3 for i in range(len(self.counts))]
        rooms = [n + start + 2 for n, start in zip(self.counts, starts, strict=True)]
        boxes = RaggedLayout.of(rooms, starts, self.counts, device=device)
        tensors = [
            torch.arange(heads * sum(rooms) * width, device=device)
            .view(heads * sum(rooms), width)
            .to(dtype)
            for heads, width, dtype in self.fields
        ]
        sizes = [(heads, width * dtype.itemsize) for heads, width, dtype in self.fields]
        index = Index(len(rooms), sizes)
        index.point(tensors)
        lanes = range(len(rooms))
        expected = []
        for (heads, *_), flat in zip(self.fields, tensors, strict=True):
            for lane, (first, gap) in enumerate(self.runs):
                rows = boxes.rows(flat, lane, heads)
                expected.append(torch.cat([rows[:, :first], rows[:, first + gap :]], dim=1))
        picks, runs = None, [(first, gap, -1) for first, gap in self.runs]
        if self.unseen:
            # the first of the picks is another table's
            picks = torch.tensor([-5, *[first for first, _ in self.runs]], device=device)
            runs = [(0, gap, lane + 1) for lane, (_, gap) in enumerate(self.runs)]
        (after,) = kernels.close_rows([Leaving(index, boxes, runs)], picks)
        columns = [list(c) for c in (after.starts, after.counts)]
        assert after.table[2:].tolist() == columns, "the device has the rows elsewhere"
        assert columns[1] == [n - gap for n, (_, gap) in zip(self.counts, self.runs, strict=True)]
        found = [
            after.rows(flat, lane, heads)
            for (heads, *_), flat in zip(self.fields, tensors, strict=True)
            for lane in lanes
        ]
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)
