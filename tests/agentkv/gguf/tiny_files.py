"""Tiny random models as GGUF files, written as llama.cpp's conversion writes them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"rope_theta": 5000.0}),
    "llama-rope": (
        "llama",
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
            "rope_theta": 500_000.0,
            "tie_word_embeddings": True,
        },
    ),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "gemma3": (
        "gemma3_text",
        {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 16, "num_hidden_layers": 7},
    ),
    "gpt2": ("gpt2", {"n_positions": 128, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_inner": 96}),
    "granite": (
        "granite",
        {
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.5,
            "logits_scaling": 2.0,
            "attention_multiplier": 0.2,
        },
    ),
    "olmo2": ("olmo2", {}),
    "phi3": ("phi3", {}),
    "seed_oss": ("seed_oss", {"head_dim": 32, "attention_bias": True}),
    "smollm3": ("smollm3", {"num_hidden_layers": 5}),
}
"""Family and sizes of each model, by the name of its architecture and what is special."""
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_NUMBERS = {
    "context_length": ("max_position_embeddings", "n_positions"),
    "block_count": ("num_hidden_layers", "n_layer"),
    "embedding_length": ("hidden_size", "n_embd"),
    "feed_forward_length": ("intermediate_size", "n_inner"),
    "attention.head_count": ("num_attention_heads", "n_head"),
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.key_length": ("head_dim",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
    "attention.layer_norm_epsilon": ("layer_norm_epsilon",),
    "attention.sliding_window": ("sliding_window",),
    "embedding_scale": ("embedding_multiplier",),
    "residual_scale": ("residual_multiplier",),
    "logit_scale": ("logits_scaling",),
    "attention.scale": ("attention_multiplier",),
}


def make_model(name: str) -> Any:
    """Make a random model of `MODELS`, whose norms are no ones."""
    family, sizes = MODELS[name]
    torch.manual_seed(0)
    config = CONFIG_MAPPING[family](**({**SIZES, **sizes}))
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            weight.normal_(0, 0.1)
            if "norm" in key and family != "gemma3_text":
                weight += 1
    return model


def byte_tokens() -> list[str]:
    """300 tokens: the 256 bytes as GPT-2 writes them, pairs of letters and control tokens."""
    from tokenizers.pre_tokenizers import ByteLevel

    pairs = [f"{a}{b}" for a in "abcdef" for b in "ghijkl"]
    controls = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool>", "<|stop|>"]
    tokens = [*controls, *sorted(ByteLevel.alphabet()), *pairs]
    return [*tokens, *(f"<unused{i}>" for i in range(300 - len(tokens)))]


def write(model: Any, name: str, path: Path, *, split: int = 0, **changes: Any) -> Path:
    """Write a model to a file.

    Args:
        split: tensors in each part of a split file; 0: one file.
        changes: metadata of the tokenizer that takes the place of the usual (`kind` of `model`);
            None leaves it out.
    """
    gguf = pytest.importorskip("gguf", reason="gguf is not installed")
    arch = name.partition("-")[0]
    config = model.config
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=split)
    for key, names in _NUMBERS.items():
        value = next((getattr(config, each) for each in names if hasattr(config, each)), None)
        if isinstance(value, float):
            writer.add_float32(f"{arch}.{key}", value)
        elif isinstance(value, int):
            writer.add_uint32(f"{arch}.{key}", value)
    parameters = getattr(config, "rope_parameters", None) or {}
    parameters = parameters.get("full_attention", parameters)
    if parameters:
        writer.add_rope_freq_base(float(parameters["rope_theta"]))
    tokens = changes.pop("tokens", byte_tokens())
    metadata: dict[str, Any] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [3 if t.startswith("<|") else 4 if t == "<tool>" else 1 for t in tokens],
        "merges": [f"{t[0]} {t[1]}" for t in tokens if len(t) == 2 and t.isascii()],
        "eos_token_id": 2,
        "bos_token_id": 1,
        "chat_template": TEMPLATE,
        **changes,
    }
    metadata["model"] = metadata.pop("kind", metadata["model"])
    template = metadata.pop("chat_template")
    if template is not None:
        writer.add_chat_template(template)
    for key, value in metadata.items():
        if value is None:
            continue
        add = {str: writer.add_string, list: writer.add_array, bool: writer.add_bool}
        add.get(type(value), writer.add_uint32)(f"tokenizer.ggml.{key}", value)
    _add_tensors(writer, model, arch)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tensors(writer: Any, model: Any, arch: str) -> None:
    import gguf

    config = model.config
    number = next(key for key, each in gguf.MODEL_ARCH_NAMES.items() if each == arch)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    for key, weight in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        theirs, values = names.get_name(key, try_suffixes=(".weight", ".bias")), weight.float()
        if arch in ("llama", "granite", "smollm3") and (
            "q_proj" in key or "k_proj" in key
        ):  # each head's halves alternate
            heads = config.num_attention_heads if "q_proj" in key else config.num_key_value_heads
            halves = values.reshape(heads, 2, -1, *values.shape[1:])
            values = halves.transpose(1, 2).reshape(values.shape)
        if arch == "gemma3" and "norm" in key:
            values = values + 1
        if arch == "gpt2" and values.ndim == 2 and (".attn." in key or ".mlp." in key):
            values = values.T
        writer.add_tensor(theirs, values.contiguous().numpy())
    rotary = getattr(model.base_model, "rotary_emb", None)
    if getattr(rotary, "rope_type", None) == "llama3":
        assert rotary is not None
        base, count = config.rope_parameters["rope_theta"], len(rotary.inv_freq)
        plain = base ** -(torch.arange(count, dtype=torch.float64) / count)
        writer.add_tensor("rope_freqs.weight", (plain / rotary.inv_freq).float().numpy())
