"""How many bytes a full cache takes: the arithmetic behind a budget in bytes."""

import math
from dataclasses import dataclass

from agentkv.cache.coded import most_blocks
from agentkv.cache.geometry import Geometry
from agentkv.cache.ring import SPARE
from agentkv.cache.shape import LaneShape, lane_shape
from agentkv.policies.policy import Policy
from agentkv_kernels.ops import BLOCK


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


def row_size(shape: LaneShape) -> RowSize:
    """Bytes of a row in a lane of this shape."""
    heads, dim, form = shape.num_heads, shape.head_dim, shape.format
    coded = block = 0
    if form is not None:
        codes = 2 * heads * form.code_size(dim) * form.code_dtype.itemsize
        scales = 2 * heads * form.scale_size(dim) * form.scale_dtype.itemsize
        coded, block = (codes + 4, scales) if form.by_block else (codes + scales, 0)
    tracked = shape.tracked.dtype.itemsize * math.prod(shape.tracked.inner)
    return RowSize(
        dense=2 * heads * dim * shape.dtype.itemsize,
        coded=coded,
        block=block,
        about=4 + tracked + 4 * heads * shape.num_norms,
    )


def resting_bytes(policy: Policy, geometry: Geometry, batch: int) -> int:
    """The most bytes that a full cache holds between two steps under a fitted, bounded policy.

    How an allocator shares the budget out does not matter: all layers it acts on are alike, and
    bytes grow with rows by a straight line, or more slowly where old rows are quantised. Rows that
    rank decides on are all taken to be in the model's dtype.
    """
    ceiling, acted_on = policy.gate.ceiling, set(geometry.policy_layers)
    assert ceiling is not None and policy.gate.bounded
    total = 0
    for i, layer in enumerate(geometry.layers):
        shape = lane_shape(
            layer,
            policy if i in acted_on else None,
            dtype=geometry.dtype,
            num_q_heads=geometry.num_q_heads,
        )
        size, num_rows = row_size(shape), ceiling + policy.gate.slack
        if i not in acted_on:
            assert layer.window is not None
            total += size.lane(num_dense=layer.window, num_coded=0)
            continue
        if layer.window is not None:
            num_rows = min(num_rows, layer.window)
        num_dense = num_rows
        if (recent := policy.precision.recent) is not None:
            num_dense = min(num_rows, recent + BLOCK - 1)
        lanes = shape.per_sequence
        total += lanes * size.lane(num_dense=num_dense, num_coded=num_rows - num_dense)
        if shape.by_rank:
            # any row may be quantised, and a lane's last block of scales may be half empty
            total += lanes * most_blocks(num_rows) * size.block
        if policy.scorer.window:
            query = geometry.num_q_heads * layer.head_dim * geometry.dtype.itemsize + 4
            total += (policy.scorer.window + SPARE + 1) * query
    return total * batch
