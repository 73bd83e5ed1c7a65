"""One new token per lane of a layer on a processor, and rows that go: tensors to `steps`, `drops`.

What is served: `limits`. Importing this imports Numba, which takes half a second.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from agentkv_kernels.formats import BLOCK
from agentkv_kernels.index import Rack
from agentkv_kernels.numba import drops, steps

LOG2_E = 1.4426950408889634


def take_row(
    rack: Rack,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    scale: float,
    sinks: Tensor | None,
    mass: Tensor | None,
    motion: tuple[float, float, bool],
) -> Tensor | None:
    """As `ops.take_row`."""
    q, keys, values = q.contiguous(), keys.contiguous(), values.contiguous()
    output = torch.empty_like(q)
    extra, num_sinks = 0, 0
    if sinks is not None:
        sinks = sinks.detach().to(torch.float32).contiguous()
        extra, num_sinks = sinks.data_ptr(), rack.per_sequence
    done = steps.step(
        rack.address,
        q.shape[1] // keys.shape[1],
        scale * LOG2_E,
        q.data_ptr(),
        keys.data_ptr(),
        values.data_ptr(),
        extra,
        num_sinks,
        output.data_ptr(),
        0 if mass is None else mass.data_ptr(),
        *motion,
    )
    return output if done else None


def drop_rows(racks: Sequence[Rack], rows: Sequence[Sequence[int]]) -> bool:
    """As `ops.drop_rows`."""
    most = max(map(len, rows))
    # from the last on, so that the numbers of the others stay what they are
    filled = [[*sorted(of_lane, reverse=True), *[-1] * (most - len(of_lane))] for of_lane in rows]
    addresses = np.array([rack.address for rack in racks], np.int64)
    return bool(drops.drop(addresses, np.array(filled, np.int64), BLOCK))


def keep_rows(racks: Sequence[Rack], masks: Sequence[int]) -> bool:
    """As `ops.keep_rows`."""
    addresses = np.array([rack.address for rack in racks], np.int64)
    return bool(drops.keep(addresses, np.array(masks, np.int64), BLOCK))
