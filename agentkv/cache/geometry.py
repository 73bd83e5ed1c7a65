"""Shapes of a model's attention, and its output projections.

Shapes: B sequences, H key-value heads, G query heads of each, Q new tokens, D head size.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Shape of one attention layer."""

    num_heads: int
    """Key-value heads."""
    head_dim: int
    window: int | None
    """A token sees only tokens less than this many positions back; None: all."""
    frequencies: tuple[float, ...] | None = ()
    """Angles in radians by which rotary embedding turns a query from one position to the next, one
    for each pair of channels i and i + D / 2, 0 for a pair that it leaves; empty if the model has
    learned its positions. None: stored keys cannot be turned."""
    order: tuple[int, ...] | None = None
    """The D channels in an order in which i and i + D / 2 are a pair; None: they are as they
    stand."""
    projection: str = ""
    """Path of the output projection in the attention module; empty if there is none to read."""


@dataclass(frozen=True, slots=True)
class Hybrid:
    """Decoder layers of a model that does not attend in each."""

    num_layers: int
    """All decoder layers."""
    attending: tuple[int, ...]
    """Those that attend, in ascending order."""
    recurrent: tuple[int, ...]
    """Those that keep a recurrent state: linear attention, a short convolution or a state space. A
    layer may attend as well."""
    state_nbytes: int = 0
    """Bytes of the states of one sequence, if they were asked for."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Shape of a model."""

    family: str
    layers: tuple[LayerShape, ...]
    """Layers that attend to keys and values of their own. The cache, its policy and its budget
    count these alone."""
    num_q_heads: int
    dtype: torch.dtype
    max_positions: int | None
    """Positions that the model was made for; None if it names no number."""
    why_not_turned: str | None = None
    """Why stored keys of a layer cannot be turned to other positions; None if they can."""
    hybrid: Hybrid | None = None
    """Where these layers are among the decoder layers; None for a model that attends in each."""
    sources: tuple[int, ...] = ()
    """For each decoder layer after `layers`, the one of them whose keys and values it attends to;
    empty for most models."""
    why_not_watched: str | None = None
    """Why the residual shift of its layers cannot be read; None if it can."""

    @property
    def recurrent_layers(self) -> tuple[int, ...]:
        """Decoder layers that keep a recurrent state; empty for most models."""
        return () if self.hybrid is None else self.hybrid.recurrent

    @property
    def sharing(self) -> str | None:
        """Which layers attend to the keys of others, in a sentence without its period; None for no
        layer."""
        if not self.sources:
            return None
        whole = len(self.layers) + len(self.sources)
        return (
            f"{len(self.sources)} of {whole} layers attend to the keys and values of "
            f"{len(set(self.sources))} others, which are stored once"
        )

    @property
    def policy_layers(self) -> tuple[int, ...]:
        """Layers that a policy acts on: those without a window, or all if each has one."""
        full = tuple(i for i, layer in enumerate(self.layers) if layer.window is None)
        return full or tuple(range(len(self.layers)))

    @property
    def is_rotary(self) -> bool:
        """False for a model that learned an embedding of each position, and has no further ones."""
        return all(layer.frequencies != () for layer in self.layers)

    @property
    def is_all_windowed(self) -> bool:
        """True if no layer keeps more than a window of the model's own."""
        return all(layer.window is not None for layer in self.layers)

    @property
    def why_fixed(self) -> str | None:
        """Why tokens keep the rotary positions that they were stored with; None if they need
        not."""
        if not self.is_rotary:
            return f"{self.family} has learned its positions"
        return self.why_not_turned

    @property
    def can_turn(self) -> bool:
        """True if stored keys can be turned to other positions: nothing forbids it, and all
        frequencies are at hand."""
        return self.why_fixed is None and all(each.frequencies is not None for each in self.layers)


@dataclass(frozen=True, slots=True)
class LowRank:
    """A LoRA adapter of a projection."""

    down: Tensor
    """(H * G, D, r), by query head."""
    up: Tensor
    """(r, hidden size)."""
    scale: float


@dataclass(frozen=True, slots=True)
class Projection:
    """Output projection of an attention module, from its query heads to the residual stream."""

    weight: Tensor
    """(H * G, D, hidden size), by query head."""
    adapters: tuple[LowRank, ...] = ()
    """Active adapters, added to the weight."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Parameters that the attention module of a layer brings to a forward."""

    scale: float
    """Factor on the logits before the softmax."""
    sinks: Tensor | None
    """(H * G,) logits that join the softmax."""
    projection: Projection | None
    """Output projection; None unless the policy reads it."""

    def value_norms(self, values: Tensor, num_norms: int) -> Tensor:
        """Return L1 norms (B, H, Q, n) of values (B, H, Q, D) after the output projection, of every
        query head or their mean."""
        assert self.projection is not None
        weight, adapters = self.projection.weight, self.projection.adapters
        group = weight.shape[0] // values.shape[1]

        def added(g: int) -> Tensor:
            """Return what the values contribute through the g-th query head of each head."""
            out = values.to(weight.dtype) @ _by_group(weight, group)[:, g]
            for adapter in adapters:
                low = values.to(adapter.down.dtype) @ _by_group(adapter.down, group)[:, g]
                out = out + (low.to(adapter.up.dtype) @ adapter.up * adapter.scale).to(out.dtype)
            return out

        # one query head after another: all projected values would be G times the hidden size
        norms = [added(g).abs().sum(-1, dtype=torch.float32) for g in range(group)]
        stacked = torch.stack(norms, dim=-1)
        return stacked if num_norms == group else stacked.mean(-1, keepdim=True)


def _by_group(weight: Tensor, group: int) -> Tensor:
    """Return (H * G, ...) as (H, G, ...)."""
    return weight.view(-1, group, *weight.shape[1:])
