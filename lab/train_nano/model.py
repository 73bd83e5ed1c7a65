"""Network of nano: a LlamaForCausalLM, its initial weights and the training forward pass.

Shapes: B rows, T tokens, D width, H query heads, K key-value heads, E head size, N selected tokens,
V vocabulary.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from train_nano.attention import attend, attend_some
from train_nano.tokenizer import PAD

ROPE = {
    "rope_type": "yarn",
    "rope_theta": 100_000.0,
    "original_max_position_embeddings": 8192,
    "factor": 4.0,
    "beta_fast": 1.0,
    "beta_slow": 1.0,
    "attention_factor": 1.07,
}
"""YaRN (arXiv 2309.00071, section 3) with a step instead of its ramp.

Frequencies with less than one turn in 8,192 tokens, the length of the longest rows, are divided by
four; the paper's ramp also slows some faster ones. Queries and keys are scaled by 1.07, which
sharpens attention over the many keys of a long page."""


def configure(
    tokenizer: Tokenizer,
    *,
    width: int = 256,
    layers: int = 5,
    heads: int = 4,
    kv_heads: int = 2,
    inner: int = 704,
) -> LlamaConfig:
    """Return the architecture; the defaults have 4.9 million parameters with 2,304 tokens."""
    return LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=32768,
        rope_parameters=dict(ROPE),
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        pad_token_id=tokenizer.token_to_id(PAD),
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id("<|end|>"),
        dtype="float32",
    )


def initialize(config: LlamaConfig, tokenizer: Tokenizer, *, seed: int) -> LlamaForCausalLM:
    """Create a model whose initial weights make copying easy to learn.

    * Embeddings have a standard deviation of 0.5 and residual outputs start at zero. Without both,
      the model did not learn to copy in ten times the tokens.
    * Tokens that differ only in a leading space or in case start as near neighbors, so a name
      copied from a sentence into brackets is nearly the same token.
    * The output head starts as the scaled embeddings. With independent weights copying came later.
    """
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    size = config.vocab_size
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.zero_()
            elif parameter.dim() == 2:
                parameter.normal_(std=config.hidden_size**-0.5)
        words = [tokenizer.decode([index]).strip().lower() for index in range(size)]
        groups = {word: index for index, word in enumerate(dict.fromkeys(words))}
        group = torch.tensor([groups[word] for word in words])
        shared = torch.randn(len(groups), config.hidden_size)[group]
        individual = torch.randn(size, config.hidden_size)
        embeddings = (shared * 0.8 + individual * 0.6) * 0.5
        model.model.embed_tokens.weight.copy_(embeddings)
        model.lm_head.weight.copy_(embeddings * config.hidden_size**-0.5)
    return model


def load_weights(tokenizer: Tokenizer, folder: Path, *, seed: int) -> dict[str, Tensor]:
    """Load the weights in `folder` as float32 and adapt them to the vocabulary of `tokenizer`.

    Shared tokens keep their embedding and their row of the output head. A new token starts as the
    mean digit plus a random mixture of all tokens' deviations from the mean. Embedding and output
    head use the same mixture, so the circuits that copy old tokens also copy new ones.

    Raises:
        ValueError: `folder` has no tokenizer.
    """
    path = folder / "tokenizer.json"
    if not path.exists():
        raise ValueError(f"{folder} has no tokenizer.json; name the folder of an exported nano")
    weights = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    old, new = Tokenizer.from_file(str(path)).get_vocab(), tokenizer.get_vocab()
    if old == new:
        return weights
    tokens = sorted(new, key=new.__getitem__)
    added = torch.tensor([token not in old for token in tokens])
    kept = torch.tensor([old.get(token, 0) for token in tokens])
    digits = torch.tensor([old[digit] for digit in "0123456789"])
    random = torch.Generator().manual_seed(seed)
    mixture = torch.randn(int(added.sum()), len(old), generator=random) / len(old) ** 0.5
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        rows = weights[name]
        weights[name] = rows[kept]
        weights[name][added] = rows[digits].mean(0) + mixture @ (rows - rows.mean(0))
    return weights


def pad(rows: Sequence[Sequence[float]], dtype: type[np.generic]) -> Tensor:
    """Stack `rows` into one tensor (B, T), padded with zeros on the right."""
    padded = np.zeros((len(rows), max(map(len, rows))), dtype)
    for line, row in zip(padded, rows, strict=True):
        line[: len(row)] = row
    return torch.from_numpy(padded)


def hidden_states(
    model: LlamaForCausalLM, ids: Tensor, positions: Tensor, chosen: Tensor | None = None
) -> Tensor:
    """Compute the normalized hidden states of the last layer, (B, T, D).

    The arithmetic equals transformers' forward. Its mask code is bypassed because it treats gaps in
    the positions as boundaries of packed sequences. Causality hides the padding on the right.

    Args:
        chosen: increasing indices of N tokens among all B * T; if given, the result holds only
            these, (N, D), and the last layer skips the others. In an episode about every fifteenth
            token has a loss.
    """
    config = model.config
    heads = config.num_attention_heads
    dtype = torch.bfloat16 if torch.is_autocast_enabled(ids.device.type) else torch.float32
    cos, sin = _rotary_tables(positions, heads, model.model.rotary_emb, dtype)
    x = model.model.embed_tokens(ids)  # (B, T, D) in float32
    *layers, last = model.model.layers
    for layer in layers:
        x = _layer(layer, config, x, cos, sin, dtype)
    x = _layer(last, config, x, cos, sin, dtype, chosen)
    return _rms_norm(x, model.model.norm.weight, config.rms_norm_eps, dtype)


def _layer(
    layer: Any,
    config: LlamaConfig,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    dtype: torch.dtype,
    chosen: Tensor | None = None,
) -> Tensor:
    attention, mlp = layer.self_attn, layer.mlp
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    size = config.hidden_size // heads
    batch, length, _ = x.shape
    y = _rms_norm(x, layer.input_layernorm.weight, config.rms_norm_eps, dtype)
    k = attention.k_proj(y).view(batch, length, kv_heads, size)
    v = attention.v_proj(y).view(batch, length, kv_heads, size)
    k = _apply_rotary(k, cos[:, :, :kv_heads], sin[:, :, :kv_heads])
    if chosen is None:
        q = _apply_rotary(attention.q_proj(y).view(batch, length, heads, size), cos, sin)
        mixed = attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))  # (B, H, T, E)
        mixed = mixed.transpose(1, 2).reshape(batch, length, heads * size)
    else:
        x, y, cos, sin = (each.flatten(0, 1).index_select(0, chosen) for each in (x, y, cos, sin))
        q = attention.q_proj(y).view(1, -1, heads, size)
        q = _apply_rotary(q, cos[None], sin[None])[0]  # (N, H, E)
        mixed = attend_some(q, k, v, chosen).reshape(-1, heads * size)
    x = x + attention.o_proj(mixed)
    y = _rms_norm(x, layer.post_attention_layernorm.weight, config.rms_norm_eps, dtype)
    moved: Tensor = x + mlp.down_proj(F.silu(mlp.gate_proj(y)) * mlp.up_proj(y))
    return moved


class _Norm(torch.autograd.Function):
    """RMS norm with few passes over memory; composed operations take a fifth of a step on a CPU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = scale.square_().div_(x.shape[-1]).add_(eps).rsqrt_()  # (B, T, 1)
        normed = x * scale
        ctx.save_for_backward(normed, scale, weight)
        scaled: Tensor = (normed * weight).to(dtype)
        return scaled

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        normed, scale, weight = ctx.saved_tensors
        grad = grads[0].to(torch.float32)
        product = grad * normed
        for_weight = product.flatten(0, -2).sum(0)
        mean = (product @ weight).div_(weight.shape[0]).unsqueeze(-1)  # (B, T, 1)
        return (grad * weight).addcmul_(normed, mean, value=-1).mul_(scale), for_weight, None, None


def _rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    normed: Tensor = _Norm.apply(x, weight, eps, dtype)  # type: ignore[no-untyped-call]
    return normed


class _Rotate(torch.autograd.Function):
    """Rotary embedding without extra copies: x (B, T, H, E), cos and sin (B, T, H, E / 2)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotate(x, cos, sin, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotate(grads[0], cos, sin, -1), None, None


def _apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    rotated: Tensor = _Rotate.apply(x, cos, sin)  # type: ignore[no-untyped-call]
    return rotated


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, sign: int) -> Tensor:
    rotated = torch.empty_like(x, memory_format=torch.contiguous_format)
    first, second = x.chunk(2, dim=-1)
    out_first, out_second = rotated.chunk(2, dim=-1)
    torch.mul(first, cos, out=out_first)
    torch.mul(second, cos, out=out_second)
    out_first.addcmul_(second, sin, value=-sign)
    out_second.addcmul_(first, sin, value=sign)
    return rotated


def _rotary_tables(
    positions: Tensor, heads: int, rotary: LlamaRotaryEmbedding, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    angles = positions[:, :, None, None].to(torch.float32) * rotary.inv_freq  # (B, T, 1, E / 2)
    scale = rotary.attention_scaling
    cos, sin = (angles.cos() * scale).to(dtype), (angles.sin() * scale).to(dtype)
    return cos.repeat(1, 1, heads, 1), sin.repeat(1, 1, heads, 1)


def export(model: LlamaForCausalLM, folder: Path) -> None:
    """Write bfloat16 weights and the configuration for transformers' from_pretrained."""
    state = {name: tensor.to("cpu", torch.bfloat16) for name, tensor in model.state_dict().items()}
    copy = LlamaForCausalLM(model.config)
    # Inference should use float32: at this width bfloat16 decodes slower on a CPU.
    copy.config.dtype = torch.float32
    copy.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        eos_token_id=model.config.eos_token_id, pad_token_id=model.config.pad_token_id
    )
    copy.save_pretrained(folder, state_dict=state)
    path = folder / "config.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    rope = values["rope_parameters"]  # transformers before 5 reads rope_theta and rope_scaling
    values["rope_theta"] = rope["rope_theta"]
    values["rope_scaling"] = {name: rope[name] for name in rope if name != "rope_theta"}
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    (folder / "model.safetensors").chmod(0o644)  # save_pretrained makes it private to the owner
