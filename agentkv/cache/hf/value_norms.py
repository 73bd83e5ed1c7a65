"""Norms of values after the output projection, for policies that weigh entries by them.

Shapes: B sequences, H key-value heads, G query heads of each, Q new tokens, D head size.
"""

import torch
from torch import Tensor

from agentkv.cache.geometry import Attention


def value_norms(values: Tensor, attention: Attention, num_norms: int) -> Tensor:
    """Return L1 norms (B, H, Q, n) of values (B, H, Q, D) after the output projection, of every
    query head or their mean."""
    projection = attention.projection
    assert projection is not None
    weight, adapters = projection.weight, projection.adapters
    group = weight.shape[0] // values.shape[1]

    def added(g: int) -> Tensor:
        """Return what the values contribute through the g-th query head of each head."""
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
    """Return (H * G, ...) as (H, G, ...)."""
    return weight.view(-1, group, *weight.shape[1:])
