"""Digests: bounds of the keys of a block in 8 bits, which bound a query's products with them.

Source: Quest (arXiv 2406.10774), bounds per channel; 8 bits and powers of two: our choice.

Shapes: W heads, N blocks, D head size, G query heads per head.
"""

import torch
from torch import Tensor

from agentkv_kernels.formats import powers

LOWEST_EXPONENT, HIGHEST_EXPONENT = -120, 120


def encode(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return codes that stand for bounds at least as wide.

    A code times 2 ** exponent is a bound. Encoding decoded bounds again changes nothing.

    Args:
        low, high: bounds (W, N, D) float32 with low <= high, of size at most 127 * 2**120.

    Returns:
        Codes of both bounds, (W, N, D) int8, and exponents (W, N) int8.
    """
    largest = torch.maximum(-low, high).amax(dim=2)
    mantissa, exponent = torch.frexp(largest)
    # the smallest one with largest <= 127 * 2**exponent
    exponent = exponent - 7 + (mantissa > 127 / 128).to(exponent.dtype)
    exponent = exponent.clamp_(LOWEST_EXPONENT, HIGHEST_EXPONENT).to(torch.int8)
    scale = powers(exponent).unsqueeze(2)
    codes = (low / scale).floor_(), (high / scale).ceil_()
    return codes[0].to(torch.int8), codes[1].to(torch.int8), exponent


def decode(low: Tensor, high: Tensor, exponents: Tensor) -> tuple[Tensor, Tensor]:
    """Return the bounds (W, N, D) float32 that codes stand for."""
    scale = powers(exponents).unsqueeze(2)
    return low * scale, high * scale


def upper_bounds(q: Tensor, low: Tensor, high: Tensor, exponents: Tensor) -> Tensor:
    """Return the largest product that each query may have with a key of each block.

    Args:
        q: (W, G, D) float32.
        low, high, exponents: codes, as `encode` returns them.

    Returns:
        (W, G, N) float32.
    """
    # max(q * low, q * high) takes high where q is positive, and low where it is negative
    least, most = decode(low, high, exponents)
    return q.clamp_min(0) @ most.mT + q.clamp_max(0) @ least.mT
