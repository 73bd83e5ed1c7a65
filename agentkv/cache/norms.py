"""How large a row's value is once the output projection has read it.

Shapes: B sequences, H key-value heads, G query heads of each, Q new tokens, D head size.
"""

import torch
from torch import Tensor

from agentkv.cache.view import Attention


def norms_of(values: Tensor, attention: Attention, num_norms: int) -> Tensor:
    """(B, H, Q, n): L1 norms of values (B, H, Q, D) after the output projection, of every query
    head or their mean."""
    projection = attention.projection
    assert projection is not None
    group = projection.shape[0] // values.shape[1]
    by_group = projection.view(-1, group, *projection.shape[1:])
    # one query head after another: all projected values at once would be G times the hidden size
    norms = [
        (values.to(projection.dtype) @ by_group[:, g]).abs().sum(-1, dtype=torch.float32)
        for g in range(group)
    ]
    stacked = torch.stack(norms, dim=-1)
    return stacked if num_norms == group else stacked.mean(-1, keepdim=True)
