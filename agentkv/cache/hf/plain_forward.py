"""The decoder in plain torch, for any number of new tokens: how pages are read on a CPU.

It computes what transformers' code computes, in the same order and dtypes, with fewer calls and the
faster of torch's two matrix libraries.

Shapes: B sequences, n new tokens of each, d hidden size; H key-value heads, G query heads each, D
head size.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agentkv.cache.hf.hooked_cache import HookedCache
from agentkv.cache.hf.parts import DecoderParts, Projector, Turning
from agentkv.cache.hf.residual_shift import is_watched, mean_shift
from agentkv.weights.linear import QuantizedEmbedding, QuantizedLinear
from agentkv.weights.products import Activations
from agentkv_kernels import decoder as numbers
from agentkv_kernels.processor import multiplies

MANY_TOKENS = 16
"""Tokens from which on oneDNN multiplies float32 faster than MKL, which uses half of an AMD
processor's vector width (measured: 250 against 114 billion operations a second on one core)."""


CONVERTED = 1 << 20
"""Numbers of a weight in 16 bits that are turned to float32 at a time: 4 MiB, which caches hold."""


def forward(
    parts: DecoderParts, cache: HookedCache, ids: Tensor, positions: Tensor, mask: Tensor | None
) -> Tensor:
    """Run all layers on new tokens, between `begin` and `finish` of the cache.

    Args:
        ids: (B, n).
        positions: (1 or B, n) rotary positions.
        mask: (B, columns), as the attention function receives it; None without padding.

    Returns:
        Hidden states (B, n, d) after the last norm.
    """
    dtype, linear = parts.dtype, linear_for(ids.numel(), parts.dtype)
    stream = _scaled(_embedded(parts.embedding, ids), parts.embedding_factor)
    if parts.norms_embedding:
        stream = _normed(parts.norm, stream)
    growth = parts.query_scales(positions)
    angles: dict[Turning, tuple[Tensor, Tensor]] = {}
    for layer_idx, layer in enumerate(parts.layers):
        attention, mlp = layer.attention, layer.mlp
        shape = (*ids.shape, -1, attention.module.head_dim)
        x = _normed(layer.norm, stream)
        q, keys, values = (linear(x, each) for each in attention.qkv)
        if attention.limit:
            for each in (q, keys, values):
                each.clamp_(-attention.limit, attention.limit)
        if attention.where == numbers.ALL_HEADS:
            q, keys = map(_normed, attention.norms, (q, keys))
        q, keys, values = (each.view(shape) for each in (q, keys, values))
        if attention.where == numbers.EACH_HEAD:
            q, keys = map(_normed, attention.norms, (q, keys))
        turning = attention.turning
        if turning not in angles:
            angles[turning] = _angles(turning, positions, dtype)
        q, keys = (_turned(each, turning, *angles[turning]) for each in (q, keys))
        if attention.where == numbers.TURNED_HEADS:
            q, keys = map(_normed, attention.norms, (q, keys))
        if growth is not None:
            q = q * growth[:, :, None, None].to(q.dtype)
        q, keys, values = (each.transpose(1, 2) for each in (q, keys, values))
        handle, _ = cache.update(keys, values, layer_idx)
        mixed = cache.attend(attention.module, handle, q, mask, attention.module.scaling, None)
        added = linear(mixed.flatten(2), attention.output)
        added = _scaled(_normed(layer.attended_norm, added), layer.factor)
        window = cache.shift_window if is_watched(layer.module) else 0
        if window > 0:
            cache.note_residual_shift(layer_idx, mean_shift(stream, added, mask, window))
        attended = stream + added
        x = _normed(layer.mlp_norm, stream if layer.is_parallel else attended)
        gate = mlp.activation.forward(linear(x, mlp.gate))
        if mlp.up is not None:
            gate = gate.mul_(linear(x, mlp.up))
        added = _normed(layer.last_mlp_norm, linear(gate, mlp.down))
        stream = attended + _scaled(added, layer.factor)
    return _normed(parts.norm, stream)


def _normed(norm: nn.Module | None, x: Tensor) -> Tensor:
    # the forward itself, because hooks on norms are for transformers' way
    return x if norm is None else norm.forward(x)


def _embedded(embedding: Any, ids: Tensor) -> Tensor:
    """Return the rows of ids, without the factor that some embeddings apply."""
    if isinstance(embedding, QuantizedEmbedding):
        return embedding.rows(ids)
    return F.embedding(ids, embedding.weight)


def _scaled(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1 else x * factor


def _angles(turning: Turning, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines (1 or B, n, 1, P) of positions."""
    angles = positions[..., None, None].float() * torch.tensor(turning.frequencies)
    cosines, sines = (each * turning.scale for each in (angles.cos(), angles.sin()))
    return cosines.to(dtype), sines.to(dtype)


def _turned(x: Tensor, turning: Turning, cosines: Tensor, sines: Tensor) -> Tensor:
    """Return heads (B, n, heads, D) after rotation."""
    stop = turning.step * len(turning.frequencies)
    first = slice(0, stop, turning.step)
    second = slice(turning.distance, turning.distance + stop, turning.step)
    one, other, out = x[..., first], x[..., second], x.clone()
    out[..., first] = one * cosines - other * sines
    out[..., second] = other * cosines + one * sines
    return out


def linear_for(num_tokens: int, dtype: torch.dtype) -> Callable[[Tensor, Projector], Tensor]:
    """Return the function that applies a linear layer to `num_tokens` tokens."""
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    is_converted = not multiplies(dtype)
    is_fast = num_tokens >= MANY_TOKENS and has_onednn and (is_converted or dtype == torch.float32)
    product = _onednn if is_fast else F.linear
    latest: tuple[Tensor, Activations] | None = None
    """Layers of a page that read the same activations follow each other."""

    def linear(x: Tensor, layer: Projector) -> Tensor:
        nonlocal latest
        if isinstance(layer.module, QuantizedLinear):
            if latest is None or latest[0] is not x:
                latest = x, Activations(x)
            return layer.module.outputs(latest[1], layer.span)
        if is_converted:
            return _in_float32(product, x, layer.weight, layer.bias)
        return product(x, layer.weight, layer.bias)

    return linear


Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return found


def _in_float32(product: Product, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply in float32 by way of a copy of some rows of the weight at a time, and round once."""
    num_rows, width = weight.shape
    step = min(num_rows, max(1, CONVERTED // width))
    out, own = x.new_empty(*x.shape[:-1], num_rows), x.float()
    scratch = torch.empty(step, width)
    for first in range(0, num_rows, step):
        rows = slice(first, min(first + step, num_rows))
        part = scratch[: rows.stop - first].copy_(weight[rows])
        out[..., rows] = product(own, part, None if bias is None else bias[rows].float())
    return out
