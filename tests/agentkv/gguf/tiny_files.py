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
EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
SHARED: dict[str, Any] = {
    **EXPERTS,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
    "norm_topk_prob": True,
    "n_group": 1,
    "topk_group": 1,
}
GRANITE: dict[str, Any] = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5,
    "logits_scaling": 2.0,
    "attention_multiplier": 0.2,
}
LLAMA3: dict[str, Any] = {
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "rope_theta": 500_000.0,
}
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 5000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 5000.0,
    "original_max_position_embeddings": 64,
    "long_factor": [1.0 + i for i in range(8)],
    "short_factor": [1.0 + i / 8 for i in range(8)],
}
WINDOWS: dict[str, Any] = {
    "sliding_window": 16,
    "layer_types": ["full_attention", "sliding_attention"],
}
LINEAR: dict[str, Any] = {
    "linear_conv_kernel_dim": 3,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention"],
    "head_dim": 32,
}
STATE_SPACE: dict[str, Any] = {
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_n_groups": 2,
    "mamba_d_state": 8,
    "mamba_d_conv": 3,
}
GRANITE_HYBRID: dict[str, Any] = {
    **GRANITE,
    **STATE_SPACE,
    "layer_types": ["linear_attention", "full_attention"],
}
MAMBA: dict[str, Any] = {
    "mamba_num_heads": 4,
    "mamba_head_dim": 32,
    "n_groups": 2,
    "ssm_state_size": 8,
    "conv_kernel": 3,
    "head_dim": 32,
    "layers_block_type": ["linear_attention", "mlp", "full_attention"],
}
CONVOLUTION: dict[str, Any] = {
    "conv_L_cache": 3,
    "block_auto_adjust_ff_dim": False,
    "layer_types": ["conv", "full_attention"],
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"rope_theta": 5000.0}),
    "llama:rope": ("llama", {**LLAMA3, "tie_word_embeddings": True}),
    "llama:fused": ("llama", {"attention_bias": True}),
    "llama:experts": ("mixtral", EXPERTS),
    "afmoe": (
        "afmoe",
        {
            **EXPERTS,
            "num_shared_experts": 1,
            "num_dense_layers": 1,
            "route_scale": 2.0,
            "mup_enabled": True,
            "sliding_window": 16,
            "num_hidden_layers": 4,
        },
    ),
    "apertus": ("apertus", {}),
    "arcee": ("arcee", {"rope_parameters": YARN}),
    "chatglm:fused": ("glm", {"head_dim": 16, "attention_bias": True}),
    "cohere2": ("cohere2", {"logit_scale": 0.5, "sliding_window": 16, "num_hidden_layers": 4}),
    "command-r": ("cohere", {"logit_scale": 0.5, "use_qk_norm": True}),
    "dots1": ("dots1", SHARED),
    "ernie4_5": ("ernie4_5", {"head_dim": 32}),
    "ernie4_5-moe": (
        "ernie4_5_moe",
        {
            **SHARED,
            "moe_num_experts": 4,
            "moe_k": 2,
            "moe_num_shared_experts": 2,
            "n_shared_experts": 2,
            "moe_layer_start_index": 1,
        },
    ),
    "exaone4": ("exaone4", {**WINDOWS, **LLAMA3}),
    "exaone4:full": ("exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 2}),
    "falcon-h1": (
        "falcon_h1",
        {
            **STATE_SPACE,
            "mamba_d_ssm": 128,
            "head_dim": 32,
            "attention_in_multiplier": 1.5,
            "attention_out_multiplier": 0.5,
            "key_multiplier": 0.7,
            "ssm_in_multiplier": 1.2,
            "ssm_out_multiplier": 0.8,
            "ssm_multipliers": [0.5, 1.5, 0.6, 1.6, 0.7],
            "mlp_multipliers": [0.9, 1.1],
            "lm_head_multiplier": 0.4,
            "embedding_multiplier": 3.0,
        },
    ),
    "gemma": ("gemma", {"head_dim": 32}),
    "gemma3": (
        "gemma3_text",
        {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 16, "num_hidden_layers": 7},
    ),
    "glm4": ("glm4", {"head_dim": 16, "attention_bias": True}),
    "glm4moe": (
        "glm4_moe",
        {**SHARED, "norm_topk_prob": False, "use_qk_norm": True, "head_dim": 16},
    ),
    "gpt-oss": (
        "gpt_oss",
        {
            **EXPERTS,
            "rope_parameters": {**YARN, "truncate": False},
            "sliding_window": 16,
            "head_dim": 16,
        },
    ),
    "gpt2": ("gpt2", {"n_positions": 128, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_inner": 96}),
    "gptneox": ("gpt_neox", {"rotary_pct": 0.5, "use_parallel_residual": False}),
    "granite": ("granite", GRANITE),
    "granitehybrid": (
        "granitemoehybrid",
        {**GRANITE_HYBRID, **EXPERTS, "shared_intermediate_size": 32},
    ),
    "granitehybrid:dense": (
        "granitemoehybrid",
        {
            **GRANITE_HYBRID,
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "shared_intermediate_size": 96,
        },
    ),
    "granitemoe": ("granitemoe", {**GRANITE, **EXPERTS}),
    "granitemoe:shared": (
        "granitemoeshared",
        {**GRANITE, **EXPERTS, "shared_intermediate_size": 32},
    ),
    "hunyuan-dense": (
        "hunyuan_v1_dense",
        {
            "head_dim": 32,
            "rope_parameters": {
                "rope_type": "dynamic",
                "alpha": 50.0,
                "factor": 1.0,
                "rope_theta": 5000.0,
            },
        },
    ),
    "hunyuan-moe": ("hunyuan_v1_moe", {**EXPERTS, "moe_topk": 2, "head_dim": 16}),
    "internlm2": ("llama", {}),
    "jamba": (
        "jamba",
        {
            **EXPERTS,
            "attn_layer_period": 3,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "mamba_d_state": 8,
            "mamba_d_conv": 3,
            "num_hidden_layers": 5,
        },
    ),
    "lfm2": ("lfm2", CONVOLUTION),
    "lfm2moe": ("lfm2_moe", {**CONVOLUTION, **EXPERTS, "num_dense_layers": 1}),
    "minimax-m2": ("minimax_m2", {**EXPERTS, "rotary_dim": 8, "head_dim": 16}),
    "mistral3": (
        "ministral3",
        {
            "head_dim": 32,
            "rope_parameters": {
                **YARN,
                "llama_4_scaling_beta": 0.2,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
            },
        },
    ),
    "mistral3:plain": ("mistral", {"head_dim": 32, "sliding_window": None}),
    "nemotron": ("nemotron", {"head_dim": 16}),
    "nemotron_h": ("nemotron_h", MAMBA),
    "nemotron_h_moe": (
        "nemotron_h",
        {
            **MAMBA,
            **SHARED,
            "layers_block_type": ["linear_attention", "moe", "full_attention"],
            "moe_shared_expert_intermediate_size": 48,
            "moe_latent_size": 32,
        },
    ),
    "olmo": ("olmo", {"clip_qkv": 0.5}),
    "olmo2": ("olmo2", {}),
    "olmo2:window": ("olmo3", {**WINDOWS, "rope_scaling": YARN}),
    "olmoe": ("olmoe", EXPERTS),
    "phi2": ("phi", {"partial_rotary_factor": 0.5}),
    "phi2:fused": ("phi", {"partial_rotary_factor": 0.5}),
    "phi3": ("phi3", {"sliding_window": 16}),
    "phi3:long": ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64}),
    "qwen2": ("qwen2", {}),
    "qwen2moe": ("qwen2_moe", {**EXPERTS, "shared_expert_intermediate_size": 48}),
    "qwen2vl": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "qwen3vl": ("qwen3", {"head_dim": 32}),
    "qwen3vlmoe": ("qwen3_moe", {**EXPERTS, "norm_topk_prob": True}),
    "qwen35": ("qwen3_5_text", LINEAR),
    "qwen35moe": ("qwen3_5_moe_text", {**LINEAR, **EXPERTS, "shared_expert_intermediate_size": 48}),
    "qwen3moe": ("qwen3_moe", {**EXPERTS, "norm_topk_prob": True}),
    "qwen3next": (
        "qwen3_next",
        {**LINEAR, **EXPERTS, "norm_topk_prob": True, "shared_expert_intermediate_size": 48},
    ),
    "seed_oss": ("seed_oss", {"head_dim": 32, "attention_bias": True}),
    "smollm3": ("smollm3", {"num_hidden_layers": 5}),
    "stablelm": (
        "stablelm",
        {"use_qkv_bias": True, "qk_layernorm": True, "partial_rotary_factor": 0.5},
    ),
    "starcoder": (
        "gpt_bigcode",
        {"n_positions": 128, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_inner": 96},
    ),
    "starcoder2": ("starcoder2", {}),
}
"""Family and sizes of each model, by the name of its architecture and what is special."""
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_NUMBERS = {
    "context_length": "max_position_embeddings n_positions",
    "block_count": "num_hidden_layers n_layer",
    "embedding_length": "hidden_size n_embd",
    "feed_forward_length": "intermediate_size n_inner",
    "attention.head_count": "num_attention_heads n_head",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps norm_eps",
    "attention.layer_norm_epsilon": "layer_norm_eps layer_norm_epsilon norm_epsilon norm_eps",
    "attention.sliding_window": "sliding_window",
    "attention.clamp_kqv": "clip_qkv",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling logit_scale",
    "attention.scale": "attention_multiplier",
    "use_parallel_residual": "use_parallel_residual",
    "expert_count": "num_local_experts num_experts n_routed_experts",
    "expert_used_count": "num_experts_per_tok moe_topk",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size shared_intermediate_size "
    "moe_shared_expert_intermediate_size",
    "moe_latent_size": "moe_latent_size",
    "expert_shared_count": "n_shared_experts moe_num_shared_experts num_shared_experts",
    "expert_weights_scale": "routed_scaling_factor route_scale",
    "expert_weights_norm": "norm_topk_prob",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "leading_dense_block_count": "first_k_dense_replace num_dense_layers moe_layer_start_index",
    "interleave_moe_layer_step": "moe_layer_interval",
    "shortconv.l_cache": "conv_L_cache",
    "ssm.conv_kernel": "mamba_d_conv linear_conv_kernel_dim conv_kernel",
    "ssm.state_size": "mamba_d_state linear_key_head_dim ssm_state_size",
    "ssm.group_count": "mamba_n_groups linear_num_key_heads n_groups",
    "ssm.time_step_rank": "mamba_n_heads linear_num_value_heads mamba_num_heads mamba_dt_rank",
}
_ROPE = {
    "rope.freq_base": "rope_theta",
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.yarn_log_multiplier": "mscale_all_dim",
    "attention.temperature_scale": "llama_4_scaling_beta",
}
_WITH_HALVES = ("llama", "granite", "smollm3", "arcee", "internlm2", "mistral3")
"""Architectures whose files have the halves of each head alternate."""
_OFFSET = ("gemma", "gemma3", "nemotron", "qwen3next", "qwen35", "qwen35moe")
"""Architectures whose files have 1 added to norms."""


def make_model(name: str) -> Any:
    """Make a random model of `MODELS`, whose norms are no ones."""
    family, sizes = MODELS[name]
    torch.manual_seed(0)
    config = CONFIG_MAPPING[family](**({**SIZES, **sizes}))
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            weight.normal_(0, 0.1)
            if "norm" in key and name.partition(":")[0] not in _OFFSET:
                weight += 1
    return model


def byte_tokens() -> list[str]:
    """300 tokens: the 256 bytes as GPT-2 writes them, pairs of letters and control tokens."""
    from tokenizers.pre_tokenizers import ByteLevel

    pairs = [f"{a}{b}" for a in "abcdef" for b in "ghijkl"]
    controls = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool>", "<|stop|>"]
    tokens = [*controls, *sorted(ByteLevel.alphabet()), *pairs]
    return [*tokens, *(f"<unused{i}>" for i in range(300 - len(tokens)))]


def write(
    model: Any, name: str, path: Path, *, split: int = 0, form: str = "F32", **changes: Any
) -> Path:
    """Write a model to a file.

    Args:
        split: tensors in each part of a split file; 0: one file.
        form: of matrices; those whose rows are no blocks of 32 are F32 in a format of blocks.
        changes: metadata of the tokenizer that takes the place of the usual (`kind` of `model`;
            None leaves it out), and metadata of the model, by whole keys.
    """
    gguf = pytest.importorskip("gguf", reason="gguf is not installed")
    arch = name.partition(":")[0]
    config = model.config
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=split)
    values = {
        key if key.startswith("xielu.") else f"{arch}.{key}": value
        for key, value in _values(model, arch).items()
    }
    values |= {key: changes.pop(key) for key in list(changes) if "." in key}
    for key, value in values.items():
        _add(writer, key, value)
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
        if value is not None:
            _add(writer, f"tokenizer.ggml.{key}", value)
    names = gguf.get_tensor_name_map(
        next(key for key, each in gguf.MODEL_ARCH_NAMES.items() if each == arch),
        config.num_hidden_layers,
    )
    tensors = _tensors(model, arch)
    for key, values in (_fused(tensors) if name.endswith(":fused") else tensors).items():
        theirs = names.get_name(key, try_suffixes=(".weight", ".bias")) or key
        is_matrix = values.ndim > 1 and (form.endswith("16") or values.shape[-1] % 32 == 0)
        kind = gguf.GGMLQuantizationType[form if is_matrix else "F32"]
        stored = gguf.quantize(values.contiguous().numpy(), kind)
        writer.add_tensor(theirs, stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: Any, key: str, value: Any) -> None:
    kinds: dict[type, Any] = {
        str: writer.add_string,
        list: writer.add_array,
        bool: writer.add_bool,
        float: writer.add_float32,
    }
    kinds.get(type(value), writer.add_uint32)(key, value)


def _values(model: Any, arch: str) -> dict[str, Any]:
    """Return the metadata of a model, by keys without the architecture."""
    config = model.config
    values = {}
    for key, names in _NUMBERS.items():
        found = (getattr(config, name, None) for name in names.split())
        value = next((each for each in found if isinstance(each, int | float)), None)
        if value is not None:
            values[key] = value
    rope = getattr(config, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)
    values |= {key: rope[name] for key, name in _ROPE.items() if name in rope}
    if rope.get("rope_type") in ("linear", "yarn", "longrope"):
        values["rope.scaling.type"] = rope["rope_type"]
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if "alpha" in rope:
        values["rope.freq_base"] *= rope["alpha"] ** (size / (size - 2))
        del values["rope.scaling.factor"]
    values["rope.dimension_count"] = int(size * rope.get("partial_rotary_factor", 1.0))
    kinds = getattr(config, "layer_types", None) or []
    if {"conv", "linear_attention"} & set(kinds) and arch not in (
        "qwen3next",
        "qwen35",
        "qwen35moe",
    ):
        heads = config.num_key_value_heads
        values["attention.head_count_kv"] = [heads * (kind == "full_attention") for kind in kinds]
    elif "sliding_attention" in kinds and arch in ("olmo2", "exaone4"):
        values["attention.sliding_window_pattern"] = [kind == "sliding_attention" for kind in kinds]
    if "ssm.conv_kernel" in values:
        sizes = ("mamba_d_head", "linear_value_head_dim", "mamba_head_dim")
        head = next((getattr(config, name) for name in sizes if hasattr(config, name)), 0)
        inner = values["ssm.time_step_rank"] * head
        values["ssm.inner_size"] = inner or config.mamba_expand * config.hidden_size
    if arch == "falcon-h1":
        del values["embedding_scale"]
    if arch == "apertus":
        for name in ("alpha_n", "alpha_p", "beta", "eps"):
            layers = (getattr(layer.mlp.act_fn, name) for layer in model.model.layers)
            values[f"xielu.{name}"] = [each.item() for each in layers]
    return values


def _tensors(model: Any, arch: str) -> dict[str, torch.Tensor]:
    """Return the tensors of a file, by names of transformers that the package gguf knows."""
    config, tensors = model.config, {}
    for key, weight in model.state_dict().items():
        if (key == "lm_head.weight" and config.tie_word_embeddings) or ".act_fn." in key:
            continue
        values = weight.float()
        if (arch in _WITH_HALVES or arch.startswith("granite") or arch == "olmo") and (
            "q_proj" in key or "k_proj" in key
        ):
            heads = config.num_attention_heads if "q_proj" in key else config.num_key_value_heads
            halves = values.reshape(heads, 2, -1, *values.shape[1:])
            values = halves.transpose(1, 2).reshape(values.shape)
        if arch in _OFFSET and key.endswith("norm.weight") and "linear_attn" not in key:
            values = values + 1
        if arch == "gpt2" and values.ndim == 2 and (".attn." in key or ".mlp." in key):
            values = values.T
        tensors.update(_renamed(key, values, arch, config))
    for i, layer in enumerate(model.base_model.layers if arch == "stablelm" else ()):
        for kind in ("q", "k"):
            norms = getattr(layer.self_attn, f"{kind}_layernorm").norms
            stacked = torch.stack([norm.weight for norm in norms]).detach()
            tensors[f"model.layers.{i}.self_attn.{kind}_layernorm.weight"] = stacked
    rotary = getattr(model.base_model, "rotary_emb", None)
    kind = getattr(rotary, "rope_type", None)
    if kind == "llama3":
        assert rotary is not None
        base, count = config.rope_parameters["rope_theta"], len(rotary.inv_freq)
        plain = base ** -(torch.arange(count, dtype=torch.float64) / count)
        tensors["rope_freqs.weight"] = (plain / rotary.inv_freq).float()
    if kind == "longrope":
        for length in ("long", "short"):
            factors = torch.tensor(config.rope_parameters[f"{length}_factor"])
            tensors[f"rope_factors_{length}.weight"] = factors
    return tensors


def _fused(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors in which those of queries, keys and values are one."""
    fused: dict[str, torch.Tensor] = {}
    for key, values in tensors.items():
        if "q_proj" in key:
            parts = [tensors[key.replace("q_proj", f"{each}_proj")] for each in "qkv"]
            fused[f"blk.{key.split('.')[2]}.attn_qkv.{key.rpartition('.')[2]}"] = torch.cat(parts)
        elif "k_proj" not in key and "v_proj" not in key:
            fused[key] = values
    return fused


def _renamed(key: str, values: Any, arch: str, config: Any) -> dict[str, torch.Tensor]:
    """Return what a weight is in a file, by names that the package gguf knows."""
    if ".norms." in key:
        return {}
    if arch == "gptneox" and "query_key_value" in key:
        heads = values.reshape(config.num_attention_heads, 3, -1, *values.shape[1:])
        return {key: heads.transpose(0, 1).reshape(values.shape)}
    if key.endswith("A_log"):
        values = -values.exp()
    if "conv" in key and values.ndim == 3:
        values = values.squeeze(1)
    if "linear_attn" in key:
        return _linear_attention(key, values, arch, config)
    if arch == "falcon-h1":
        values = values * _multiplier(key, config)
    if (".mamba." in key and arch != "jamba") or ".mixer." in key:
        key = key.replace("model.layers", "backbone.layers" if ".mixer." in key else "model.layers")
        if key.endswith(("A_log", "D")):
            values = values[:, None]
        if key.endswith("norm.weight"):
            values = values.reshape(STATE_SPACE["mamba_n_groups"], -1)
        if ".experts." in key:
            key = f"{key.replace('backbone', 'model').replace('mixer', 'mlp')}.weight"
        for ours, theirs in {
            "dt_bias": "dt_proj.bias",
            "correction_bias": "correction.bias",
        }.items():
            key = key.replace(ours, theirs)
        return {key: values}
    for ours, theirs in {
        "e_score_correction_bias": "e_score_correction.bias",
        "gate.moe_statics": "moe_statics",
        "expert_bias": "expert_bias.bias",
        "block_sparse_moe.": "mlp.",
        "sinks": "sinks.weight",
        "shared_mlp.input_linear": "mlp.shared_mlp.gate_up_proj",
        "shared_mlp.output_linear": "mlp.shared_mlp.down_proj",
        "proj_bias": "proj.bias",
    }.items():
        key = key.replace(ours, theirs)
    if ".experts." in key and not key.endswith(".bias"):
        key = f"{key}.weight"
        if arch == "gpt-oss":
            values = values.transpose(1, 2)
    if arch == "granitehybrid" and not config.num_local_experts:
        key = key.replace("mlp.shared_mlp", "mlp")
    if ("experts." in key or "shared_mlp" in key or arch == "granitehybrid") and "gate_up" in key:
        axis = -1 if key.endswith("bias") else -2
        parts = values.chunk(2, axis)
        if arch == "gpt-oss":
            even = torch.arange(0, values.shape[axis], 2)
            parts = values.index_select(axis, even), values.index_select(axis, even + 1)
        halves = (key.replace("gate_up", half) for half in ("gate", "up"))
        return dict(zip(halves, parts, strict=True))
    return {key: values}


def _multiplier(key: str, config: Any) -> Any:
    """Return what the weights of a Falcon-H1 are multiplied with in a file."""
    if "in_proj" in key:
        inner, states = config.mamba_d_ssm, config.mamba_n_groups * config.mamba_d_state
        sizes = torch.tensor([inner, inner, states, states, config.mamba_n_heads])
        rows = torch.tensor(config.ssm_multipliers).repeat_interleave(sizes)
        return config.ssm_in_multiplier * rows[:, None]
    into = config.attention_in_multiplier
    multipliers = {
        "q_proj": into,
        "k_proj": into * config.key_multiplier,
        "v_proj": into,
        "o_proj": config.attention_out_multiplier,
        "mamba.out_proj": config.ssm_out_multiplier,
        "gate_proj": config.mlp_multipliers[0],
        "down_proj": config.mlp_multipliers[1],
        "lm_head": config.lm_head_multiplier,
        "embed_tokens": config.embedding_multiplier,
    }
    return next((value for part, value in multipliers.items() if part in key), 1.0)


def _linear_attention(key: str, values: Any, arch: str, config: Any) -> dict[str, torch.Tensor]:
    heads, key_size = config.linear_num_key_heads, config.linear_key_head_dim
    many = config.linear_num_value_heads // heads
    size = many * config.linear_value_head_dim
    key = key.replace("dt_bias", "dt_proj.bias")
    if "in_proj_qkvz" in key:
        rows = values.reshape(heads, -1, values.shape[-1])
        parts = rows.split([key_size, key_size, size, size], 1)
        queries, keys, others, gates = (part.flatten(0, 1) for part in parts)
        return {
            key.replace("qkvz", "qkv"): torch.cat([queries, keys, others]),
            key.replace("qkvz", "z"): gates,
        }
    if arch == "qwen3next" or "norm" in key:
        return {key: values}
    is_joint = "in_proj_qkv" in key or "conv1d" in key
    start = 2 * heads * key_size if is_joint else 0
    if "out_proj" in key:  # columns
        values = values.T
    rows = values[start:].reshape(heads, many, -1, *values.shape[1:])
    tiled = rows.transpose(0, 1).reshape(values[start:].shape)
    values = torch.cat([values[:start], tiled])
    return {key: values.T if "out_proj" in key else values}
