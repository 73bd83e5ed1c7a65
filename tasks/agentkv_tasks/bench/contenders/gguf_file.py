"""A model as a GGUF file, the format of llama.cpp, written from its weights without a conversion
script or a tokenizer.

Shapes: H heads, D head size.
"""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from agentkv.cache.hf.families import describe
from agentkv.weights.linear import QuantizedEmbedding, QuantizedLinear
from agentkv_tasks.bench.errors import BenchError

ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""Families that can be written, with the architecture that llama.cpp calls them."""

FORMATS = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
"""Formats of weights, which stay in the model's own dtype. Norms and biases are F32, because
llama.cpp computes with them in no other."""

FIXED_ROTATIONS = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings whose frequencies are the same at every length."""

_LINEAR = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_NORMS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}
_BIASED = {"llama": frozenset(_LINEAR), "qwen2": frozenset(list(_LINEAR)[:3]), "qwen3": frozenset()}
"""Linear layers whose bias llama.cpp reads, by architecture."""


def require_writable(model: Any) -> None:
    """Check that a model can be written, without touching its weights.

    Raises:
        BenchError: the model has a part that the file cannot say; the message names the part and
            what it may be instead.
    """
    obstacle = _obstacle(model)
    if obstacle is not None:
        raise BenchError(obstacle)


def write_gguf(model: Any, path: Path) -> None:
    """Write a model of `ARCHITECTURES` on the CPU to a new file, in the format of its weights.

    The vocabulary consists of as many nameless tokens as the embedding has rows.

    Raises:
        BenchError: as `require_writable`; nothing is written.
        OSError: the file cannot be written.
    """
    require_writable(model)
    gguf: Any = importlib.import_module("gguf")
    arch = ARCHITECTURES[model.config.model_type]
    writer = gguf.GGUFWriter(path, arch)
    try:
        _add_numbers(writer, model)
        for name, tensor, form in _tensors(model, arch):
            found, kind = tensor.detach().contiguous(), gguf.GGMLQuantizationType[form]
            if form == "BF16":
                # NumPy knows no such numbers, so the bytes are passed
                shape = [*found.shape[:-1], found.shape[-1] * found.element_size()]
                content = found.view(torch.uint8).numpy().reshape(shape)
            else:
                content = gguf.quantize(found.float().numpy(), kind)
            writer.add_tensor(name, content, None, kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def _obstacle(model: Any) -> str | None:
    """Return why a model cannot be written; None if it can."""
    config, family = model.config, str(model.config.model_type)
    if family not in ARCHITECTURES:
        return f"its file can be written for {', '.join(ARCHITECTURES)}, not for {family}"
    if config.hidden_act != "silu":
        return f"its activation must be silu; found {config.hidden_act}"
    rotary, arch = model.model.rotary_emb, ARCHITECTURES[family]
    # only this architecture reads factors of the frequencies
    known = FIXED_ROTATIONS if arch == "llama" else ("default",)
    if rotary.rope_type not in known:
        return f"rope of {family} must be {' or '.join(known)}; found {rotary.rope_type}"
    shape = describe(model)
    if any(layer.window is not None for layer in shape.layers):
        return "all layers must attend to everything; found sliding windows"
    head_dim = shape.layers[0].head_dim
    if 2 * len(rotary.inv_freq) != head_dim:
        return f"rope must turn whole heads; found {2 * len(rotary.inv_freq)} of {head_dim} numbers"
    if arch == "qwen2" and head_dim * shape.num_q_heads != config.hidden_size:
        return f"heads of qwen2 must fill {config.hidden_size} numbers; found {head_dim} per head"
    if model.dtype not in FORMATS:
        return f"weights must be {', '.join(map(str, FORMATS))}; found {model.dtype}"
    if model.device.type != "cpu":
        return f"it is compared on the CPU; the model is on {model.device}"
    for name in _LINEAR:
        linear = model.model.layers[0].get_submodule(name)
        is_float = type(linear) is nn.Linear and linear.weight.dtype == model.dtype
        if not (is_float or isinstance(linear, QuantizedLinear)):
            return f"{name} must be linear in {model.dtype}; found {type(linear).__name__}"
        if linear.bias is not None and name not in _BIASED[arch]:
            return f"{name} of {family} must have no bias"
    return None


def _add_numbers(writer: Any, model: Any) -> None:
    config, shape = model.config, describe(model)
    head = shape.layers[0]
    writer.add_block_count(len(shape.layers))
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(shape.num_q_heads)
    writer.add_head_count_kv(head.num_heads)
    writer.add_key_length(head.head_dim)
    writer.add_value_length(head.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(head.head_dim)
    writer.add_rope_freq_base(_rope_base(config))
    writer.add_rope_scaling_attn_factors(float(model.model.rotary_emb.attention_scaling))
    writer.add_vocab_size(model.lm_head.out_features)
    writer.add_tokenizer_model("no_vocab")


def _rope_base(config: Any) -> float:
    # transformers before 5 has it beside the other parameters
    parameters = getattr(config, "rope_parameters", None) or {}
    return float(parameters.get("rope_theta", getattr(config, "rope_theta", 10_000.0)))


def _tensors(model: Any, arch: str) -> Iterator[tuple[str, Tensor, str]]:
    """Yield names, tensors and formats. Quantized weights are numbers that their format holds
    without rounding."""
    base = model.model

    def form(module: Any) -> str:
        is_packed = isinstance(module, QuantizedLinear | QuantizedEmbedding)
        return module.format.upper() if is_packed else FORMATS[model.dtype]

    yield "token_embd.weight", base.embed_tokens.weight, form(base.embed_tokens)
    yield "output_norm.weight", base.norm.weight, "F32"
    if not _share(model.lm_head, base.embed_tokens):
        yield "output.weight", model.lm_head.weight, form(model.lm_head)
    if base.rotary_emb.rope_type != "default":
        yield "rope_freqs.weight", _frequency_factors(base.rotary_emb, model.config), "F32"
    head_dim = describe(model).layers[0].head_dim
    for number, layer in enumerate(base.layers):
        for name, theirs in _LINEAR.items():
            linear = layer.get_submodule(name)
            is_turned = arch == "llama" and theirs in ("attn_q", "attn_k")
            for part, tensor in (("weight", linear.weight), ("bias", linear.bias)):
                if tensor is not None:
                    own = _neighbours(tensor, head_dim) if is_turned else tensor
                    kind = form(linear) if part == "weight" else "F32"
                    yield f"blk.{number}.{theirs}.{part}", own, kind
        for name, theirs in _NORMS.items():
            norm = layer
            for step in name.split("."):
                norm = getattr(norm, step, None)
            if norm is not None:
                yield f"blk.{number}.{theirs}.weight", norm.weight, "F32"


def _share(head: Any, embedding: Any) -> bool:
    """Return True if the projection to logits has the weight of the embedding."""
    if isinstance(head, QuantizedLinear) and isinstance(embedding, QuantizedEmbedding):
        return head.codes is embedding.codes
    return head.weight is embedding.weight


def _neighbours(tensor: Tensor, head_dim: int) -> Tensor:
    """Return (H * D, ...) with the two halves of every head interleaved: the architecture `llama`
    turns neighbors where transformers turns halves."""
    heads = tensor.detach().view(-1, 2, head_dim // 2, *tensor.shape[1:])
    return heads.transpose(1, 2).flatten(0, 2)


def _frequency_factors(rotary: Any, config: Any) -> Tensor:
    """Return (D / 2,) float32: what the frequencies of the base are divided by."""
    count = len(rotary.inv_freq)
    steps = torch.arange(count, dtype=torch.float64) / count
    factors: Tensor = _rope_base(config) ** -steps / rotary.inv_freq.double()
    return factors.float()
