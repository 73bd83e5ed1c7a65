"""Pools along the entries of a segment: neighbors of a high score score higher.

Padding at the front of a segment is zero and scores are never negative, so a segment has the same
pooled scores alone and beside a longer one.
"""

from typing import Literal

from torch import Tensor
from torch.nn import functional

from agentkv.policies.parameters import require_odd, require_one_of

Pool = Literal["max", "avg"]


def pooled(scores: Tensor, kernel: int, pool: Pool) -> Tensor:
    """Pool (..., T) along its last dimension; the shape stays.

    Args:
        kernel: odd; 1 changes nothing.
        pool: "avg" pads with zeros and always divides by `kernel`; "max" pads with -inf.
    """
    if kernel == 1 or scores.shape[-1] == 0:
        return scores
    lines = scores.reshape(-1, 1, scores.shape[-1])
    if pool == "max":
        lines = functional.max_pool1d(lines, kernel, 1, kernel // 2)
    else:
        lines = functional.avg_pool1d(lines, kernel, 1, kernel // 2)
    return lines.reshape(scores.shape)


def require_pool(kernel: object, pool: object) -> None:
    """Check kernel and kind of pool. Raises PolicyError."""
    require_odd("kernel", kernel)
    require_one_of("pool", pool, ("max", "avg"))
