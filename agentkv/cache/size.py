"""How many bytes a full cache takes: the arithmetic behind a budget in bytes."""

from dataclasses import dataclass

import torch

from agentkv.cache.coded import most_blocks
from agentkv.cache.geometry import Geometry
from agentkv.cache.ring import SPARE
from agentkv.policies.policy import Policy
from agentkv_kernels.ops import BLOCK, Format, format_of


@dataclass(frozen=True, slots=True)
class RowSize:
    """Bytes of one row of one lane of W heads."""

    dense: int
    """Keys and values in the model's dtype."""
    coded: int
    """Keys and values quantised, with what says how; scales by block not included."""
    block: int
    """The scales of one block."""
    about: int
    """Position, statistic, norms."""

    def lane(self, *, num_dense: int, num_coded: int) -> int:
        """The most bytes a lane takes, a block of unused room in every table included."""
        rows = num_dense + num_coded
        held = (num_dense + BLOCK) * self.dense + (rows + BLOCK) * self.about
        if self.coded:
            held += (num_coded + BLOCK) * self.coded + most_blocks(num_coded) * self.block
        return held


def row_size(
    *,
    num_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    format: Format | None = None,
    tracked: int = 0,
    num_norms: int = 0,
) -> RowSize:
    """Bytes of a row in a lane of `num_heads` heads.

    Args:
        tracked: bytes of a row's statistic.  num_norms: float32 numbers per head.
    """
    coded = block = 0
    if format is not None:
        codes = 2 * num_heads * format.code_size(head_dim) * format.code_dtype.itemsize
        scales = 2 * num_heads * format.scale_size(head_dim) * format.scale_dtype.itemsize
        coded, block = (codes + 4, scales) if format.by_block else (codes + scales, 0)
    return RowSize(
        dense=2 * num_heads * head_dim * dtype.itemsize,
        coded=coded,
        block=block,
        about=4 + tracked + 4 * num_heads * num_norms,
    )


def resting_bytes(policy: Policy, geometry: Geometry, batch: int) -> int:
    """The most bytes that a full cache holds between two steps under a fitted, bounded policy.

    How an allocator shares the budget out does not matter: all layers it acts on are alike, and
    bytes grow with rows by a straight line, or more slowly where old rows are quantised. Rows that
    rank decides on are all taken to be in the model's dtype.
    """
    ceiling = policy.gate.ceiling
    assert ceiling is not None and policy.gate.bounded
    acted_on, total = set(geometry.policy_layers), 0
    for i, layer in enumerate(geometry.layers):
        num_heads, group = layer.num_heads, geometry.num_q_heads // layer.num_heads
        if i not in acted_on:
            assert layer.window is not None
            size = row_size(num_heads=num_heads, head_dim=layer.head_dim, dtype=geometry.dtype)
            total += size.lane(num_dense=layer.window, num_coded=0)
            continue
        num_rows = ceiling + policy.gate.slack
        if layer.window is not None:
            num_rows = min(num_rows, layer.window)
        tracker, norms = policy.scorer.tracker, policy.selector.norms
        lanes = 1 if policy.allocator.shared or policy.scorer.by_age else num_heads
        form = policy.precision.format
        size = row_size(
            num_heads=num_heads // lanes,
            head_dim=layer.head_dim,
            dtype=geometry.dtype,
            format=None if form is None else format_of(form),
            tracked=0 if tracker is None else tracker.size * tracker.dtype.itemsize,
            num_norms={None: 0, "mean": 1, "each": group}[norms],
        )
        num_dense = num_rows
        if (recent := policy.precision.recent) is not None:
            num_dense = min(num_rows, recent + BLOCK - 1)
        total += lanes * size.lane(num_dense=num_dense, num_coded=num_rows - num_dense)
        if policy.precision.by_rank:
            # any row may be quantised, and a lane's last block of scales may be half empty
            total += lanes * most_blocks(num_rows) * size.block
        if policy.scorer.window:
            query = geometry.num_q_heads * layer.head_dim * geometry.dtype.itemsize + 4
            total += (policy.scorer.window + SPARE + 1) * query
    return total * batch
