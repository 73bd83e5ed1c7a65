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
    weight, adapters = projection.weight, projection.adapters
    group = weight.shape[0] // values.shape[1]

    def added(g: int) -> Tensor:
        """(B, H, Q, hidden size): what the values add by each head's g-th query head."""
        out = values.to(weight.dtype) @ _by_group(weight, group)[:, g]
        for adapter in adapters:
            low = values.to(adapter.down.dtype) @ _by_group(adapter.down, group)[:, g]
            out = out + (low.to(adapter.up.dtype) @ adapter.up * adapter.scale).to(out.dtype)
        return out

    # one query head after another: all projected values at once would be G times the hidden size
    norms = [added(g).abs().sum(-1, dtype=torch.float32) for g in range(group)]
    stacked = torch.stack(norms, dim=-1)
    return stacked if num_norms == group else stacked.mean(-1, keepdim=True)


def _by_group(weight: Tensor, group: int) -> Tensor:
    """(H * G, ...) as (H, G, ...)."""
    return weight.view(-1, group, *weight.shape[1:])
