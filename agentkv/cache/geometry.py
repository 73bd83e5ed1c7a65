"""The shape of a model's attention, as far as a cache must know it."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What the cache must know of one attention layer."""

    num_heads: int
    """Key-value heads."""
    head_dim: int
    window: int | None
    """A token sees only those less than this many positions back; None for all."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """What the cache must know of a model."""

    family: str
    layers: tuple[LayerShape, ...]
    num_q_heads: int
    dtype: torch.dtype
    max_positions: int | None
    """Positions the model has at all; None where rotation has no end."""

    @property
    def policy_layers(self) -> tuple[int, ...]:
        """Layers a policy acts on: those without a window; all, if every layer has one."""
        full = tuple(i for i, layer in enumerate(self.layers) if layer.window is None)
        return full or tuple(range(len(self.layers)))


@dataclass(frozen=True, slots=True)
class LowRank:
    """An adapter of two matrices, as it adds to a projection."""

    down: Tensor
    """(H * G, D, r), by query head."""
    up: Tensor
    """(r, hidden size)."""
    scale: float


@dataclass(frozen=True, slots=True)
class Projection:
    """The projection of an attention module from its query heads back to the residual stream."""

    weight: Tensor
    """(H * G, D, hidden size), by query head."""
    adapters: tuple[LowRank, ...] = ()
    """Low-rank updates that adapters add to the weight."""
