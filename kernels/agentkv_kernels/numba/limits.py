"""What the kernels for processors serve: one query over rows in float32 and in the format int8."""

from collections.abc import Sequence

import torch
from torch import Tensor

from agentkv_kernels.parts import Coded, Dense, Part


def lack_of_attention(q: Tensor) -> str | None:
    """Why queries over rows of their own dtype cannot be served; None if they can."""
    if q.dtype != torch.float32:
        return f"rows are {q.dtype}, the kernels know float32"
    if q.requires_grad and torch.is_grad_enabled():
        return "gradients are asked for"
    return None


def lack_of_parts(q: Tensor, parts: Sequence[Part]) -> str | None:
    """Why attention of q (B, H * G, Q, D) over these parts cannot be served; None if it can."""
    if q.shape[2] != 1:
        return "there is more than one query"
    if [type(part) for part in parts] not in ([Dense], [Coded], [Coded, Dense]):
        return "parts are others than quantised rows and then whole ones"
    for part in parts:
        if part.is_padded:
            return "some rows are not there"
        if isinstance(part, Coded) and part.format.name != "int8":
            return f"rows are in {part.format.name}, the kernels know int8"
        if isinstance(part, Dense) and part.keys.dtype != q.dtype:
            return f"rows are {part.keys.dtype}, queries {q.dtype}"
    return lack_of_attention(q)
