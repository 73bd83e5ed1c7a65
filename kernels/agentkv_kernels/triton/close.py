"""Triton: rows that go from their lanes, those on one side of them moved up, in one launch for as
many tables of as many layers as there are.

Fields are of any dtype and found by their addresses: a row is so many bytes.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from agentkv_kernels.boxes import Boxes, Leaving, uploaded
from agentkv_kernels.index import ADDRESS, HEADS, SIZE

UNITS = 2048
"""Units of 4 bytes, or of one, that a program has in its registers at once."""

COLUMNS = 11
"""Numbers of a job: a field of a lane of a table."""


@triton.jit
def _moved(target, source, length, up, T: tl.constexpr):
    """`length` units from one place to another not far from it: from the last on where `up`."""
    chunks = tl.cdiv(length, T)
    for i in range(chunks):
        chunk = tl.where(up != 0, chunks - 1 - i, i)
        at = chunk * T + tl.arange(0, T)
        x = tl.load(source + at, mask=at < length)
        # what this chunk covers, others of the program may still have to read
        tl.debug_barrier()
        tl.store(target + at, x, mask=at < length)


@triton.jit
def close_kernel(jobs, picks, C: tl.constexpr, T: tl.constexpr):
    """Program (i, h): head h of the field and lane of job i."""
    job, head = jobs + tl.program_id(0).to(tl.int64) * C, tl.program_id(1)
    if head < tl.load(job + 2):
        address = tl.load(job) + tl.load(job + 1) * head
        size, count = tl.load(job + 3), tl.load(job + 4)
        first, gap = tl.load(job + 5), tl.load(job + 6)
        pick, up = tl.load(job + 7), tl.load(job + 8)
        if pick >= 0:
            first = tl.load(picks + pick)
        target, source = address + first * size, address + (first + gap) * size
        length = (count - first - gap) * size
        if up != 0:
            target, source, length = address + gap * size, address, first * size
        if size % 4 == 0:
            target_words = target.to(tl.pointer_type(tl.int32))
            source_words = source.to(tl.pointer_type(tl.int32))
            _moved(target_words, source_words, length // 4, up, T)
        else:
            target_bytes = target.to(tl.pointer_type(tl.int8))
            source_bytes = source.to(tl.pointer_type(tl.int8))
            _moved(target_bytes, source_bytes, length, up, T)
        box = tl.load(job + 9)
        if (head == 0) & (box != 0):
            start_at = box.to(tl.pointer_type(tl.int32))
            tl.store(start_at, (tl.load(start_at) + up * gap).to(tl.int32))
            count_at = start_at + tl.load(job + 10)
            tl.store(count_at, (count - gap).to(tl.int32))


def close_rows(leaving: Sequence[Leaving], picks: Tensor | None) -> list[Boxes]:
    """As `ops.close_rows`."""
    jobs: list[int] = []
    after, most_heads = [], 1
    for each in leaving:
        boxes, index = each.boxes, each.index
        fields = index.fields
        assert len(each.runs) == boxes.num_lanes
        # all lanes on the same side, so that they stay alike; where the host does not know the
        # rows, the newer ones, so that it knows all starts
        balance = sum(
            1 if pick >= 0 else 2 * first + gap - count
            for (first, gap, pick), count in zip(each.runs, boxes.counts, strict=True)
            if gap
        )
        is_known = all(pick < 0 for _, gap, pick in each.runs if gap)
        up = int(is_known and balance <= 0)
        base, starts, counts = 0, list(boxes.starts), list(boxes.counts)
        box = boxes.table.data_ptr()
        for lane, (first, gap, pick) in enumerate(each.runs):
            room, start, count = boxes.rooms[lane], starts[lane], counts[lane]
            if gap:
                said = (box + 4 * (2 * boxes.num_lanes + lane), boxes.num_lanes)
                for field in fields:
                    heads, size = field[HEADS], field[SIZE]
                    if size:
                        at = field[ADDRESS] + (heads * base + start) * size
                        jobs += (at, room * size, heads, size, count, first, gap, pick, up, *said)
                        said, most_heads = (0, 0), max(most_heads, heads)
                starts[lane] += up * gap
                counts[lane] -= gap
            base += room
        after.append(Boxes(boxes.table, boxes.rooms, tuple(starts), tuple(counts)))
    if jobs:
        device = leaving[0].boxes.table.device
        told = uploaded(jobs, dtype=torch.int64, device=device)
        # what is not read still needs a pointer
        close_kernel[(len(jobs) // COLUMNS, most_heads)](
            told, told if picks is None else picks, C=COLUMNS, T=UNITS, num_warps=8
        )
    return after
