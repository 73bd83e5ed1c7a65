"""What every lane of a layer looks like under a policy."""

from dataclasses import dataclass

import torch

from agentkv.cache.geometry import LayerShape
from agentkv.cache.table import Field
from agentkv.policies.policy import Policy
from agentkv_kernels.ops import Format, format_of

NOTHING = Field(1, (0,), torch.float32)
"""A statistic of no numbers."""


@dataclass(frozen=True, slots=True)
class LaneShape:
    """What every lane of a layer looks like."""

    per_sequence: int
    """S: 1 where all heads keep the same rows, else one for each head."""
    num_heads: int
    """W."""
    head_dim: int
    dtype: torch.dtype
    format: Format | None
    """Of quantised rows; None where there are none."""
    tracked: Field
    """The statistic each row carries along; of no numbers if it carries none."""
    num_norms: int
    """Norms of each row's value per head; 0 for none."""
    by_rank: bool
    """Whether rank decides what is quantised, so that storage order is not that of positions."""


def lane_shape(
    layer: LayerShape, policy: Policy | None, *, dtype: torch.dtype, num_q_heads: int
) -> LaneShape:
    """The lanes that `policy` needs in a layer; None: heads keep whatever their window shows."""
    heads = layer.num_heads
    if policy is None:
        return LaneShape(1, heads, layer.head_dim, dtype, None, NOTHING, 0, False)
    # what goes by age alone goes for all heads alike
    shared = policy.allocator.shared or policy.scorer.by_age
    tracker, form = policy.scorer.tracker, policy.precision.format
    return LaneShape(
        per_sequence=1 if shared else heads,
        num_heads=heads if shared else 1,
        head_dim=layer.head_dim,
        dtype=dtype,
        format=None if form is None else format_of(form),
        tracked=NOTHING if tracker is None else Field(1, (tracker.size,), tracker.dtype),
        num_norms={None: 0, "mean": 1, "each": num_q_heads // heads}[policy.selector.norms],
        by_rank=policy.precision.by_rank,
    )
