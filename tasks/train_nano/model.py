"""The network of nano: a LlamaForCausalLM, its initial weights, and a pass over padded rows.

Shapes: B rows, T tokens, D width, H query heads, K key-value heads, E head size, N tokens counted.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from train_nano.attention import attend
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
"""A step of YaRN (arXiv 2309.00071, section 3): what turns less than once in 8,192 tokens, as many
as the longest rows have, turns at a quarter of its speed. The paper's ramp slows down faster ones,
too, and makes queries and keys longer, for long pages have many keys; ours are 1.07 times as
long."""


def configure(
    tokenizer: Tokenizer,
    *,
    width: int = 256,
    layers: int = 5,
    heads: int = 4,
    kv_heads: int = 2,
    inner: int = 704,
) -> LlamaConfig:
    """The architecture; 4.9 million parameters at the defaults with 2,304 tokens."""
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


def initialise(config: LlamaConfig, tokenizer: Tokenizer, *, seed: int) -> LlamaForCausalLM:
    """A model that learns to copy soon.

    Embeddings with deviation 0.5 and residual outputs at zero (measured: without them copying was
    not learnt in ten times the tokens). Tokens that differ in a leading space or in case begin as
    near neighbours, so that a name copied from a sentence into brackets is nearly the same token.
    The output head begins as the embeddings, scaled: with one of its own, copying began later.
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
        kin = {word: index for index, word in enumerate(dict.fromkeys(words))}
        family = torch.tensor([kin[word] for word in words])
        shared = torch.randn(len(kin), config.hidden_size)[family]
        own = torch.randn(size, config.hidden_size)
        alike = (shared * 0.8 + own * 0.6) * 0.5
        model.model.embed_tokens.weight.copy_(alike)
        model.lm_head.weight.copy_(alike * config.hidden_size**-0.5)
    return model


def weights_for(tokenizer: Tokenizer, folder: Path, *, seed: int) -> dict[str, Tensor]:
    """The weights of the model in `folder`, in float32, with a row for each token of `tokenizer`.

    Tokens that it has keep their embedding and their row of the output head. Others begin as a
    digit does plus a random mixture of how all tokens differ from the mean, the same mixture in
    both, so that what copies old tokens copies them too.

    Raises:
        ValueError: there is no tokenizer in `folder`.
    """
    path = folder / "tokenizer.json"
    if not path.exists():
        raise ValueError(f"{folder} has no tokenizer.json; expected the folder of a nano")
    weights = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    old, new = (of.get_vocab() for of in (Tokenizer.from_file(str(path)), tokenizer))
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


def pad(rows: Sequence[Sequence[float]], value: int) -> Tensor:
    """`rows` as one tensor (B, T), filled up on the right."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows])


def hidden_states(
    model: LlamaForCausalLM, ids: Tensor, positions: Tensor, counted: Tensor | None = None
) -> Tensor:
    """What the last layer gives for every token, normed: (B, T, D).

    The same arithmetic as transformers' own forward, without its mask making, which takes positions
    that skip ahead for packed sequences. Padding stands on the right, so causality hides it.

    Args:
        counted: (B, T) bool; given, only these tokens' N vectors come back, (N, D), row by row, and
            the last layer is spared all others. Of an episode it is every fifteenth token.
    """
    config = model.config
    heads = config.num_attention_heads
    dtype = torch.bfloat16 if torch.is_autocast_enabled(ids.device.type) else torch.float32
    cos, sin = _rotation(positions, heads, model.model.rotary_emb, dtype)
    x = model.model.embed_tokens(ids)  # (B, T, D) in float32
    *layers, last = model.model.layers
    for layer in layers:
        x = _layer(layer, config, x, cos, sin, dtype)
    x = _layer(last, config, x, cos, sin, dtype, counted)
    return _normed(x, model.model.norm.weight, config.rms_norm_eps, dtype)


def _layer(
    layer: Any,
    config: LlamaConfig,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    dtype: torch.dtype,
    counted: Tensor | None = None,
) -> Tensor:
    attention, mlp = layer.self_attn, layer.mlp
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    size = config.hidden_size // heads
    batch, length, _ = x.shape
    y = _normed(x, layer.input_layernorm.weight, config.rms_norm_eps, dtype)
    k = attention.k_proj(y).view(batch, length, kv_heads, size)
    v = attention.v_proj(y).view(batch, length, kv_heads, size)
    k = _rotated(k, cos[:, :, :kv_heads], sin[:, :, :kv_heads])
    if counted is None:
        q = _rotated(attention.q_proj(y).view(batch, length, heads, size), cos, sin)
        mixed = attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))  # (B, H, T, E)
        mixed = mixed.transpose(1, 2).reshape(batch, length, heads * size)
    else:
        x = x[counted]  # (N, D)
        q = attention.q_proj(y[counted]).view(1, -1, heads, size)
        q = _rotated(q, cos[counted][None], sin[counted][None])[0]  # (N, H, E)
        mixed = _attend_some(q, k, v, counted).reshape(-1, heads * size)
    x = x + attention.o_proj(mixed)
    y = _normed(x, layer.post_attention_layernorm.weight, config.rms_norm_eps, dtype)
    moved: Tensor = x + mlp.down_proj(F.silu(mlp.gate_proj(y)) * mlp.up_proj(y))
    return moved


def _attend_some(q: Tensor, k: Tensor, v: Tensor, counted: Tensor) -> Tensor:
    """Causal attention of the `counted` tokens: q (N, H, E), k and v (B, T, K, E) -> (N, H, E)."""
    mixed: list[Tensor] = []
    starts = torch.arange(counted.shape[1], device=q.device)
    for row, some in enumerate(q.split(counted.sum(1).tolist())):
        mask = starts[None] <= starts[counted[row]][:, None]  # (n, T)
        out = F.scaled_dot_product_attention(
            some.transpose(0, 1)[None],
            k[row].transpose(0, 1)[None],
            v[row].transpose(0, 1)[None],
            attn_mask=mask,
            enable_gqa=True,
        )
        mixed.append(out[0].transpose(0, 1))
    return torch.cat(mixed)


class _Norm(torch.autograd.Function):
    """RMS norm in few passes over memory; on a CPU the composed one takes a fifth of a step."""

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


def _normed(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    normed: Tensor = _Norm.apply(x, weight, eps, dtype)  # type: ignore[no-untyped-call]
    return normed


class _Rotate(torch.autograd.Function):
    """Rotary positions without needless copies: x (B, T, H, E), cos and sin (B, T, H, E / 2)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turned(grads[0], cos, sin, -1), None, None


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    turned: Tensor = _Rotate.apply(x, cos, sin)  # type: ignore[no-untyped-call]
    return turned


def _turned(x: Tensor, cos: Tensor, sin: Tensor, way: int) -> Tensor:
    turned = torch.empty_like(x, memory_format=torch.contiguous_format)
    first, second = x.chunk(2, dim=-1)
    to_first, to_second = turned.chunk(2, dim=-1)
    torch.mul(first, cos, out=to_first)
    torch.mul(second, cos, out=to_second)
    to_first.addcmul_(second, sin, value=-way)
    to_second.addcmul_(first, sin, value=way)
    return turned


def _rotation(
    positions: Tensor, heads: int, rotary: LlamaRotaryEmbedding, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    angles = positions[:, :, None, None].to(torch.float32) * rotary.inv_freq  # (B, T, 1, E / 2)
    scale = rotary.attention_scaling
    cos, sin = (angles.cos() * scale).to(dtype), (angles.sin() * scale).to(dtype)
    return cos.repeat(1, 1, heads, 1), sin.repeat(1, 1, heads, 1)


def export(model: LlamaForCausalLM, folder: Path) -> None:
    """Write weights (bfloat16) and configuration for transformers' from_pretrained."""
    state = {name: tensor.to(torch.bfloat16) for name, tensor in model.state_dict().items()}
    copy = LlamaForCausalLM(model.config)
    # What runs it should compute in float32: bfloat16 decodes slower on a CPU at this width.
    copy.config.dtype = torch.float32
    copy.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        eos_token_id=model.config.eos_token_id, pad_token_id=model.config.pad_token_id
    )
    copy.save_pretrained(folder, state_dict=state)
    path = folder / "config.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    rope = values["rope_parameters"]  # transformers before 5 looks for its parts elsewhere
    values["rope_theta"] = rope["rope_theta"]
    values["rope_scaling"] = {name: rope[name] for name in rope if name != "rope_theta"}
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    (folder / "model.safetensors").chmod(0o644)  # it is written for its owner alone
