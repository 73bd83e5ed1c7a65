"""Read tensors of a GGUF file."""

from typing import Any

import numpy as np

from agentkv.models.gguf.header import GgufError, GgufHeader, gguf_package

Array = np.ndarray[Any, Any]


def read_blocks(header: GgufHeader, name: str) -> Array:
    """Return the bytes of a tensor (..., bytes of a row), uint8."""
    tensor = header.tensors[name]
    raw = np.fromfile(tensor.path, np.uint8, tensor.nbytes, offset=tensor.offset)
    block, nbytes = gguf_package().GGML_QUANT_SIZES[tensor.format]
    return raw.reshape(*tensor.shape[:-1], tensor.shape[-1] // block * nbytes)


def read_tensor(header: GgufHeader, name: str) -> Array:
    """Return a tensor as float32 numbers."""
    package, form = gguf_package(), header.tensors[name].format
    values: Array = package.dequantize(read_blocks(header, name), form)
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
