"""Which model of transformers a GGUF file holds, and how its tensors get there.

Shapes: H heads, D head size.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from agentkv.models.gguf.header import GgufError, GgufHeader, gguf_package

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Architecture:
    """How the files of an architecture of llama.cpp differ from a model of transformers."""

    model_type: str
    numbers: Mapping[str, str] = field(default_factory=dict)
    """Further fields of the configuration, by the names of their values in the file."""
    further: Callable[[GgufHeader], dict[str, Any]] = lambda header: {}
    """Returns further fields of the configuration."""
    is_interleaved: bool = False
    """True if the rows of queries and keys alternate between the two halves of each head."""
    norm_offset: float = 0.0
    """What the file adds to the weights of norms."""
    transposed: tuple[str, ...] = ()
    """Parts of names of tensors that transformers stores transposed."""


def _llama(header: GgufHeader) -> dict[str, Any]:
    return {
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in header.tensors,
    }


def _gemma3(header: GgufHeader) -> dict[str, Any]:
    size, heads = header.number("embedding_length"), header.number("attention.head_count")
    is_27b = header.number("block_count") == 62  # llama.cpp tells it by its layers as well
    return {
        "query_pre_attn_scalar": size // heads if is_27b else _head_dim(header),
        "rope_local_base_freq": header.number("rope.freq_base_swa", 10_000.0),
    }


def _gpt2(header: GgufHeader) -> dict[str, Any]:
    return {
        "n_positions": header.number("context_length"),
        "n_embd": header.number("embedding_length"),
        "n_layer": header.number("block_count"),
        "n_head": header.number("attention.head_count"),
        "n_inner": header.number("feed_forward_length"),
        "layer_norm_epsilon": header.number("attention.layer_norm_epsilon"),
    }


_GRANITE = {
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
    "attention_multiplier": "attention.scale",
}
ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "llama": Architecture("llama", further=_llama, is_interleaved=True),
        "qwen2": Architecture("qwen2"),
        "qwen3": Architecture("qwen3"),
        "gemma3": Architecture(
            "gemma3_text",
            numbers={"sliding_window": "attention.sliding_window"},
            further=_gemma3,
            norm_offset=1.0,
        ),
        "gpt2": Architecture(
            "gpt2",
            further=_gpt2,
            transposed=("attn_qkv.weight", "attn_output.weight", "ffn_up", "ffn_down"),
        ),
        "granite": Architecture("granite", numbers=_GRANITE, is_interleaved=True),
        "olmo2": Architecture("olmo2"),
        "phi3": Architecture("phi3"),
        "seed_oss": Architecture("seed_oss"),
        "smollm3": Architecture("smollm3", is_interleaved=True),
    }
)
"""What can be read, by `general.architecture`. Whether a cache serves the model is asked of the
model, not of this table."""

_NUMBERS = {
    "max_position_embeddings": "context_length",
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
_LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3_POSITIONS = 8192
_FACTORS = "rope_freqs.weight"


def architecture_of(header: GgufHeader) -> Architecture:
    """Return how to read a file.

    Raises:
        GgufError: the architecture is not known, or not to the transformers that is installed.
    """
    found = ARCHITECTURES.get(header.architecture)
    if found is None:
        raise GgufError(
            f"{header.path}: the architecture {header.architecture!r} cannot be read from GGUF; "
            f"known: {', '.join(ARCHITECTURES)}"
        )
    if found.model_type not in CONFIG_MAPPING:
        raise GgufError(f"{header.path} needs a transformers that knows {found.model_type}")
    return found


def config_of(header: GgufHeader, ends: list[int]) -> Any:
    """Return the configuration of a file's model, as transformers has it.

    Args:
        ends: ids that end a reply.

    Raises:
        GgufError: the architecture is not known, a number is missing, or the file has a part that
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
    if header.number("expert_count", 0):
        raise GgufError(f"{header.path}: a {header.architecture} with experts cannot be read")
    values: dict[str, Any] = {
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "architectures": None,
        "dtype": "bfloat16",  # that of caches, and of the weights on a GPU
        "eos_token_id": ends,
        "bos_token_id": header.metadata.get("tokenizer.ggml.bos_token_id"),
        "pad_token_id": header.metadata.get("tokenizer.ggml.padding_token_id"),
    }
    if found.model_type != "gpt2":
        values |= {name: header.number(key) for name, key in _NUMBERS.items()}
        heads = values["num_attention_heads"]
        values["num_key_value_heads"] = header.number("attention.head_count_kv", heads)
        values["head_dim"] = _head_dim(header)
        values["rope_theta"] = float(header.number("rope.freq_base", 10_000.0))
        values |= _rope_scaling(header)
    values |= {name: header.number(key) for name, key in found.numbers.items()}
    values |= found.further(header)
    return CONFIG_MAPPING[found.model_type](**values)


def _head_dim(header: GgufHeader) -> int:
    size, heads = header.number("embedding_length"), header.number("attention.head_count")
    whole = int(header.number("attention.key_length", size // heads))
    turned = header.number("rope.dimension_count", whole)
    if turned != whole:
        raise GgufError(f"{header.path}: rotation of {turned} of {whole} numbers cannot be read")
    return whole


def _rope_scaling(header: GgufHeader) -> dict[str, Any]:
    kind = header.number("rope.scaling.type", "none")
    if _FACTORS in header.tensors:
        factors = read_tensor(header, _FACTORS)
        scaling = {
            "rope_type": "llama3",
            "factor": float(factors.max()),
            "original_max_position_embeddings": _LLAMA3_POSITIONS,
            **_LLAMA3_ROPE,
        }
        base = float(header.number("rope.freq_base", 10_000.0))
        if not np.allclose(factors, _llama3_factors(base, len(factors), scaling), rtol=1e-3):
            raise GgufError(f"{header.path}: the factors of {_FACTORS} are not those of Llama 3")
        return {"rope_scaling": scaling}
    if any(name.startswith("rope_factors_") for name in header.tensors):
        raise GgufError(f"{header.path}: rotation with factors (rope_factors_long) cannot be read")
    if kind == "none":
        return {}
    if kind not in ("linear", "yarn"):
        raise GgufError(f"{header.path}: the rotation {kind!r} (rope.scaling.type) is not known")
    scaling = {"rope_type": kind, "factor": float(header.number("rope.scaling.factor"))}
    if kind == "yarn":
        key = "original_max_position_embeddings"
        scaling[key] = header.number("rope.scaling.original_context_length")
    return {"rope_scaling": scaling}


def _llama3_factors(base: float, count: int, scaling: Mapping[str, Any]) -> Array:
    """Return (D / 2,): what Llama 3 divides frequencies by."""
    waves = 2 * np.pi * base ** (np.arange(count) / count)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] / waves
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    factors: Array = 1 / ((1 - smooth) / scaling["factor"] + smooth)
    return factors


def empty_model(config: Any) -> Any:
    """Return a model without weights (device meta)."""
    with torch.device("meta"):
        make: Any = AutoModelForCausalLM.from_config
        return make(config)


def places_of(header: GgufHeader, model: Any) -> dict[str, str]:
    """Return the tensor of the file for each weight of a model, by the weight's name.

    Raises:
        GgufError: a tensor is missing, has another shape, or belongs to nothing.
    """
    gguf = gguf_package()
    found = architecture_of(header)
    number = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}[header.architecture]
    names = gguf.get_tensor_name_map(number, model.config.num_hidden_layers)
    places = {}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        tensor = header.tensors.get(str(theirs))
        if tensor is None:
            raise GgufError(f"{header.path} has no tensor {theirs or name}")
        is_turned = any(part in tensor.name for part in found.transposed)
        shape = tuple(weight.shape)[:: -1 if is_turned else 1]
        if tensor.shape != shape:
            raise GgufError(
                f"{header.path}: {tensor.name} has the shape {tensor.shape}; expected {shape}"
            )
        places[name] = tensor.name
    left = sorted(set(header.tensors) - {*places.values(), _FACTORS})
    if left:
        raise GgufError(f"{header.path}: {left[0]} belongs to nothing in a {found.model_type}")
    return places


def read_tensor(header: GgufHeader, name: str) -> Array:
    """Return a tensor as float32 numbers."""
    tensor = header.tensors[name]
    package = gguf_package()
    raw = np.fromfile(tensor.path, np.uint8, tensor.nbytes, offset=tensor.offset)
    block, nbytes = package.GGML_QUANT_SIZES[tensor.format]
    rows = raw.reshape(*tensor.shape[:-1], tensor.shape[-1] // block * nbytes)
    values: Array = package.dequantize(rows, tensor.format)
    return np.ascontiguousarray(values, np.float32)


def require_readable(header: GgufHeader) -> None:
    """Check that the formats of all tensors can be read, without reading them.

    Raises:
        GgufError: naming a tensor that cannot.
    """
    package = gguf_package()
    for form, tensor in {each.format: each for each in header.tensors.values()}.items():
        _, nbytes = package.GGML_QUANT_SIZES[form]
        try:
            package.dequantize(np.zeros((1, nbytes), np.uint8), form)
        except (NotImplementedError, TypeError):
            raise GgufError(
                f"{header.path}: {tensor.name} is quantized as {form.name}, which cannot be read"
            ) from None


def weight_of(header: GgufHeader, name: str, config: Any) -> Array:
    """Return a tensor as the weight of transformers, in float32."""
    found = ARCHITECTURES[header.architecture]
    values = read_tensor(header, name)
    if found.is_interleaved and (".attn_q." in name or ".attn_k." in name):
        heads = config.num_attention_heads if ".attn_q." in name else config.num_key_value_heads
        rows = values.shape[0] // heads
        pairs = values.reshape(heads, rows // 2, 2, *values.shape[1:])
        values = pairs.swapaxes(1, 2).reshape(values.shape)
    if found.norm_offset and name.endswith("norm.weight"):
        values = values - np.float32(found.norm_offset)
    if values.ndim == 2 and any(part in name for part in found.transposed):
        values = values.T
    return np.ascontiguousarray(values)
