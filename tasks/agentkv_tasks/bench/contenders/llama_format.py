"""Rounds entries as llama.cpp stores them: in ggml's formats q8_0 and q4_0. Since 2026 llama.cpp
rotates entries before it quantizes them (its pull request 21038).

Shapes: H heads, n tokens, D head size.
"""

import torch
from torch import Tensor

BLOCK = 32
"""Numbers with one scale."""
ROTATED = 64
"""llama.cpp rotates heads of a multiple of this many numbers."""


def stored(
    keys: Tensor, values: Tensor, form: str, *, is_interleaved: bool
) -> tuple[Tensor, Tensor]:
    """Return keys and values (B, H, n, D) as they are read back.

    Args:
        form: q8_0 or q4_0.
        is_interleaved: the two halves of every key are interleaved in the model's file.
    """
    head_dim = keys.shape[-1]
    if is_interleaved:
        keys = _split(keys, head_dim // 2).transpose(-1, -2).flatten(-2)
    # keys are rotated in as large pieces as possible, values in the smallest
    width = head_dim & -head_dim
    keys, values = _read_back(keys, form, width), _read_back(values, form, ROTATED)
    if is_interleaved:
        keys = _split(keys, 2).transpose(-1, -2).flatten(-2)
    return keys, values


def _read_back(x: Tensor, form: str, width: int) -> Tensor:
    if x.shape[-1] % ROTATED:
        return _FORMS[form](x.float()).to(x.dtype)
    rotation = _hadamard(width)  # its own inverse
    rotated = (_split(x.float(), width) @ rotation).flatten(-2)
    return (_split(_FORMS[form](rotated), width) @ rotation).flatten(-2).to(x.dtype)


def _split(x: Tensor, width: int) -> Tensor:
    """Return (..., D / width, width)."""
    return x.reshape(*x.shape[:-1], -1, width)


def _hadamard(width: int) -> Tensor:
    """Return the orthonormal Hadamard matrix (width, width) of a power of two."""
    found = torch.ones(1, 1)
    while len(found) < width:
        found = torch.cat([torch.cat([found, found], 1), torch.cat([found, -found], 1)])
    found *= width**-0.5
    return found


def _q8_0(x: Tensor) -> Tensor:
    blocks = _split(x, BLOCK)
    scale = blocks.abs().amax(-1, keepdim=True) / 127
    return ((blocks * _inverse(scale)).round() * scale.half().float()).flatten(-2)


def _q4_0(x: Tensor) -> Tensor:
    blocks = _split(x, BLOCK)
    # the number that is furthest from zero, with its sign, becomes -8
    scale = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True)) / -8
    numbers = (blocks * _inverse(scale) + 8.5).floor().clamp(0, 15) - 8
    return (numbers * scale.half().float()).flatten(-2)


def _inverse(scale: Tensor) -> Tensor:
    return torch.where(scale == 0, 0.0, 1 / scale)


_FORMS = {"q8_0": _q8_0, "q4_0": _q4_0}
