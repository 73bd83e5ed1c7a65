"""Looking back in plain torch: the entries of the best blocks.

Shapes: T entries of a segment.
"""

import torch
from torch import Tensor


def best_blocks(
    positions: Tensor,
    scores: Tensor,
    hidden: Tensor,
    *,
    oldest: int,
    blocks: int,
    block: int,
    least: float,
) -> Tensor:
    """Return the numbers (n,) of the entries in the best blocks, in order of position.

    A block is as good as the best of its entries that may be fetched; of equal ones the lower
    number wins.

    Args:
        positions: (T,) int32, all different.
        scores: (T,) float32, none below 0.
        hidden: (m,) int64, numbers of entries that may not be fetched.
        oldest: lowest position that may be fetched.
        blocks: how many blocks.
        block: positions of a block: 0..block - 1 are the first one.
        least: score of a block below which it is not fetched.
    """
    is_free = positions >= oldest
    is_free[hidden] = False
    numbers, rows = torch.unique(positions[is_free] // block, return_inverse=True)
    best = scores.new_zeros(numbers.shape[0]).scatter_reduce_(0, rows, scores[is_free], "amax")
    order = best.argsort(descending=True, stable=True)[:blocks]
    chosen = numbers[order[best[order] >= least]]
    found = (torch.isin(positions // block, chosen) & is_free).nonzero().squeeze(1)
    return found[positions[found].argsort()]
