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
from torch import Tensor

from agentkv.cache.hf.hooked_cache import HookedCache
from agentkv.cache.hf.residual_shift import is_watched, mean_shift

MANY_TOKENS = 16
"""Tokens from which on oneDNN multiplies float32 faster than MKL, which uses half of an AMD
processor's vector width (measured: 250 against 114 billion operations a second on one core)."""


def forward(
    model: Any, cache: HookedCache, ids: Tensor, positions: Tensor, mask: Tensor | None
) -> Tensor:
    """Run all layers on new tokens, between `begin` and `finish` of the cache.

    Args:
        model: of a family in `decoder.PREFIXES`, as `read_decoder` accepts it.
        ids: (B, n).
        positions: (1 or B, n) rotary positions.
        mask: (B, columns), as the attention function receives it; None without padding.

    Returns:
        Hidden states (B, n, d) after the last norm.
    """
    base = model.model
    linear = _linear(ids.numel(), base.embed_tokens.weight.dtype)
    stream = F.embedding(ids, base.embed_tokens.weight)
    cosines, sines = (each.unsqueeze(1) for each in base.rotary_emb(stream, positions))
    for layer_idx, layer in enumerate(base.layers):
        attention, mlp = layer.self_attn, layer.mlp
        shape = (*ids.shape, -1, attention.head_dim)
        x = _norm(layer.input_layernorm, stream)
        q = linear(x, attention.q_proj).view(shape)
        keys = linear(x, attention.k_proj).view(shape)
        values = linear(x, attention.v_proj).view(shape).transpose(1, 2)
        if hasattr(attention, "q_norm"):
            q, keys = _norm(attention.q_norm, q), _norm(attention.k_norm, keys)
        q, keys = (_rotated(each.transpose(1, 2), cosines, sines) for each in (q, keys))
        handle, _ = cache.update(keys, values, layer_idx)
        mixed = cache.attend(attention, handle, q, mask, attention.scaling, None)
        added = linear(mixed.flatten(2), attention.o_proj)
        window = cache.shift_window if is_watched(layer) else 0
        if window > 0:
            cache.note_residual_shift(layer_idx, mean_shift(stream, added, mask, window))
        stream = stream + added
        x = _norm(layer.post_attention_layernorm, stream)
        gate = F.silu(linear(x, mlp.gate_proj))
        stream = stream + linear(gate.mul_(linear(x, mlp.up_proj)), mlp.down_proj)
    return _norm(base.norm, stream)


def _norm(module: Any, x: Tensor) -> Tensor:
    """Return the RMS norm, in float32 but for its weight."""
    single = x.to(torch.float32)
    share = torch.rsqrt(single.square().mean(-1, keepdim=True) + module.variance_epsilon)
    return module.weight * (single * share).to(x.dtype)  # type: ignore[no-any-return]


def _rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cosines + turned * sines


def _linear(num_tokens: int, dtype: torch.dtype) -> Callable[[Tensor, Any], Tensor]:
    """Return the function that applies a linear module to `num_tokens` tokens."""
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if num_tokens < MANY_TOKENS or dtype != torch.float32 or not has_onednn:
        return lambda x, module: F.linear(x, module.weight, module.bias)
    onednn = torch.ops.mkldnn._linear_pointwise
    return lambda x, module: onednn(x, module.weight, module.bias, "none", [], "")
