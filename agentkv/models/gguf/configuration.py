"""The configuration of a GGUF file's model, as transformers has it."""

import inspect
from collections.abc import Mapping
from typing import Any

from transformers import CONFIG_MAPPING

from agentkv.models.gguf.architectures import Architecture, architecture_of
from agentkv.models.gguf.header import GgufError, GgufHeader
from agentkv.models.gguf.rotation import head_dim, rotation

_REQUIRED = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size n_embd",
    "attention.head_count": "num_attention_heads n_head",
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling logit_scale",
    "expert_count": "num_experts num_local_experts n_routed_experts moe_num_experts",
    "expert_used_count": "num_experts_per_tok moe_k moe_topk",
    "shortconv.l_cache": "conv_L_cache",
    "ssm.conv_kernel": "mamba_d_conv linear_conv_kernel_dim conv_kernel",
    "ssm.state_size": "mamba_d_state linear_key_head_dim ssm_state_size",
    "ssm.group_count": "mamba_n_groups linear_num_key_heads n_groups",
    "ssm.time_step_rank": "mamba_n_heads linear_num_value_heads mamba_num_heads mamba_dt_rank",
}
"""Names that configurations give to a value of the file. A family that has one needs the value."""
_OPTIONAL = {
    "feed_forward_length": "intermediate_size n_inner",
    "attention.sliding_window": "sliding_window",
    "attention.clamp_kqv": "clip_qkv",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "use_parallel_residual": "use_parallel_residual",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size shared_intermediate_size "
    "moe_shared_expert_intermediate_size",
    "moe_latent_size": "moe_latent_size",
    "expert_shared_count": "n_shared_experts moe_num_shared_experts num_shared_experts",
    "expert_weights_scale": "routed_scaling_factor route_scale",
    "expert_weights_norm": "norm_topk_prob route_norm",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "leading_dense_block_count": "first_k_dense_replace moe_layer_start_index num_dense_layers",
    "interleave_moe_layer_step": "moe_layer_interval",
}
"""As `_REQUIRED`, of values that a file may leave out."""
_ABSENT = {
    "attention.sliding_window": None,
    "expert_shared_count": 0,
    "leading_dense_block_count": 0,
}
"""Values that stand for missing metadata, where the configuration has another default."""
_REFUSED = (
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "expert_count",
    "logit_scale",
    "embedding_scale",
    "residual_scale",
    "attention.scale",
    "attention.clamp_kqv",
)
"""Values that change what a model computes. A family without a name for one is refused."""
_NORM_NAMES = "rms_norm_eps layer_norm_eps norm_eps layer_norm_epsilon norm_epsilon"
_NORM_KEYS = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon")
_PRESENT = {
    "attn_q.bias attn_qkv.bias": "attention_bias use_qkv_bias qkv_bias use_bias",
    "ffn_up.bias": "mlp_bias",
    "attn_q_norm.weight": "use_qk_norm qk_layernorm",
    "output.bias": "lm_head_bias",
    "ssm_norm.weight": "mamba_rms_norm",
    "ssm_conv1d.bias": "mamba_conv_bias use_conv_bias",
}
"""Names that configurations give to the presence of one of some tensors."""


def config_of(header: GgufHeader, ends: list[int]) -> Any:
    """Return the configuration of a file's model.

    Args:
        ends: ids that end a reply.

    Raises:
        GgufError: the architecture is not known, a value is missing, or the file has a part that
            cannot be told to transformers.
    """
    found = architecture_of(header)
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise GgufError(f"{header.path} has no embedding (token_embd.weight)")
    tokens = header.metadata.get("tokenizer.ggml.tokens", ())
    if len(tokens) != embedding.shape[0]:
        raise GgufError(
            f"{header.path}: the vocabulary has {len(tokens)} tokens, "
            f"but the embedding has {embedding.shape[0]} rows"
        )
    with header.refusing(f"is no {found.model_type}"):
        make = CONFIG_MAPPING[found.model_type]
        known = {*inspect.signature(make).parameters, *make.attribute_map}
        fields = {
            "vocab_size": embedding.shape[0],
            "tie_word_embeddings": "output.weight" not in header.tensors,
            "architectures": None,
            "dtype": "bfloat16",  # caches store it, and a GPU computes in it
            "eos_token_id": ends,
            "bos_token_id": header.metadata.get("tokenizer.ggml.bos_token_id"),
            "pad_token_id": header.metadata.get("tokenizer.ggml.padding_token_id"),
            **found.fields,
            **_told(header, known - found.fields.keys()),
        }
        if "position_embd.weight" not in header.tensors:
            fields |= {
                "num_key_value_heads": _heads(header),
                "head_dim": head_dim(header),
                **rotation(header),
            }
        fields |= _layers(header, found, fields) | found.further(header)
        return make(**fields)


def _told(header: GgufHeader, known: set[str]) -> dict[str, Any]:
    """Return the fields among `known` that a value or a tensor of the file tells."""

    def named(names: str) -> str | None:
        return next((name for name in names.split() if name in known), None)

    fields = {}
    has_experts = "ffn_gate_inp.weight" in header.kinds_of_tensors
    for key, names in (_REQUIRED | _OPTIONAL).items():
        name = named(names)
        value = header.metadata.get(f"{header.architecture}.{key}")
        if name is None:
            if value and key in _REFUSED:
                raise GgufError(
                    f"{header.path}: a {header.architecture} with {key} {value} cannot be read"
                )
        elif value is not None:
            fields[name] = _one(header, key, value) or _ABSENT.get(key, value)
        elif key in _ABSENT:
            fields[name] = _ABSENT[key]
        elif key in _REQUIRED and (has_experts or not key.startswith("expert_")):
            fields[name] = header.number(key)
    for tensors, names in _PRESENT.items():
        name = named(names)
        if name is not None:
            fields[name] = not header.kinds_of_tensors.isdisjoint(tensors.split())
    name = named(_NORM_NAMES)
    if name is not None:
        keys = [key for key in _NORM_KEYS if header.number(key, 0)]
        fields[name] = header.number(keys[0] if keys else _NORM_KEYS[0])
    return fields


def _layers(header: GgufHeader, found: Architecture, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return how many layers there are, and their kinds where the file tells them."""
    count = header.num_layers
    if not 0 < count <= len(header.tensors):
        raise GgufError(
            f"{header.path} says that it has {count} layers, but has {len(header.tensors)} tensors"
        )
    kinds: list[str] = []
    windows = header.number("attention.sliding_window_pattern", 0)
    if found.recurrent:
        attends = [f"blk.{i}.attn_k.weight" in header.tensors for i in range(count)]
        kinds = ["full_attention" if each else found.recurrent for each in attends]
    elif windows and fields.get("sliding_window"):
        if isinstance(windows, int):
            windows = [(i + 1) % windows for i in range(count)]
        kinds = ["sliding_attention" if each else "full_attention" for each in windows[:count]]
    return {"num_hidden_layers": count} | ({"layer_types": kinds} if kinds else {})


def _heads(header: GgufHeader) -> int:
    heads = header.number("attention.head_count")
    return int(_one(header, "attention.head_count_kv", heads))


def _one(header: GgufHeader, key: str, default: Any) -> Any:
    """Return the value of all layers that have one."""
    value = header.number(key, default)
    if not isinstance(value, list):
        return value
    values = {each for each in value if each}
    if len(values) != 1:
        raise GgufError(f"{header.path}: layers with different {key} cannot be read")
    return values.pop()
