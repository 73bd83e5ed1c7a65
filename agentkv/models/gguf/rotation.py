"""How the positions of a GGUF file's model turn queries and keys, as transformers says it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from agentkv.models.gguf.header import GgufError, GgufHeader
from agentkv.models.gguf.tensors import Array, read_tensor

FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that hold what frequencies are divided by: Llama 3, and long and short texts of Phi."""
_LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3_POSITIONS = 8192
_YARN = {
    "attention_factor": "yarn_attn_factor",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
}


def head_dim(header: GgufHeader) -> int:
    """Return the size of a head."""
    size, heads = header.number("embedding_length"), header.number("attention.head_count")
    return int(header.number("attention.key_length", size // heads))


def turned_dim(header: GgufHeader) -> int:
    """Return how many numbers of a head turn."""
    return int(header.number("rope.dimension_count", head_dim(header)))


def rotation(header: GgufHeader) -> dict[str, Any]:
    """Return the fields of the configuration that tell how positions turn.

    Raises:
        GgufError: in a way that transformers cannot be told.
    """
    fields: dict[str, Any] = {"rope_theta": float(header.number("rope.freq_base", 10_000.0))}
    whole, turned = head_dim(header), turned_dim(header)
    if turned != whole:
        fields["partial_rotary_factor"] = turned / whole
    scaling = rope_scaling(header)
    return fields | ({"rope_scaling": scaling} if scaling else {})


def rope_scaling(header: GgufHeader) -> dict[str, Any]:
    """Return how frequencies are scaled; empty: they are not."""
    for name, read in zip(FACTORS, (_llama3, _longrope), strict=False):
        if name in header.tensors:
            return read(header)
    kind = header.number("rope.scaling.type", "none")
    if kind not in ("none", "linear", "yarn"):
        raise GgufError(f"{header.path}: the rotation {kind!r} (rope.scaling.type) is not known")
    if kind == "none" or header.number("rope.scaling.factor") == 1.0:
        return {}
    scaling = {"rope_type": kind, "factor": float(header.number("rope.scaling.factor"))}
    if kind == "yarn":
        key = "original_max_position_embeddings"
        scaling[key] = header.number("rope.scaling.original_context_length")
        told = {name: header.number(f"rope.scaling.{key}", 0) for name, key in _YARN.items()}
        scaling |= {name: value for name, value in told.items() if value}
    return scaling


def _llama3(header: GgufHeader) -> dict[str, Any]:
    factors = read_tensor(header, FACTORS[0])
    scaling = {
        "rope_type": "llama3",
        "factor": float(factors.max()),
        "original_max_position_embeddings": _LLAMA3_POSITIONS,
        **_LLAMA3_ROPE,
    }
    base = float(header.number("rope.freq_base", 10_000.0))
    if not np.allclose(factors, _llama3_factors(base, len(factors), scaling), rtol=1e-3):
        raise GgufError(f"{header.path}: the factors of {FACTORS[0]} are not those of Llama 3")
    return scaling


def _llama3_factors(base: float, count: int, scaling: Mapping[str, Any]) -> Array:
    """Return (D / 2,): what Llama 3 divides frequencies by."""
    waves = 2 * np.pi * base ** (np.arange(count) / count)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] / waves
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    factors: Array = 1 / ((1 - smooth) / scaling["factor"] + smooth)
    return factors


def _longrope(header: GgufHeader) -> dict[str, Any]:
    """Return the scaling of Phi, whose factors depend on the length of the text."""
    _, long, short = FACTORS
    length = header.number("rope.scaling.original_context_length")
    scaling = {
        "rope_type": "longrope",
        "long_factor": read_tensor(header, long).tolist(),
        "short_factor": read_tensor(header, short).tolist(),
        "factor": header.number("context_length") / length,
        "original_max_position_embeddings": length,
    }
    attention = header.number("rope.scaling.attn_factor", 0)
    return scaling | ({"attention_factor": attention} if attention else {})
