"""Which family of transformers each architecture of llama.cpp is, and what differs in its files.

Shapes: H heads, D head size, E experts, I inner size, R size of the residual stream.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from transformers import CONFIG_MAPPING

from agentkv.models.gguf.header import GgufError, GgufHeader
from agentkv.models.gguf.rotation import head_dim, rope_scaling, turned_dim
from agentkv.models.gguf.tensors import Array

Change = Callable[[Array, str, Any], Array]
"""Returns the weight of a name, given what the file has and the configuration."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """How the files of an architecture of llama.cpp differ from a model of transformers."""

    model_type: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the configuration that files do not tell."""
    further: Callable[[GgufHeader], dict[str, Any]] = lambda header: {}
    """Returns further fields of the configuration."""
    is_interleaved: bool = False
    """True if the rows of queries and keys alternate between the two halves of each head."""
    norm_offset: float = 0.0
    """What the file adds to the weights of norms."""
    recurrent: str = ""
    """The kind of the layers that do not attend; empty: all attend."""
    change: Change | None = None
    """Gives weights the order of rows and columns that transformers has; None: they have it."""


_UNSCALED = {"rope_type": "default"}
"""Told to families whose configuration scales the rotation otherwise."""


def _exaone4(header: GgufHeader) -> dict[str, Any]:
    if header.number("attention.sliding_window", 0):
        return {}
    return {"layer_types": ["full_attention"] * header.num_layers}


def _gpt_oss(header: GgufHeader) -> dict[str, Any]:
    scaling = rope_scaling(header)
    return {"rope_scaling": {**scaling, "truncate": False} if scaling else _UNSCALED}


def _gpt_neox(header: GgufHeader) -> dict[str, Any]:
    return {"rotary_pct": turned_dim(header) / head_dim(header)}


def _gemma3(header: GgufHeader) -> dict[str, Any]:
    size, heads = header.number("embedding_length"), header.number("attention.head_count")
    is_27b = header.number("block_count") == 62  # llama.cpp tells it by its layers as well
    return {
        "query_pre_attn_scalar": size // heads if is_27b else head_dim(header),
        "rope_local_base_freq": header.number("rope.freq_base_swa", 10_000.0),
    }


def _ministral3(header: GgufHeader) -> dict[str, Any]:
    scaling = rope_scaling(header) or _UNSCALED.copy()
    scale = header.number("rope.scaling.yarn_log_multiplier", 1.0)
    length = header.number("rope.scaling.original_context_length", header.number("context_length"))
    scaling |= {
        "original_max_position_embeddings": length,
        "llama_4_scaling_beta": header.number("attention.temperature_scale", 0.0),
    }
    if scaling["rope_type"] == "yarn":
        scaling |= {"mscale": scale, "mscale_all_dim": scale}
    return {"rope_scaling": scaling}


def _state_space(header: GgufHeader) -> dict[str, Any]:
    inner = header.number("ssm.inner_size")
    return {
        "mamba_d_head": inner // header.number("ssm.time_step_rank"),
        "mamba_expand": inner // header.number("embedding_length"),
        "position_embedding_type": "rope" if header.number("rope.scaling.finetuned", 0) else None,
    }


def _falcon_h1(header: GgufHeader) -> dict[str, Any]:
    inner = header.number("ssm.inner_size")
    return {  # no multipliers: the weights of the file are multiplied with them
        "mamba_d_ssm": inner,
        "mamba_d_head": inner // header.number("ssm.time_step_rank"),
    }


def _jamba(header: GgufHeader) -> dict[str, Any]:
    fields = {"mamba_expand": header.number("ssm.inner_size") // header.number("embedding_length")}
    for kind, tensor in {"attn": "attn_k", "expert": "ffn_gate_inp"}.items():
        names = [f"blk.{i}.{tensor}.weight" for i in range(header.num_layers)]
        found = [i for i, name in enumerate(names) if name in header.tensors]
        first, *others = found or [header.num_layers]
        fields[f"{kind}_layer_offset"] = first
        fields[f"{kind}_layer_period"] = others[0] - first if others else header.num_layers + 1
    return fields


def _nemotron_h(header: GgufHeader) -> dict[str, Any]:
    names = {
        "ssm_in": "linear_attention",
        "attn_k": "full_attention",
        "ffn_gate_inp": "moe",
        "ffn_up": "mlp",
    }
    kinds = [
        next(kind for name, kind in names.items() if f"blk.{i}.{name}.weight" in header.tensors)
        for i in range(header.num_layers)
    ]
    inner = header.number("ssm.inner_size")
    return {
        "layers_block_type": kinds,
        "mamba_head_dim": inner // header.number("ssm.time_step_rank"),
    }


def _delta_net(header: GgufHeader) -> dict[str, Any]:
    heads = header.number("ssm.time_step_rank")
    return {"linear_value_head_dim": header.number("ssm.inner_size") // heads}


def _transposed(values: Array, name: str, config: Any) -> Array:
    is_turned = values.ndim == 2 and (".attn." in name or ".mlp." in name)
    return values.T if is_turned else values


def _heads_first(values: Array, name: str, config: Any) -> Array:
    """Turn (3, H, D, ...) queries, keys and values into (H, 3, D, ...)."""
    if "query_key_value" not in name:
        return values
    parts = values.reshape(3, config.num_attention_heads, -1, *values.shape[1:])
    return parts.swapaxes(0, 1)


def _alternating_experts(values: Array, name: str, config: Any) -> Array:
    """Let rows of gates and of others alternate, and turn matrices to (E, I, R)."""
    if ".experts." not in name:
        return values
    if "gate_up" in name:
        rows = values.reshape(values.shape[0], 2, -1, *values.shape[2:])
        values = rows.swapaxes(1, 2).reshape(values.shape)
    return values if name.endswith("bias") else values.swapaxes(1, 2)


def _by_key_heads(values: Array, name: str, config: Any) -> Array:
    """Turn rows of all queries, keys, values and gates into those of each key head together."""
    if "in_proj_qkvz" not in name:
        return values
    heads = config.linear_num_key_heads
    keys = heads * config.linear_key_head_dim
    size = config.linear_num_value_heads * config.linear_value_head_dim
    parts = np.split(values, (keys, 2 * keys, 2 * keys + size))
    return np.concatenate(
        [part.reshape(heads, -1, values.shape[-1]) for part in parts], axis=1
    ).reshape(values.shape)


def _value_heads_grouped(values: Array, name: str, config: Any) -> Array:
    """Put the value heads of each key head side by side; the file has the first ones of all key
    heads, then the second ones."""
    if ".linear_attn." not in name or "norm" in name:
        return values
    heads, axis = config.linear_num_key_heads, values.ndim - 1 if ".out_proj" in name else 0
    is_joint = "in_proj_qkv" in name or "conv1d" in name
    start = 2 * heads * config.linear_key_head_dim if is_joint else 0
    others, rows = np.split(values, [start], axis)
    many = config.linear_num_value_heads // heads
    shape = rows.shape
    rows = rows.reshape(*shape[:axis], many, heads, -1, *shape[axis + 1 :])
    return np.concatenate([others, rows.swapaxes(axis, axis + 1).reshape(shape)], axis)


ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "llama": Architecture("llama", is_interleaved=True),
        "llama experts": Architecture("mixtral", is_interleaved=True),
        "afmoe": Architecture("afmoe", fields={"mup_enabled": True}),
        "apertus": Architecture("apertus", fields={"rope_scaling": _UNSCALED}),
        "arcee": Architecture("arcee", is_interleaved=True),
        "chatglm": Architecture("glm"),
        "cohere2": Architecture("cohere2"),
        "command-r": Architecture("cohere"),
        "dots1": Architecture("dots1"),
        "ernie4_5": Architecture("ernie4_5"),
        "ernie4_5-moe": Architecture("ernie4_5_moe"),
        "exaone4": Architecture("exaone4", further=_exaone4),
        "falcon-h1": Architecture(
            "falcon_h1",
            fields={"mamba_norm_before_gate": False, "embedding_multiplier": 1.0},
            further=_falcon_h1,
        ),
        "gemma": Architecture("gemma", norm_offset=1.0),
        "gemma3": Architecture("gemma3_text", further=_gemma3, norm_offset=1.0),
        "glm4": Architecture("glm4"),
        "glm4moe": Architecture("glm4_moe"),
        "gpt-oss": Architecture("gpt_oss", further=_gpt_oss, change=_alternating_experts),
        "gpt2": Architecture("gpt2", change=_transposed),
        "gptneox": Architecture("gpt_neox", further=_gpt_neox, change=_heads_first),
        "granite": Architecture("granite", is_interleaved=True),
        "granitehybrid": Architecture(
            "granitemoehybrid",
            further=_state_space,
            is_interleaved=True,
            recurrent="linear_attention",
        ),
        "granitemoe": Architecture("granitemoe", is_interleaved=True),
        "granitemoe shared": Architecture("granitemoeshared", is_interleaved=True),
        "hunyuan-dense": Architecture("hunyuan_v1_dense"),
        "hunyuan-moe": Architecture("hunyuan_v1_moe"),
        "internlm2": Architecture("llama", is_interleaved=True),
        "jamba": Architecture("jamba", further=_jamba),
        "lfm2": Architecture("lfm2", fields={"block_auto_adjust_ff_dim": False}, recurrent="conv"),
        "lfm2moe": Architecture("lfm2_moe", recurrent="conv"),
        "minimax-m2": Architecture("minimax_m2"),
        "mistral3": Architecture("ministral3", further=_ministral3, is_interleaved=True),
        "nemotron": Architecture("nemotron", norm_offset=1.0),
        "nemotron_h": Architecture("nemotron_h", further=_nemotron_h),
        "nemotron_h_moe": Architecture("nemotron_h", further=_nemotron_h),
        "olmo": Architecture("olmo", is_interleaved=True),
        "olmo2": Architecture("olmo2"),
        "olmo2 window": Architecture("olmo3"),
        "olmoe": Architecture("olmoe"),
        "phi2": Architecture("phi"),
        "phi3": Architecture("phi3"),
        "qwen2": Architecture("qwen2"),
        "qwen2moe": Architecture("qwen2_moe"),
        "qwen2vl": Architecture("qwen2"),
        "qwen3": Architecture("qwen3"),
        "qwen3vl": Architecture("qwen3"),
        "qwen3vlmoe": Architecture("qwen3_moe", fields={"norm_topk_prob": True}),
        "qwen35": Architecture(
            "qwen3_5_text",
            further=_delta_net,
            norm_offset=1.0,
            recurrent="linear_attention",
            change=_value_heads_grouped,
        ),
        "qwen35moe": Architecture(
            "qwen3_5_moe_text",
            further=_delta_net,
            norm_offset=1.0,
            recurrent="linear_attention",
            change=_value_heads_grouped,
        ),
        "qwen3moe": Architecture("qwen3_moe", fields={"norm_topk_prob": True}),
        "qwen3next": Architecture(
            "qwen3_next",
            fields={"norm_topk_prob": True},
            further=_delta_net,
            norm_offset=1.0,
            recurrent="linear_attention",
            change=_by_key_heads,
        ),
        "seed_oss": Architecture("seed_oss"),
        "smollm3": Architecture("smollm3", is_interleaved=True),
        "stablelm": Architecture("stablelm"),
        "starcoder": Architecture("gpt_bigcode"),
        "starcoder2": Architecture("starcoder2"),
    }
)
"""How to read a file, by its `general.architecture`. A key with a second word, one of `_PARTS`, is
for files with that part. Whether a cache serves the model, the table does not say."""
_PARTS = {
    "shared": "expert_shared_feed_forward_length",
    "experts": "expert_count",
    "window": "attention.sliding_window",
}
"""Metadata whose presence makes a model one of another family, by the second word of the key."""


def architecture_of(header: GgufHeader) -> Architecture:
    """Return how to read a file.

    Raises:
        GgufError: the architecture is not known, or not to the transformers that is installed.
    """
    name = header.architecture
    parts = (f"{name} {word}" for word, key in _PARTS.items() if header.number(key, 0))
    found = next((ARCHITECTURES[part] for part in parts if part in ARCHITECTURES), None)
    found = found or ARCHITECTURES.get(name)
    if found is None:
        known = ", ".join(name for name in ARCHITECTURES if " " not in name)
        raise GgufError(
            f"{header.path}: the architecture {name!r} cannot be read from GGUF; known: {known}"
        )
    if found.model_type not in CONFIG_MAPPING:
        raise GgufError(f"{header.path} needs a transformers that knows {found.model_type}")
    return found
