"""Tiny random models of every family that is tested, by `config.model_type`."""

import copy
from functools import cache

import torch
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedModel,
    SiglipVisionConfig,
)

VOCAB = 64
SIZES = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0,
    "bos_token_id": None, "eos_token_id": None, "max_position_embeddings": 512,
}  # fmt: skip
MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 12}
EXPERTS = {
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "n_group": 1, "topk_group": 1, "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}  # fmt: skip
VISION = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "image_size": 8, "patch_size": 4, "depth": 1, "num_heads": 2, "embed_dim": 16,
    "out_hidden_size": 32, "num_position_embeddings": 4, "deepstack_visual_indexes": [0],
}  # fmt: skip
TURNED = {"rope_type": "default", "rope_theta": 10000.0}
SECTIONS = TURNED | {"mrope_section": [1, 1, 2]}

GEMMA4 = MIXED | {
    "num_kv_shared_layers": 0, "global_head_dim": 16, "hidden_size_per_layer_input": 0,
    "attention_k_eq_v": True, "num_global_key_value_heads": 1,
    "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16,
}  # fmt: skip
"""The sizes that share no keys between layers: 26B-A4B and 31B."""

SHARING = {
    "num_hidden_layers": 5, "num_kv_shared_layers": 3, "sliding_window": 12,
    "layer_types": [f"{kind}_attention" for kind in ("sliding", "full", *["sliding"] * 2, "full")],
    "vocab_size_per_layer_input": VOCAB, "hidden_size_per_layer_input": 8,
}  # fmt: skip
"""Two layers with keys, of which the first serves two others and the second one."""
GEMMA3N = SHARING | {"activation_sparsity_pattern": [0.9] * 2 + [0.0] * 3, "laurel_rank": 4}
GEMMA4_SMALL = SHARING | {"global_head_dim": 16, "use_double_wide_mlp": True}

CHANGES: dict[str, dict[str, object]] = {
    "afmoe": EXPERTS | MIXED | {"num_dense_layers": 1},
    "apertus": {},
    "arcee": {},
    "aria_text": EXPERTS | {"moe_num_experts": 4, "moe_topk": 2},
    "bitnet": {},
    "cohere": {"logit_scale": 1.0},
    "cohere2": MIXED | {"logit_scale": 1.0},
    "dots1": EXPERTS | MIXED,
    "ernie4_5": {},
    "ernie4_5_moe": EXPERTS | {"moe_num_experts": 4, "moe_k": 2},
    "exaone4": MIXED,
    "flex_olmo": EXPERTS,
    "gemma": {},
    "gemma3_text": MIXED | {"query_pre_attn_scalar": 3},
    "gemma3n_text": GEMMA3N,
    "gemma4_text": GEMMA4,
    "gemma4_text E2B": GEMMA4_SMALL,
    "glm": {},
    "glm4": {},
    "glm4_moe": EXPERTS,
    "gpt2": {"n_positions": 160, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 48},
    "gpt_bigcode": {"n_positions": 160, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 48},
    "gpt_neox": {"rotary_pct": 0.5},
    "gpt_oss": EXPERTS | MIXED,
    "granite": {
        "attention_multiplier": 0.2, "residual_multiplier": 0.5, "embedding_multiplier": 3.0,
        "logits_scaling": 2.0,
    },
    "granitemoe": EXPERTS | {"attention_multiplier": 0.2, "residual_multiplier": 0.5},
    "granitemoeshared": EXPERTS | {"shared_intermediate_size": 16},
    "helium": {},
    "hunyuan_v1_dense": {},
    "hunyuan_v1_moe": EXPERTS | {"moe_topk": 2},
    "hyperclovax": {},
    "internlm3": {},
    "jais2": {},
    "llama": {},
    "minimax_m2": EXPERTS | {"rotary_dim": 4},
    "ministral": MIXED,
    "ministral3": {},
    "mistral": {"sliding_window": 24},
    "mixtral": EXPERTS,
    "nanochat": {},
    "nemotron": {},
    "olmo": {"clip_qkv": 2.0},
    "olmo2": {},
    "olmo3": MIXED,
    "olmoe": EXPERTS,
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "persimmon": {},
    "phi": {"partial_rotary_factor": 0.5},
    "phi3": {"sliding_window": 12},
    "phimoe": EXPERTS,
    "qwen2": {"attention_bias": True},
    "qwen2_moe": EXPERTS | {"shared_expert_intermediate_size": 16},
    "qwen3": {},
    "qwen3_moe": EXPERTS,
    "seed_oss": {},
    "smollm3": {"no_rope_layers": [1, 0]},
    "solar_open": EXPERTS,
    "stablelm": {"partial_rotary_factor": 0.5},
    "starcoder2": {},
    "gemma3": MIXED,
    "gemma3n": GEMMA3N,
    "gemma4": GEMMA4,
    "gemma4 E2B": GEMMA4_SMALL,
    "mistral3": {},
    "qwen2_5_vl": {"rope_parameters": SECTIONS},
    "qwen2_vl": {"rope_parameters": SECTIONS},
    "qwen3_vl": {"rope_parameters": SECTIONS | {"mrope_interleaved": True}},
    "smolvlm": {},
}  # fmt: skip
"""What a family's configuration has besides `SIZES`, or in place of it. A word after the family
names a size that attends in another way."""

SINCE_5 = frozenset(
    {
        "afmoe", "apertus", "gemma4", "gemma4 E2B", "gemma4_text", "gemma4_text E2B", "granitemoe",
        "granitemoeshared",
        "hyperclovax", "internlm3", "jais2", "minimax_m2", "ministral3", "nanochat", "nemotron",
        "olmoe", "opt", "persimmon", "phimoe", "qwen2_5_vl", "qwen2_moe", "qwen2_vl",
        "qwen3_vl", "smolvlm", "solar_open", "stablelm",
    }
)  # fmt: skip
"""Families that transformers 4.57 does not have, or writes so that the cache refuses them."""
SEEING = (
    "gemma3", "gemma3n", "gemma4", "gemma4 E2B", "mistral3", "qwen2_5_vl", "qwen2_vl", "qwen3_vl",
    "smolvlm",
)  # fmt: skip
"""Families that see pictures: their changes belong to the configuration of the decoder."""


def tiny_config(family: str) -> object:
    """The configuration of a tiny model."""
    sizes, is_seeing = SIZES | CHANGES[family], family in SEEING
    family = family.partition(" ")[0]
    if not is_seeing:
        return CONFIG_MAPPING[family](**sizes)
    if family == "gemma3n":
        return _gemma3n(sizes)
    known = CONFIG_MAPPING[family]()
    parts = {"text_config": sizes, "vision_config": VISION}
    if family in ("smolvlm", "mistral3"):
        parts["text_config"] = sizes | {"model_type": known.text_config.model_type}
    if family in ("gemma3", "mistral3"):
        parts["vision_config"] = VISION | {"model_type": known.vision_config.model_type}
    pictures = {"image_token_id": 61, "video_token_id": 62, "vision_start_token_id": 60}
    if family == "gemma3":
        pictures = {"image_token_index": 61, "boi_token_index": 60, "eoi_token_index": 62}
        pictures["mm_tokens_per_image"] = 4
    if family == "gemma4":
        parts["vision_config"] = VISION | {"head_dim": 8}
    if family == "mistral3":
        pictures = {"image_token_index": 61}
    return CONFIG_MAPPING[family](**parts, **pictures, pad_token_id=0)


def _gemma3n(sizes: dict[str, object]) -> object:
    config = CONFIG_MAPPING["gemma3n"](text_config=sizes, pad_token_id=0)
    for name, value in {"hidden_size": 16, "conf_num_hidden_layers": 1}.items():
        setattr(config.audio_config, name, value)
    # a tower of pictures that needs no further package; it sees none
    vision = SiglipVisionConfig(**VISION, rms_norm_eps=1e-6, vocab_offset=VOCAB, vocab_size=8)
    object.__setattr__(config, "vision_config", vision)
    return config


@cache
def _made(family: str) -> PreTrainedModel:
    kind = AutoModelForImageTextToText if family in SEEING else AutoModelForCausalLM
    return _with_random_weights(kind, tiny_config(family))


def _with_random_weights(kind: type, config: object) -> PreTrainedModel:
    torch.manual_seed(0)
    model = kind.from_config(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "embed" in name and not config.tie_word_embeddings:
                continue
            if weight.dim() >= 2 and "norm" not in name:
                weight.mul_(6)  # else attention is flat and anything passes
            else:
                weight.add_(torch.randn_like(weight) / 8)  # else norms and biases do nothing
    return model.eval()


def tiny(family: str) -> PreTrainedModel:
    """A model that nobody has attached; equal families give equal weights."""
    return copy.deepcopy(_made(family))


def changed(family: str, **changes: object) -> PreTrainedModel:
    """A tiny model of a family that sees no pictures, with another configuration."""
    sizes = SIZES | CHANGES[family] | changes
    config = CONFIG_MAPPING[family.partition(" ")[0]](**sizes)
    return _with_random_weights(AutoModelForCausalLM, config)
