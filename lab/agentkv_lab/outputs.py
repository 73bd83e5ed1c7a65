"""A text's last token in each layer: its attention, and the projected values that it adds up.

Shapes: H key-value heads, G query heads of each, w last queries, T entries, D head size, d hidden
size.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agentkv.cache.cache import Cache
from agentkv.cache.eviction.view import View
from agentkv.cache.spans import NO_PINS
from agentkv.policies.registry import policy


@dataclass(frozen=True, slots=True)
class LayerOutput:
    """Attention of the last queries in one layer, and the projected values."""

    attention: Tensor
    """(H, G, w, T) float32: weights of the last w queries, the last token's own last of all."""
    values: Tensor
    """(H, T, D) float32."""
    projected: Tensor
    """(H, G, T, d) float32: each value after the part of the output projection that belongs to the
    query head. The last token's output is their sum, weighted by its attention."""

    @property
    def weights(self) -> Tensor:
        """(H, G, T): attention of the last token."""
        return self.attention[:, :, -1]


def output_without(layer: LayerOutput, kept: Tensor) -> Tensor:
    """Return what the output of the last token lacks, by query head, if it attends to a part of the
    entries, (H, G, d).

    Args:
        kept: (H, T) bool, at least one entry of each head.

    Source: CriticalKV (arXiv 2502.03805), equations 5 and 6; Ada-KV (arXiv 2407.11550), theorem 1.
    """
    weights = layer.weights
    left = weights * kept[:, None]
    lost = weights - left / left.sum(dim=-1, keepdim=True)
    return (lost[:, :, None] @ layer.projected).squeeze(2)


@torch.inference_mode()
def read_outputs(model: Any, ids: Sequence[int], window: int) -> Iterator[LayerOutput]:
    """Yield the layers after a full cache has read a text.

    Args:
        window: last queries whose attention is computed.

    Raises:
        ValueError: the output projection cannot be read, or is not in the cache's reach.
    """
    # a policy that reads the output projection, with room for all
    reading = policy("critical-snapkv", window=window)
    cache = Cache.for_model(
        model, policy=reading, budget=len(ids) + 1, prefill="whole", dtype=torch.float32
    )
    cache.feed(model, torch.tensor([ids], device=model.device))
    for layer in cache.cache_layers:
        unit = layer.unit(0)
        entries = View([unit]).entries(
            num_seen=len(ids), sinks=0, protected=0, spans=(), pins=NO_PINS
        )
        attention, values = entries.attention(), entries.keys_values()[1]
        projection = unit.attention.projection
        assert projection is not None and not projection.adapters, "adapters are merged"
        num_heads, group = attention.shape[:2]
        weight = projection.weight.to(torch.float32)
        by_group = weight.view(num_heads, group, *weight.shape[1:])  # (H, G, D, d)
        yield LayerOutput(attention, values, values[:, None] @ by_group)
