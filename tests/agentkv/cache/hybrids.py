"""Tiny models of every hybrid family, with as few layers as they have kinds."""

import copy

import pytest
import torch
import transformers

from tests.agentkv.cache.conftest import SIZES

CONVOLUTION = {"conv_L_cache": 3}
LINEAR = {
    "linear_conv_kernel_dim": 3, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4,
}  # fmt: skip
STATE_SPACE = {
    "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 8,
    "mamba_d_conv": 3, "mamba_expand": 2, "mamba_chunk_size": 8,
}  # fmt: skip
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
SHARED_EXPERT = {"shared_expert_intermediate_size": 16}


def layers(*kinds):
    return {"layer_types": list(kinds), "num_hidden_layers": len(kinds)}


CONV = layers("conv", "full_attention", "conv")
BETWEEN = layers("full_attention", "linear_attention", "full_attention")
FIRST = layers("linear_attention", "full_attention")

HYBRIDS = {
    "lfm2": ("Lfm2", CONVOLUTION | CONV | {"block_auto_adjust_ff_dim": False}),
    "lfm2_moe": ("Lfm2Moe", CONVOLUTION | CONV | EXPERTS | {"num_dense_layers": 1}),
    "lfm3": (
        "Lfm3",
        CONVOLUTION | layers("sliding_attention", "conv", "full_attention")
        | {"sliding_window": 12},
    ),
    "qwen3_next": ("Qwen3Next", LINEAR | EXPERTS | SHARED_EXPERT | BETWEEN),
    "qwen3_5_text": ("Qwen3_5", LINEAR | FIRST),
    "qwen3_5_moe_text": ("Qwen3_5Moe", LINEAR | EXPERTS | SHARED_EXPERT | FIRST),
    "granitemoehybrid": (
        "GraniteMoeHybrid",
        STATE_SPACE | FIRST
        | {"num_local_experts": 2, "num_experts_per_tok": 1, "shared_intermediate_size": 16},
    ),
    "nemotron_h": (
        "NemotronH",
        {
            "mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 1, "ssm_state_size": 8,
            "conv_kernel": 3, "chunk_size": 8, "num_hidden_layers": None,
            "layers_block_type": ["linear_attention", "mlp", "full_attention"],
        },
    ),
    "olmo_hybrid": ("OlmoHybrid", LINEAR | FIRST),
    "falcon_h1": ("FalconH1", STATE_SPACE | {"mamba_d_ssm": 64, "num_hidden_layers": 2}),
    "jamba": (
        "Jamba",
        EXPERTS
        | {
            "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8, "mamba_d_conv": 3,
            "num_hidden_layers": 2,
        },
    ),
}  # fmt: skip
"""By `config.model_type`: prefix of the classes, and their sizes."""

IS_SERVED = hasattr(transformers.Cache, "get_conv_state")
"""Whether this transformers lets other caches keep the states; older ones have their own."""

_made = {}


def fresh(family, **sizes):
    """A model that nobody has attached yet; equal families and sizes give equal weights."""
    prefix, own = HYBRIDS[family]
    if not IS_SERVED or not hasattr(transformers, f"{prefix}ForCausalLM"):
        pytest.skip(f"this transformers does not serve {family} with caches of others")
    if sizes:
        return _make(prefix, SIZES | own | sizes)
    if family not in _made:
        _made[family] = _make(prefix, SIZES | own)
    return copy.deepcopy(_made[family])


def _make(prefix, sizes):
    torch.manual_seed(0)
    of_text = getattr(transformers, f"{prefix}TextConfig", None)
    config = of_text or getattr(transformers, f"{prefix}Config")
    given = {key: value for key, value in sizes.items() if key != "num_hidden_layers" or value}
    model = getattr(transformers, f"{prefix}ForCausalLM")(config(**given)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() >= 2 and any(part in name for part in ("q_proj", "k_proj", "mixer")):
                weight.mul_(6)  # else attention is flat and anything passes
    return model
