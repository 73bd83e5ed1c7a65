"""The decoder in plain torch, for any number of new tokens: how pages are read on a CPU.

It computes what transformers' code computes, in the same order and dtypes, with fewer calls and the
faster of torch's two matrix libraries.

Shapes: B sequences, n new tokens of each, d hidden size; H key-value heads, G query heads each, D
head size.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agentkv.cache.hf.hooked_cache import HookedCache
from agentkv.cache.hf.parts import DecoderParts, Projector, Turning
from agentkv.cache.hf.residual_shift import is_watched, mean_shift
from agentkv_kernels import decoder as numbers

MANY_TOKENS = 16
"""Tokens from which on oneDNN multiplies float32 faster than MKL, which uses half of an AMD
processor's vector width (measured: 250 against 114 billion operations a second on one core)."""


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
    table = parts.embedding.weight
    linear = _linear(ids.numel(), table.dtype)
    stream = _scaled(F.embedding(ids, table), parts.embedding_factor)
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
            angles[turning] = _angles(turning, positions, table.dtype)
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


def _linear(num_tokens: int, dtype: torch.dtype) -> Callable[[Tensor, Projector], Tensor]:
    """Return the function that applies a linear layer to `num_tokens` tokens."""
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if num_tokens < MANY_TOKENS or dtype != torch.float32 or not has_onednn:
        return lambda x, layer: F.linear(x, layer.weight, layer.bias)
    onednn = torch.ops.mkldnn._linear_pointwise
    return lambda x, layer: onednn(x, layer.weight, layer.bias, "none", [], "")
