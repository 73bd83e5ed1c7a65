"""Division of the work of attention among programs."""

from dataclasses import dataclass
from functools import cache

import torch
import triton

ENTRIES = 64
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
    """True if products run on matrix units; False for sums of products in float32."""
    warps: int


def tiling(group: int, head_dim: int, dtype: torch.dtype) -> Tiling:
    """Return the tiling for `group` query heads per key-value head.

    From 4 query heads on, sums of products take longer than loading the bytes
    (`kernels/README.md`). Entries in float32 use them anyway, because matrix units would round.
    """
    columns, heads = triton.next_power_of_2(head_dim), triton.next_power_of_2(group)
    # these sizes fit registers and shared memory, as the compiler reports them
    entries = ENTRIES if columns <= 128 else ENTRIES * 128 // columns
    if group >= 4 and dtype != torch.float32:
        # a matrix unit takes at least 16
        warps = 4 if columns <= 128 else 8
        return Tiling(max(heads, 16), max(columns, 16), entries, True, warps)
    entries = max(entries // heads, 16)
    # (M, t, E) products are in registers at once, 64 per thread
    warps = min(max(heads * entries * columns // (64 * 32), 4), 16)
    return Tiling(heads, columns, entries, False, warps)


def splits(num_programs: int, num_entries: int, num_units: int) -> int:
    """Return the number of shares per head: two programs per multiprocessor, but no more shares
    than tiles of entries."""
    wanted = -(-2 * num_units // num_programs)
    return max(1, min(wanted, -(-num_entries // ENTRIES)))


@cache
def units_of(device: torch.device) -> int:
    """Return the multiprocessors of a device; a few for a CPU, where kernels are interpreted."""
    if device.type != "cuda":
        return 4
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
