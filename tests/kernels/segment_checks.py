"""Checks of the Triton kernels against their reference, on a device or interpreted.

Run as a program, the module tries every check interpreted and prints one line of JSON per check.
Each check covers a shape that kernels of this kind are known to get wrong.
"""

import json
import os
import sys
import traceback
from dataclasses import dataclass, fields, is_dataclass, replace

import torch

from agentkv_kernels.ema import Ema
from tests.kernels import segments as reference
from tests.kernels.drop_checks import DropRuns
from tests.kernels.random_segments import RandomSegments


@dataclass(frozen=True)
class Attention:
    """One step over segments (quantised entries, others), judged by the reference in float32."""

    segments: list[tuple[int, int]]
    heads: int = 1
    group: int = 1
    head_dim: int = 16
    dtype: torch.dtype = torch.float32
    splits: tuple[int, ...] = (1, 3)
    sinks_of: int | None = None
    """Segments of a sequence; None: no sinks."""
    tracked: int | None = None

    def __call__(self, device):
        from agentkv_kernels.triton import attention as kernels

        lot = RandomSegments(
            self.segments,
            heads=self.heads,
            head_dim=self.head_dim,
            dtype=self.dtype,
            device=device,
        )
        stored, q = lot.stored, lot.queries(self.group)
        sinks = None
        if self.sinks_of is not None:
            sinks = lot.numbers(self.sinks_of * self.heads * self.group).to(device)
        seen = {"scale": 0.3 / self.head_dim**0.5, "sinks": sinks, "with_mass": True}
        in_float32 = replace(
            stored.dense, keys=stored.dense.keys.float(), values=stored.dense.values.float()
        )
        before = None if self.tracked is None else lot.tracked(self.tracked)
        ema = None if before is None else Ema(0.75, 0.25, starts_at_mass=True)
        expected_numbers = copy_of(before)
        expected = reference.attend_segments(
            q.float(), replace(stored, dense=in_float32), ema=ema, tracked=expected_numbers, **seen
        )
        # float16 products round to 2**-11 of values up to about 8, bfloat16 ones to 2**-8
        atol = {torch.float32: 5e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[self.dtype]
        for num_splits in self.splits:
            numbers = copy_of(before)
            done = kernels.attend_segments(
                q, stored, ema=ema, tracked=numbers, num_splits=num_splits, **seen
            )
            assert done.output.dtype == self.dtype
            close(done.output.float(), expected.output, atol=atol, rtol=0)
            # logits are exact whatever the dtype; shares of the mass are kept in float16
            loose = {"atol": 1e-5, "rtol": 1e-3}
            for segment in range(len(self.segments)):
                mass = [stored.layout.entries(x.mass, segment, 1) for x in (done, expected)]
                close(*mass, **loose)
            if numbers is not None:
                close(numbers, expected_numbers, equal_nan=True, **loose)
        seen["with_mass"] = False
        plain = kernels.attend_segments(q, stored, num_splits=self.splits[-1], **seen)
        assert plain.mass is None
        close(plain.output.float(), expected.output, atol=atol, rtol=0)


@dataclass(frozen=True)
class Append:
    """Appends entries to segments (quantized entries, others), exactly as the reference does."""

    segments: list[tuple[int, int]]
    heads: int = 1
    head_dim: int = 16
    dtype: torch.dtype = torch.float32
    steps: int = 2
    numbers: torch.dtype | None = None

    def __call__(self, device):
        from agentkv_kernels.triton import append as kernels

        lot = RandomSegments(
            self.segments,
            heads=self.heads,
            head_dim=self.head_dim,
            dtype=self.dtype,
            behind=self.steps,
            device=device,
        )
        numbers = None if self.numbers is None else lot.tracked(3).to(self.numbers)
        found, expected = (copied(lot.stored) for _ in range(2))
        carried = [None if numbers is None else numbers.clone() for _ in range(2)]
        for step in range(self.steps):
            shape = len(self.segments), self.heads, self.head_dim
            keys, values = (lot.numbers(*shape).to(device, self.dtype) for _ in range(2))
            positions = torch.arange(len(self.segments), dtype=torch.int32, device=device)
            new = {"positions": positions, "plus": 7 * step}
            found = kernels.append_entry(found, keys, values, tracked=carried[0], **new)
            expected = reference.append_entry(expected, keys, values, tracked=carried[1], **new)
        same(found, expected)
        if numbers is not None:
            close(*carried, atol=0, rtol=0, equal_nan=True)


def copied(stored):
    """The same entries in their own memory."""
    values = {field.name: getattr(stored, field.name) for field in fields(stored) if field.init}
    for name, value in values.items():
        if isinstance(value, torch.Tensor):
            values[name] = value.clone()
        elif is_dataclass(value):
            values[name] = copied(value)
    return type(stored)(**values)


def same(found, expected):
    """All entries, layouts and unused capacity are equal to the bit."""
    for field in fields(expected):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        if is_dataclass(other):
            same(one, other)
        elif isinstance(other, torch.Tensor):
            close(one, other, atol=0, rtol=0, equal_nan=True)
        else:
            assert one == other, f"{field.name}: {one}, not {other}"


def copy_of(x):
    return None if x is None else x.clone()


def close(found, expected, **tolerance):
    torch.testing.assert_close(found, expected, **tolerance)


HALF, BRAIN = torch.float16, torch.bfloat16
FIELDS = ((1, 1, torch.int32), (2, 24, HALF), (2, 3, torch.int8), (1, 0, torch.float32))
CHECKS = {
    "one token": Attention([(0, 1)], head_dim=8, tracked=1),
    "ragged segments": Attention(
        [(70, 9), (0, 130), (65, 0), (1, 1), (0, 0)], heads=2, group=2, tracked=2
    ),
    "nothing stored": Attention([(0, 0), (0, 0)], sinks_of=1),
    "more shares than entries, and sinks": Attention(
        [(3, 2), (0, 7)], group=3, sinks_of=2, splits=(5,)
    ),
    "matrix units": Attention(
        [(70, 9), (130, 65)], heads=2, group=4, dtype=HALF, sinks_of=1, tracked=1
    ),
    "matrix units, one KV head, odd sizes": Attention(
        [(77, 3), (0, 66)], group=5, head_dim=60, dtype=HALF, sinks_of=2
    ),
    "float32 entries of many query heads": Attention([(20, 20)], group=7, head_dim=10, sinks_of=1),
    "all that a matrix unit takes": Attention([(9, 9)], group=16, dtype=HALF, splits=(1,)),
    "bfloat16 entries": Attention([(66, 70)], group=1, dtype=BRAIN, head_dim=24),
    "one more entry": Append([(0, 0), (3, 70), (0, 5)], heads=2, head_dim=12),
    "one more entry with a statistic": Append(
        [(64, 66), (0, 67), (5, 3)], heads=2, numbers=torch.float32
    ),
    "one more entry in bfloat16": Append(
        [(0, 70), (70, 80)], dtype=BRAIN, head_dim=20, numbers=torch.uint8
    ),
    "old entries are dropped": DropRuns([70, 5, 9], [(2, 1), (0, 3), (4, 0)], FIELDS),
    "new entries are dropped": DropRuns([700, 50, 9], [(100, 200), (49, 1), (0, 0)], FIELDS),
    "the device alone knows which entries are dropped": DropRuns(
        [300, 7], [(3, 1), (6, 1)], FIELDS, unseen=True
    ),
    "large heads": Attention([(40, 40)], group=4, dtype=HALF, head_dim=200, splits=(2,)),
}
"""By what is special about each. The interpreter knows no products of bfloat16, nor its integers:
matrix units with it are tried on a device only."""

ON_A_DEVICE = {
    "bfloat16 on matrix units": Attention(
        [(130, 70), (70, 3)], heads=2, group=8, dtype=BRAIN, head_dim=128, sinks_of=1, tracked=1
    ),
    "long segments": Attention(
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
