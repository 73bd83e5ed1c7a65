"""Checks of the drop kernel, wherever it runs."""

from dataclasses import dataclass

import torch

from agentkv_kernels.layout import Field, TableDescriptor
from agentkv_kernels.ragged import RaggedLayout, Removal


@dataclass(frozen=True)
class DropRuns:
    """Drops a run of each segment, or an entry that only the device knows, as lists do it."""

    counts: list[int]
    runs: list[tuple[int, int]]
    """First entry and how many."""
    fields: tuple[tuple[int, int, torch.dtype], ...]
    """Heads, numbers of a entry, dtype."""
    unseen: bool = False

    def __call__(self, device):
        from agentkv_kernels.triton import drop as kernels

        starts = [i % 3 for i in range(len(self.counts))]
        capacities = [n + start + 2 for n, start in zip(self.counts, starts, strict=True)]
        layout = RaggedLayout.of(capacities, starts, self.counts, device=device)
        tensors = [
            torch.arange(heads * sum(capacities) * width, device=device)
            .view(heads * sum(capacities), width)
            .to(dtype)
            for heads, width, dtype in self.fields
        ]
        fields = [Field(heads, (width,), dtype) for heads, width, dtype in self.fields]
        table = TableDescriptor(len(capacities), fields)
        table.point(tensors)
        segments = range(len(capacities))
        expected = []
        for (heads, *_), flat in zip(self.fields, tensors, strict=True):
            for segment, (first, gap) in enumerate(self.runs):
                entries = layout.entries(flat, segment, heads)
                expected.append(torch.cat([entries[:, :first], entries[:, first + gap :]], dim=1))
        picks, runs = None, [(first, gap, -1) for first, gap in self.runs]
        if self.unseen:
            # the first of the picks is another table's
            picks = torch.tensor([-5, *[first for first, _ in self.runs]], device=device)
            runs = [(0, gap, segment + 1) for segment, (_, gap) in enumerate(self.runs)]
        (after,) = kernels.drop_entries([Removal(table, layout, runs)], picks)
        columns = [list(c) for c in (after.starts, after.counts)]
        assert after.extents[2:].tolist() == columns, "the device has the entries elsewhere"
        assert columns[1] == [n - gap for n, (_, gap) in zip(self.counts, self.runs, strict=True)]
        found = [
            after.entries(flat, segment, heads)
            for (heads, *_), flat in zip(self.fields, tensors, strict=True)
            for segment in segments
        ]
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)
