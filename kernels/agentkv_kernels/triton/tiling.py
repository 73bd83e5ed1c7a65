"""How the work of attention is divided among programs, for the kernels in `attend`."""

from dataclasses import dataclass
from functools import cache

import torch
import triton

ROWS = 64
"""Rows of a tile where a head has up to 128 channels."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """How programs divide the work; no choice of it changes what is computed."""

    heads: int
    """M."""
    columns: int
    """E."""
    rows: int
    """t."""
    uses_dot: bool
    """Whether products run on matrix units; else as sums of products in float32."""
    warps: int


def tiling(group: int, head_dim: int, dtype: torch.dtype) -> Tiling:
    """The tiling for so many query heads per key-value head.

    From 4 query heads on, sums of products would cost more than the bytes (`kernels/README.md`);
    rows of float32 keep to them all the same, as matrix units would round.
    """
    columns, heads = triton.next_power_of_2(head_dim), triton.next_power_of_2(group)
    # sizes that fit the registers and the shared memory, as the compiler reports them
    rows = ROWS if columns <= 128 else ROWS * 128 // columns
    if group >= 4 and dtype != torch.float32:
        # 16 is the least a matrix unit takes
        warps = 4 if columns <= 128 else 8
        return Tiling(max(heads, 16), max(columns, 16), rows, True, warps)
    rows = max(rows // heads, 16)
    # (M, t, E) products stand in registers at once: 64 a thread
    warps = min(max(heads * rows * columns // (64 * 32), 4), 16)
    return Tiling(heads, columns, rows, False, warps)


def splits(num_programs: int, num_rows: int, num_units: int) -> int:
    """In how many shares the rows of a head are read: two programs for every unit of the device,
    but not more shares than blocks of rows."""
    wanted = -(-2 * num_units // num_programs)
    return max(1, min(wanted, -(-num_rows // ROWS)))


@cache
def units_of(device: torch.device) -> int:
    """Multiprocessors of a device; of a processor, where kernels are interpreted, a few."""
    if device.type != "cuda":
        return 4
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
