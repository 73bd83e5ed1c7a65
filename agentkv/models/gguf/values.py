"""The values of one tensor of a GGUF file."""

from typing import Any

from agentkv.models.gguf.header import TensorPlace
from agentkv.models.refused import ModelError

ROPE_FACTORS = "rope_freqs.weight"
SHORT_FACTORS, LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"
FACTORS = {ROPE_FACTORS, SHORT_FACTORS, LONG_FACTORS}
"""Tensors with a divisor of each rotary frequency, which belong to the config in other formats."""


def values_of(place: TensorPlace) -> Any:
    """Return a tensor's values as a numpy array of float32. Raises ModelError."""
    import numpy as np
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

    kind = GGMLQuantizationType(place.kind)
    block, block_bytes = GGML_QUANT_SIZES[kind]
    rows = (*place.shape[:-1], place.shape[-1] // block * block_bytes)
    stored = np.memmap(place.path, np.uint8, "r", place.start, shape=rows)
    try:
        return dequantize(stored, kind).astype(np.float32, copy=True)
    except NotImplementedError:
        raise ModelError(
            f"{place.path.name}: {place.name} is stored as {kind.name}, which the package gguf "
            "does not decode; take a file with another quantization, such as Q4_K_M or Q8_0"
        ) from None
