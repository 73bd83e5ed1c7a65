"""Attention output without a gradient: what a cache stores has none."""

from typing import Any

import torch
from torch import Tensor

from agentkv.cache.misuse import Misuse


class WithoutGradient(torch.autograd.Function):
    """Passes the output of attention on, and refuses to compute its gradient."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, query: Tensor) -> Tensor:
        """Return `output` itself, tied to the graph of `query`."""
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Refuse. Raises Misuse."""
        raise Misuse(
            "a cache is for inference: what it stores has no gradient. Train the model without it, "
            "with use_cache=False"
        )
