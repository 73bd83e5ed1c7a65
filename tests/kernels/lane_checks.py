"""What must hold of the Triton kernels, wherever they run: on a device, or interpreted.

Run as a program, all of it is tried interpreted and one line of JSON per check says how it went.
Each check has its reason to be: a shape that kernels of this kind are known to get wrong.
"""

import json
import os
import sys
import traceback
from dataclasses import dataclass, fields, is_dataclass, replace

import torch

from agentkv_kernels import lanes_kept
from agentkv_kernels.formats import BLOCK
from agentkv_kernels.ragged import Average
from tests.kernels.lane_rows import Lot
from tests.kernels.leave_checks import Leave


@dataclass(frozen=True)
class Attention:
    """One step over lanes (quantized rows, others), judged by the reference in float32."""

    lanes: list[tuple[int, int]]
    heads: int = 1
    group: int = 1
    head_dim: int = 16
    dtype: torch.dtype = torch.float32
    splits: tuple[int, ...] = (1, 3)
    sinks_of: int | None = None
    """LayerStorage of a sequence; None: no sinks."""
    absent: float = 0.0
    statistic: int | None = None

    def __call__(self, device):
        from agentkv_kernels.triton import attend as kernels

        lot = Lot(
            self.storage,
            heads=self.heads,
            head_dim=self.head_dim,
            dtype=self.dtype,
            absent=self.absent,
            device=device,
        )
        stored, q = lot.stored, lot.queries(self.group)
        sinks = None
        if self.sinks_of is not None:
            sinks = lot.numbers(self.sinks_of * self.heads * self.group).to(device)
        seen = {"scale": 0.3 / self.head_dim**0.5, "sinks": sinks, "with_mass": True}
        whole = replace(
            stored.dense, keys=stored.dense.keys.float(), values=stored.dense.values.float()
        )
        before = None if self.statistic is None else lot.tracked(self.statistic)
        expected_average = moving(before)
        expected = lanes.attend_lanes(
            q.float(), replace(stored, dense=whole), average=expected_average, **seen
        )
        # float16 products round to 2**-11 of values up to about 8, bfloat16 ones to 2**-8
        atol = {torch.float32: 5e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[self.dtype]
        for num_splits in self.splits:
            average = moving(before)
            done = kernels.attend_lanes(q, stored, average=average, num_splits=num_splits, **seen)
            assert done.output.dtype == self.dtype
            close(done.output.float(), expected.output, atol=atol, rtol=0)
            # logits are exact whatever the dtype; shares of the mass are kept in float16
            loose = {"atol": 1e-5, "rtol": 1e-3}
            for lane in range(len(self.storage)):
                mass = [stored.boxes.rows(x.mass, lane, 1) for x in (done, expected)]
                close(*mass, **loose)
            if average is not None:
                close(average.numbers, expected_average.numbers, equal_nan=True, **loose)
        seen["with_mass"] = False
        plain = kernels.attend_lanes(q, stored, num_splits=self.splits[-1], **seen)
        assert plain.mass is None
        close(plain.output.float(), expected.output, atol=atol, rtol=0)


@dataclass(frozen=True)
class Append:
    """New rows until some left, over lanes (quantized rows, others): exactly as the reference."""

    lanes: list[tuple[int, int]]
    heads: int = 1
    head_dim: int = 16
    dtype: torch.dtype = torch.float32
    recent: int | None = None
    steps: int = 2
    numbers: torch.dtype | None = None

    def __call__(self, device):
        from agentkv_kernels.triton import append as kernels

        lot = Lot(
            self.storage,
            heads=self.heads,
            head_dim=self.head_dim,
            dtype=self.dtype,
            behind=BLOCK + self.steps,
            device=device,
        )
        # halves to be rounded, channels of any size, one of zeros
        for flat in (lot.stored.dense.keys, lot.stored.dense.values):
            flat[:, 1:3] = flat[:, 1:3].mul(4).round().div(8)
            flat[:, 3] *= 2.0**100 if self.dtype != HALF else 2.0**-10
            # the interpreter reads bfloat16 below 2**-126 wrongly
            flat[:, 4] *= 2.0**-126 if self.dtype != BRAIN else 2.0**-110
            flat[:, 5] = 0
        numbers = None if self.numbers is None else lot.tracked(3).to(self.numbers)
        found, expected = (copied(lot.stored) for _ in range(2))
        carried = [None if numbers is None else numbers.clone() for _ in range(2)]
        for step in range(self.steps):
            shape = len(self.storage), self.heads, self.head_dim
            keys, values = (lot.numbers(*shape).to(device, self.dtype) for _ in range(2))
            positions = torch.arange(len(self.storage), dtype=torch.int32, device=device)
            new = {"positions": positions, "plus": 7 * step, "recent": self.recent}
            found = kernels.append_row(found, keys, values, numbers=carried[0], **new)
            expected = lanes.append_row(expected, keys, values, numbers=carried[1], **new)
        same(found, expected)
        if numbers is not None:
            close(*carried, atol=0, rtol=0, equal_nan=True)


@dataclass(frozen=True)
class Compaction:
    """A share of the rows of lanes (quantized rows, others) stays, and then some lanes' blocks are
    merged: exactly as the reference."""

    lanes: list[tuple[int, int]]
    kept: float
    heads: int = 1
    head_dim: int = 16
    dtype: torch.dtype = torch.float32
    carried: bool = True

    def __call__(self, device):
        from agentkv_kernels.triton import compact as kernels

        lot = Lot(
            self.storage,
            heads=self.heads,
            head_dim=self.head_dim,
            dtype=self.dtype,
            device=device,
        )
        stored = lot.stored
        num_rows = stored.positions.shape[0]
        chosen = [(torch.rand(c + d, generator=lot.draw) < self.kept) for c, d in self.storage]
        picks = torch.full((len(self.storage), stored.boxes.most + 1), 1 << 30, dtype=torch.int32)
        for lane, stays in enumerate(chosen):
            picks[lane, : int(stays.sum())] = stays.nonzero()[:, 0]
        how = {
            "counts": [int(stays.sum()) for stays in chosen],
            "coded_counts": [
                int(stays[:c].sum()) for stays, (c, _) in zip(chosen, self.storage, strict=True)
            ],
            "spare": 3,
        }
        if self.carried:
            norms = lot.numbers(self.heads * num_rows, 2)
            how["carried"] = [lot.tracked(5).to(torch.float16), norms.to(device)]
        results = []
        for how_made in (kernels, lanes_kept):
            after, carried = how_made.compact(stored, picks.to(device), **how)
            rows = rows_in_use(after, carried)
            if after.coded is not None:
                merges = [lane % 3 != 1 for lane in range(len(self.storage))]
                merged = how_made.merge_blocks(after.coded, merges, num_heads=self.heads)
                rows += rows_in_use(replace(after, coded=merged), [])
            results.append(rows)
        assert len(results[0]) == len(results[1])
        for one, other in zip(*results, strict=True):
            close(one, other, atol=0, rtol=0)


def rows_in_use(stored, carried):
    """All that the lanes hold, and the tables of their boxes, one tensor after another."""
    heads, num_rows = stored.num_heads, stored.positions.shape[0]
    fields = [(stored.boxes, x, x.shape[0] // max(num_rows, 1)) for x in carried]
    fields += [(stored.boxes, stored.positions, 1)]
    fields += [(stored.dense.boxes, x, heads) for x in (stored.dense.keys, stored.dense.values)]
    if (coded := stored.coded) is not None:
        fields += [(coded.boxes, x, heads) for x in (coded.keys, coded.values)]
        fields += [(coded.boxes, coded.block_ids, 1)]
        exponents = coded.key_exponents, coded.value_exponents
        fields += [(coded.blocks, x, heads) for x in exponents]
    rows = [box.rows(x, lane, n) for box, x, n in fields for lane in range(stored.num_segments)]
    return rows + [box.table for box, _, _ in fields]


def copied(stored):
    """The same rows in memory of their own."""
    values = {field.name: getattr(stored, field.name) for field in fields(stored) if field.init}
    for name, value in values.items():
        if isinstance(value, torch.Tensor):
            values[name] = value.clone()
        elif is_dataclass(value):
            values[name] = copied(value)
    return type(stored)(**values)


def same(found, expected):
    """That all rows and boxes are alike to the bit, and the room around them too."""
    for field in fields(expected):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        if is_dataclass(other):
            same(one, other)
        elif isinstance(other, torch.Tensor):
            close(one, other, atol=0, rtol=0, equal_nan=True)
        else:
            assert one == other, f"{field.name}: {one}, not {other}"


def moving(before):
    """What moves a copy of these numbers."""
    return None if before is None else Average(before.clone(), 0.75, 0.25, starts_at_mass=True)


def close(found, expected, **tolerance):
    torch.testing.assert_close(found, expected, **tolerance)


HALF, BRAIN = torch.float16, torch.bfloat16
FIELDS = ((1, 1, torch.int32), (2, 24, HALF), (2, 3, torch.int8), (1, 0, torch.float32))
CHECKS = {
    "one token": Attention([(0, 1)], head_dim=8, statistic=1),
    "ragged lanes": Attention(
        [(70, 9), (0, 130), (65, 0), (1, 1), (0, 0)], heads=2, group=2, statistic=2
    ),
    "nothing stored": Attention([(0, 0), (0, 0)], sinks_of=1),
    "more shares than rows, and sinks": Attention(
        [(3, 2), (0, 7)], group=3, sinks_of=2, splits=(5,)
    ),
    "rows that are not there": Attention(
        [(100, 40), (30, 3)], group=2, absent=0.5, sinks_of=1, statistic=1
    ),
    "no row that is there": Attention([(5, 5), (0, 2)], absent=1.0),
    "matrix units": Attention(
        [(70, 9), (130, 65)], heads=2, group=4, dtype=HALF, sinks_of=1, statistic=1
    ),
    "matrix units, one KV head, odd sizes": Attention(
        [(77, 3), (0, 66)], group=5, head_dim=60, dtype=HALF, sinks_of=2, absent=0.2
    ),
    "float32 rows of many query heads": Attention([(20, 20)], group=7, head_dim=10, sinks_of=1),
    "all that a matrix unit takes": Attention([(9, 9)], group=16, dtype=HALF, splits=(1,)),
    "bfloat16 rows": Attention([(66, 70)], group=1, dtype=BRAIN, head_dim=24),
    "a row more, nothing quantized": Append([(0, 0), (3, 70), (0, 5)], heads=2, head_dim=12),
    "a row more, and a block that leaves": Append(
        [(64, 66), (0, 67), (5, 3)], heads=2, recent=4, numbers=torch.float32
    ),
    "all rows are to be quantized": Append([(0, 63), (7, 62)], dtype=HALF, recent=0, steps=3),
    "bfloat16 rows leave": Append(
        [(0, 70), (70, 80)], dtype=BRAIN, head_dim=20, recent=7, numbers=torch.uint8
    ),
    "some rows stay": Compaction([(150, 20), (0, 70), (3, 0), (0, 0), (66, 66)], 0.6, heads=2),
    "hardly any rows stay": Compaction([(70, 90), (200, 5)], 0.05, head_dim=24, dtype=BRAIN),
    "all rows stay, none quantized": Compaction([(0, 5), (0, 66)], 1.1, carried=False),
    "no rows stay": Compaction([(70, 3), (2, 2)], 0.0),
    "old rows go": Leave([70, 5, 9], [(2, 1), (0, 3), (4, 0)], FIELDS),
    "new rows go": Leave([700, 50, 9], [(100, 200), (49, 1), (0, 0)], FIELDS),
    "rows go that the host does not know": Leave([300, 7], [(3, 1), (6, 1)], FIELDS, unseen=True),
    "large heads": Attention([(40, 40)], group=4, dtype=HALF, head_dim=200, splits=(2,)),
}
"""By what is special about each. The interpreter knows no products of bfloat16, nor its integers:
matrix units with it are tried on a device only."""

ON_A_DEVICE = {
    "bfloat16 on matrix units": Attention(
        [(130, 70), (70, 3)], heads=2, group=8, dtype=BRAIN, head_dim=128, sinks_of=1, statistic=1
    ),
    "long lanes": Attention(
        [(4000, 200), (3000, 1)], heads=4, group=5, dtype=HALF, head_dim=128, splits=(1, 33)
    ),
}


def main():
    assert os.environ.get("TRITON_INTERPRET") == "1"
    for name, check in CHECKS.items():
        try:
            check("cpu")
            reason = None
        except Exception:
            # the edge of this process: whatever a kernel raised is told by name, and the test fails
            reason = traceback.format_exc()
        print(json.dumps({"check": name, "failed": reason}))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
