"""What must hold of the Triton kernels, wherever they run: on a device, or interpreted.

Run as a program, all of it is tried interpreted and one line of JSON per check says how it went.
Each check has its reason to be: a shape that kernels of this kind are known to get wrong.
"""

import json
import os
import sys
import traceback
from dataclasses import dataclass, replace

import torch

from agentkv_kernels import lanes
from agentkv_kernels.boxes import Average
from tests.kernels.lane_rows import Lot


@dataclass(frozen=True)
class Attention:
    """One step over lanes (quantised rows, others), judged by the reference in float32."""

    lanes: list[tuple[int, int]]
    heads: int = 1
    group: int = 1
    head_dim: int = 16
    dtype: torch.dtype = torch.float32
    splits: tuple[int, ...] = (1, 3)
    sinks_of: int | None = None
    """Lanes of a sequence; None: no sinks."""
    absent: float = 0.0
    statistic: int | None = None

    def __call__(self, device):
        from agentkv_kernels.triton import attend as kernels

        lot = Lot(
            self.lanes,
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
        before = None if self.statistic is None else lot.statistic(self.statistic)
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
            # shares of the mass are kept in float16
            loose = {"atol": 1e-5 if atol < 1e-4 else atol / 10, "rtol": 1e-3}
            for lane in range(len(self.lanes)):
                mass = [stored.boxes.rows(x.mass, lane, 1) for x in (done, expected)]
                close(*mass, **loose)
            if average is not None:
                close(average.numbers, expected_average.numbers, equal_nan=True, **loose)


def moving(before):
    """What moves a copy of these numbers."""
    return None if before is None else Average(before.clone(), 0.75, 0.25, starts_at_mass=True)


def close(found, expected, **tolerance):
    torch.testing.assert_close(found, expected, **tolerance)


HALF, BRAIN = torch.float16, torch.bfloat16
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
            reason = traceback.format_exc()
        print(json.dumps({"check": name, "failed": reason}))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
