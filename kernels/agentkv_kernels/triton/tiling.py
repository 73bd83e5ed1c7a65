"""Division of the work of attention among programs."""

from dataclasses import dataclass
from functools import cache

import torch
import triton

ROWS = 64
"""Entries per tile for heads of up to 128 channels."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """A division of the work. It affects speed, not results beyond rounding."""

    heads: int
    """M."""
    columns: int
    """E."""
    entries: int
    """t."""
    uses_dot: bool
    """Whether products run on matrix units; else as sums of products in float32."""
    warps: int


def tiling(group: int, head_dim: int, dtype: torch.dtype) -> Tiling:
    """The tiling for so many query heads per key-value head.

    From 4 query heads on, sums of products would cost more than the bytes (`kernels/README.md`);
    entries of float32 keep to them all the same, as matrix units would round.
    """
    columns, heads = triton.next_power_of_2(head_dim), triton.next_power_of_2(group)
    # sizes that fit the registers and the shared memory, as the compiler reports them
    entries = ROWS if columns <= 128 else ROWS * 128 // columns
    if group >= 4 and dtype != torch.float32:
        # 16 is the least a matrix unit takes
        warps = 4 if columns <= 128 else 8
        return Tiling(max(heads, 16), max(columns, 16), entries, True, warps)
    entries = max(entries // heads, 16)
    # (M, t, E) products stand in registers at once: 64 a thread
    warps = min(max(heads * entries * columns // (64 * 32), 4), 16)
    return Tiling(heads, columns, entries, False, warps)


def splits(num_programs: int, num_entries: int, num_units: int) -> int:
    """In how many shares the entries of a head are read: two programs for every unit of the device,
    but not more shares than blocks of entries."""
    wanted = -(-2 * num_units // num_programs)
    return max(1, min(wanted, -(-num_entries // ROWS)))


@cache
def units_of(device: torch.device) -> int:
    """Multiprocessors of a device; of a processor, where kernels are interpreted, a few."""
    if device.type != "cuda":
        return 4
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
