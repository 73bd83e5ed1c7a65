"""GGUF files of tiny models, written with the package that llama.cpp's own converter uses."""

from pathlib import Path
from typing import Any

import gguf
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)
KINDS = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
_LINEAR = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}


def vocabulary() -> tuple[list[str], list[int], list[str]]:
    """Return the tokens, their kinds and the merges of a byte-level tokenizer."""
    from tokenizers import pre_tokenizers

    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    kinds = [3, 3, 3]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("a", "n"), ("Ġ", "Ġ"), ("1", "2")]
    words = [left + right for left, right in merges]
    tokens += letters + words
    kinds += [1] * (len(letters) + len(words))
    return tokens, kinds, [" ".join(merge) for merge in merges]


def tiny(kind: str, **changes: Any) -> Any:
    """Return a random model with the vocabulary above."""
    torch.manual_seed(0)
    config, model = KINDS[kind]
    sizes: dict[str, Any] = {
        "vocab_size": len(vocabulary()[0]), "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "max_position_embeddings": 512, "bos_token_id": None,
        "eos_token_id": 2, "pad_token_id": None, "tie_word_embeddings": False,
    }  # fmt: skip
    if kind == "qwen2":
        del sizes["head_dim"]
    return model(config(**sizes | changes)).eval()


def write(
    path: Path,
    model: Any,
    *,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    metadata: dict[str, Any] | None = None,
    split: int = 0,
) -> Path:
    """Write a model and its tokenizer, and return the (first) file.

    Args:
        kind: the quantization of matrices.
        metadata: strings that take the place of others; None leaves one out.
        split: most tensors in a file; 0: one file.
    """
    config, arch = model.config, model.config.model_type
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=split)
    tokens, kinds, merges = vocabulary()
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_key_length(model.model.layers[0].self_attn.head_dim)
    writer.add_value_length(model.model.layers[0].self_attn.head_dim)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(2)
    texts = {"tokenizer.ggml.pre": "smollm", "tokenizer.chat_template": TEMPLATE}
    for key, value in {**texts, **(metadata or {})}.items():
        if value is not None:
            writer.add_string(key, value)
    for name, tensor in tensors(model).items():
        values = tensor.detach().float().contiguous().numpy()
        if values.ndim < 2 or kind == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if path.exists() else sorted(path.parent.glob(f"{path.stem}-*.gguf"))[0]


def tensors(model: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of a model by llama.cpp's names, as its converter lays them out."""
    config, state = model.config, model.state_dict()
    found = {
        "token_embd.weight": state["model.embed_tokens.weight"],
        "output_norm.weight": state["model.norm.weight"],
    }
    if not config.tie_word_embeddings:
        found["output.weight"] = state["lm_head.weight"]
    for layer in range(config.num_hidden_layers):
        for theirs, ours in _LINEAR.items():
            for part in ("weight", "bias"):
                tensor = state.get(f"model.layers.{layer}.{theirs}.{part}")
                if tensor is None:
                    continue
                if config.model_type == "llama" and ours in ("attn_q", "attn_k"):
                    heads = config.num_attention_heads
                    heads = heads if ours == "attn_q" else config.num_key_value_heads
                    rows = tensor.view(heads, 2, -1, *tensor.shape[1:])
                    tensor = rows.transpose(1, 2).reshape(tensor.shape)
                found[f"blk.{layer}.{ours}.{part}"] = tensor
    if config.rope_parameters["rope_type"] == "llama3":
        rotary = model.model.rotary_emb
        theta, dim = config.rope_parameters["rope_theta"], 2 * len(rotary.inv_freq)
        plain = 1 / theta ** (torch.arange(0, dim, 2) / dim)
        found["rope_freqs.weight"] = plain / rotary.inv_freq
    return found
