"""Models of the benchmarks: a local model, or random weights in a published shape."""

import copy
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GptOssConfig,
    LlamaConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)
from transformers.utils import logging

from agentkv.cache.hf.trim import trim_heap
from agentkv.models.find import (
    ModelError,
    find_model,
    gguf_in_blocks,
    is_gguf,
    model_folder,
    require_quantizable,
)
from agentkv.settings import Weights
from agentkv.weights.huge_pages import move_weights
from agentkv.weights.linear import QuantizedEmbedding, QuantizedLinear
from agentkv.weights.replace import quantize_linear
from agentkv_tasks.bench.host import dtype_name

_FROM: Any = AutoModelForCausalLM  # which has no types

SMALL_VOCABULARY = 8192
"""Vocabulary of a shape whose own does not fit (our choice)."""
FEW_EXPERTS = 4
"""Experts of a layer whose own do not fit: as many as gpt-oss uses per token."""
MOST_BYTES = 3 << 30
"""Limit of a shape's weights on a CPU, so that it runs anywhere (our choice)."""
MOST_OF_GPU = 0.7
"""Share of a GPU's total memory for weights, so that 24 GB hold 8e9 of them in 16 bits. Free memory
is no basis: every process of a measurement must choose the same number of layers."""

_NO_SPECIAL: Mapping[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
_QWEN3: Mapping[str, Any] = {"rope_theta": 1e6, "head_dim": 128, "vocab_size": 151936}
SHAPES: Mapping[str, tuple[type[PreTrainedConfig], Mapping[str, Any]]] = MappingProxyType(
    {
        "tiny": (
            LlamaConfig,
            {
                "vocab_size": 256,
                "hidden_size": 64,
                "intermediate_size": 96,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "head_dim": 16,
            },
        ),
        "gpt2": (GPT2Config, {}),
        "qwen2.5-0.5b": (
            Qwen2Config,
            {
                "vocab_size": 151936,
                "hidden_size": 896,
                "intermediate_size": 4864,
                "num_hidden_layers": 24,
                "num_attention_heads": 14,
                "num_key_value_heads": 2,
                "tie_word_embeddings": True,
            },
        ),
        "qwen3-0.6b": (
            Qwen3Config,
            {
                **_QWEN3,
                "hidden_size": 1024,
                "intermediate_size": 3072,
                "num_hidden_layers": 28,
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
                "tie_word_embeddings": True,
            },
        ),
        "llama-3.1-8b": (
            LlamaConfig,
            {
                "vocab_size": 128256,
                "hidden_size": 4096,
                "intermediate_size": 14336,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "rope_theta": 5e5,
            },
        ),
        "qwen3-14b": (
            Qwen3Config,
            {
                **_QWEN3,
                "hidden_size": 5120,
                "intermediate_size": 17408,
                "num_hidden_layers": 40,
                "num_attention_heads": 40,
                "num_key_value_heads": 8,
            },
        ),
        "qwen3-32b": (
            Qwen3Config,
            {
                **_QWEN3,
                "hidden_size": 5120,
                "intermediate_size": 25600,
                "num_hidden_layers": 64,
                "num_attention_heads": 64,
                "num_key_value_heads": 8,
            },
        ),
        "gpt-oss-20b": (
            GptOssConfig,
            {
                "vocab_size": 201088,
                "hidden_size": 2880,
                "intermediate_size": 2880,
                "num_hidden_layers": 24,
                "num_attention_heads": 64,
                "num_key_value_heads": 8,
                "head_dim": 64,
                "num_local_experts": 32,
                "num_experts_per_tok": 4,
                "sliding_window": 128,
            },
        ),
    }
)
"""Published configurations, without weights; `tiny` is ours."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in evaluation mode on its device, with transformers' own attention."""

    name: str
    model: Any
    """The model in floating point. Where agentkv serves quantized weights, these are the numbers
    that they stand for."""
    scaled: str
    """Changes to the size of the shape; empty for none."""
    served: Any
    """The model that agentkv serves, not attached: `model`, or one with quantized weights."""
    file: Path | None = None
    """The GGUF file of the model, for llama.cpp; None: one is written from `served`."""


def load(name: str, device: torch.device, dtype: str, weights: Weights = "auto") -> LoadedModel:
    """Load a model from this machine; nothing is downloaded.

    Args:
        dtype, weights: as of `agentkv.load_model`.

    Raises:
        ModelError: the model does not exist or is incomplete, or its weights cannot be so.
    """
    source = find_model(name)
    is_own_file = is_gguf(source) and (dtype, weights) == ("auto", "auto")
    file = Path(source) if is_own_file and device.type == "cpu" else None
    gguf = gguf_in_blocks(source, device=str(device), dtype=dtype, weights=weights)
    if not isinstance(source, str):
        source = model_folder(source)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model = _FROM.from_pretrained(
            source, local_files_only=True, dtype=_dtype(dtype, device, "auto")
        )
    except (OSError, ValueError) as error:
        raise ModelError(f"{source} cannot be read as a model: {error}") from error
    if gguf is None:
        return _loaded(name, model.to(device), "", weights, file)
    from agentkv.models.gguf.blocks import load_blocks

    loaded = _loaded(name, model, "", file=file)
    return replace(loaded, served=_with_plain_attention(load_blocks(gguf)))


def load_blocks_of(
    name: str, device: torch.device, dtype: str, weights: Weights = "auto"
) -> tuple[Any, Path] | None:
    """Load a GGUF file in its blocks as `load_model` does, without the model in floating point.

    Returns:
        The model and the file; None for models that do not stay in the blocks of a file.

    Raises:
        ModelError: the model does not exist or is incomplete.
    """
    source = find_model(name)
    gguf = gguf_in_blocks(source, device=str(device), dtype=dtype, weights=weights)
    if gguf is None:
        return None
    from agentkv.models.gguf.blocks import load_blocks

    model = _with_plain_attention(load_blocks(gguf))
    move_weights(model, trim_heap)
    return model, Path(source)


def build(
    name: str,
    device: torch.device,
    dtype: str,
    *,
    weights: Weights = "auto",
    num_layers: int | None,
    num_positions: int,
) -> LoadedModel:
    """Make random weights in a published shape.

    The model gets as many layers as fit, in whole periods of its kinds of layers.

    Args:
        num_layers: number of layers; None: as many as fit.
        num_positions: tokens that the model must be able to read.

    Raises:
        ModelError: the shape has fewer layers.
    """
    kind, values = SHAPES[name]
    config: Any = kind(**values, **_NO_SPECIAL)
    kept = _dtype(dtype, device, torch.bfloat16)
    changes = scale(config, _most_bytes(device), kept, num_layers)
    if num_positions > config.max_position_embeddings:
        changes.append(f"{num_positions} positions instead of {config.max_position_embeddings}")
        key = "n_positions" if isinstance(config, GPT2Config) else "max_position_embeddings"
        setattr(config, key, num_positions)
    # wide enough that attention is not flat, which would hide mistakes
    config.initializer_range = 1.5 * config.hidden_size**-0.5
    torch.manual_seed(0)
    with device:
        model = _FROM.from_config(config, dtype=kept)
    return _loaded(name, model.to(device), ", ".join(changes), weights)


def twin(model: Any, attention: str) -> Any:
    """Return another model that shares the weights and has its own attention and hooks."""
    shared = {id(x): x for x in (*model.parameters(), *model.buffers())}
    other = copy.deepcopy(model, shared)
    other.set_attn_implementation(attention)
    return other


def plain_attention(model: Any) -> str:
    """Return `sdpa`, or `eager` for a model with attention sinks, which SDPA does not support."""
    return "sdpa" if getattr(model, "_supports_sdpa", False) else "eager"


def most_positions(model: Any) -> int | None:
    """Return the positions of a model with learned positions; None for others."""
    is_learned = model.config.model_type == "gpt2"
    return int(model.config.max_position_embeddings) if is_learned else None


def form_of(model: Any) -> str:
    """Return the formats of a model's weights, those of most numbers first, or their dtype."""
    numbers: Counter[str] = Counter()
    for module in model.modules():
        if isinstance(module, QuantizedLinear | QuantizedEmbedding):
            packed = module.packed
            numbers[packed.format.name.upper()] += packed.rows * packed.width
    names = ", ".join(form for form, _ in numbers.most_common())
    return names or dtype_name(model)


def _with_plain_attention(model: Any) -> Any:
    model.set_attn_implementation(plain_attention(model))
    return model.eval()


def _loaded(
    name: str, model: Any, scaled: str, weights: Weights = "auto", file: Path | None = None
) -> LoadedModel:
    model = _with_plain_attention(model)
    if weights not in ("int8", "int4"):
        return LoadedModel(name, model, scaled, model, file)
    require_quantizable(
        weights, device=model.device.type, dtype=str(model.dtype).removeprefix("torch.")
    )
    served = copy.deepcopy(model)
    quantize_linear(served, weights)
    with torch.no_grad():
        for path, module in served.named_modules():
            if isinstance(module, QuantizedLinear | QuantizedEmbedding):
                model.get_submodule(path).weight.copy_(module.weight)
    return LoadedModel(name, model, scaled, served, file)


def scale(config: Any, most_bytes: float, dtype: torch.dtype, num_layers: int | None) -> list[str]:
    """Shrink a configuration until its weights fit, and describe the changes."""
    changes = []
    whole = config.num_hidden_layers
    if num_layers is not None and not 1 <= num_layers <= whole:
        raise ModelError(f"--layers {num_layers}: the shape has {whole}, so 1 to {whole} fit")
    least = num_layers or len(set(getattr(config, "layer_types", None) or [0]))
    for key, few in (("vocab_size", SMALL_VOCABULARY), ("num_local_experts", FEW_EXPERTS)):
        had = getattr(config, key, None)
        if had is not None and had > few and _bytes(config, dtype, least) > most_bytes:
            setattr(config, key, few)
            what = "entries in the vocabulary" if key == "vocab_size" else "experts in a layer"
            changes.append(f"{few} of {had} {what}")
    count = num_layers
    if count is None:
        count = whole
        while count > least and _bytes(config, dtype, count) > most_bytes:
            count -= least
    if count < whole:
        changes.insert(0, f"{count} of {whole} layers")
        _set_layers(config, count)
    return changes


def _set_layers(config: Any, count: int) -> None:
    kinds = getattr(config, "layer_types", None)
    setattr(config, "n_layer" if isinstance(config, GPT2Config) else "num_hidden_layers", count)
    if kinds is not None:
        config.layer_types = kinds[:count]


def _bytes(config: Any, dtype: torch.dtype, num_layers: int) -> int:
    """Return the bytes of the weights, counted on a model without storage."""
    smaller = copy.deepcopy(config)
    _set_layers(smaller, num_layers)
    with torch.device("meta"):
        model = _FROM.from_config(smaller)
    return int(dtype.itemsize * sum(x.numel() for x in model.parameters()))


def _most_bytes(device: torch.device) -> float:
    if device.type != "cuda":
        return MOST_BYTES
    return MOST_OF_GPU * torch.cuda.get_device_properties(device).total_memory


def _dtype(name: str, device: torch.device, on_gpu: Any) -> Any:
    if name != "auto":
        return getattr(torch, name)
    return on_gpu if device.type == "cuda" else torch.float32
