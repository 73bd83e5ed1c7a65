"""Pools along the rows of a lane: a row is worth something beside one that is.

Filled-up places at a lane's front hold zeros and scores are never negative, so that a lane is
pooled beside a longer one as it is by itself.
"""

from typing import Literal

from torch import Tensor
from torch.nn import functional

from agentkv.policies.parameters import require_odd, require_one_of

Pool = Literal["max", "avg"]


def pooled(scores: Tensor, kernel: int, pool: Pool) -> Tensor:
    """(..., T) pooled along its last dimension, the length staying.

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
    """Raises PolicyError for a kernel or a kind of pool that there is not."""
    require_odd("kernel", kernel)
    require_one_of("pool", pool, ("max", "avg"))
