"""The 8-bit format: blocks of 64 rows, one power-of-two scale per block and channel.

A channel is one place in a row: of keys or values, of a head, of the head's D numbers. Power-of-two
scales let blocks be merged again and again without drift: codes whose exponent stays the same stay
the same integers, the others take one rounding shift.

Shapes: T rows, C stands for a row's own dimensions, such as (2, H, D); N blocks.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 64
"""Rows per block when it is made (our choice; the exponents then cost 1/64 of the codes)."""

MIN_EXPONENT, MAX_EXPONENT = -126, 127
"""What a normal float32 can hold; a channel of zeros gets the smallest."""


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes (T, *C) int8 and exponents (ceil(T / 64), *C) int8 of rows `x` (T, *C).

    The exponent is the smallest e with max |x| <= 127 * 2**e over the block's channel; codes are
    x / 2**e rounded half to even into [-127, 127]. So |x - code * 2**e| <= 2**e / 2, and quantising
    what was dequantised gives the same codes.
    """
    num_rows, channels = x.shape[0], x.shape[1:]
    blocks = _in_blocks(x.to(torch.float32), 0.0)
    mantissa, exponent = torch.frexp(blocks.abs().amax(dim=1) / 127)
    # x = m * 2**e with m in [0.5, 1): the next power of two is 2**e, or x itself when m is 0.5
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)
    exponent = exponent.masked_fill(mantissa == 0, MIN_EXPONENT)
    exponents = exponent.clamp(MIN_EXPONENT, MAX_EXPONENT).to(torch.int8)  # (N, *C)
    codes = (blocks / scales(exponents).unsqueeze(1)).round_().clamp_(-127, 127)
    return codes.to(torch.int8).view(-1, *channels)[:num_rows], exponents


def scales(exponents: Tensor) -> Tensor:
    """2 ** exponents as float32, exact for every exponent (a test goes through all)."""
    return torch.exp2(exponents)


def dequantize(codes: Tensor, exponents: Tensor, block_ids: Tensor) -> Tensor:
    """Rows (T, *C) float32, exactly code * 2**exponent.

    Args:
        codes: (T, *C) int8.  exponents: (N, *C) int8.  block_ids: (T,) int32, whose scale a row
            has.
    """
    by_row = F.embedding(block_ids, scales(exponents).flatten(1))  # (T, C)
    return by_row.mul_(codes.flatten(1)).view(codes.shape)


def merge(codes: Tensor, exponents: Tensor, block_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pack surviving rows into as few blocks as they fill: new codes, exponents and block ids.

    Each new block takes 64 rows in order; its exponent per channel is the largest its rows came
    with. Rows that came with it keep their integers; the others are shifted right once, rounding
    half to even. Nothing is dequantised, so repeated merging does not drift.

    Args:
        codes: (T, *C) int8.  exponents: (N, *C) int8.  block_ids: (T,) int32.
    """
    num_rows = codes.shape[0]
    own = exponents.index_select(0, block_ids)  # (T, *C)
    merged = _in_blocks(own, MIN_EXPONENT).amax(dim=1)
    ids = torch.arange(num_rows, device=codes.device, dtype=torch.int32) // BLOCK
    # a shift of 8 or more leaves at most a rounding of 127 / 256, which is 0
    shift = (own.int() - merged.index_select(0, ids).int()).clamp_(min=-9)
    shifted = (codes.float() * scales(shift.to(torch.int8))).round_()
    return shifted.to(torch.int8), merged, ids


def _in_blocks(x: Tensor, filler: float) -> Tensor:
    """(T, *C) -> (N, 64, *C), the last block filled up."""
    num_blocks = -(-x.shape[0] // BLOCK)
    missing = num_blocks * BLOCK - x.shape[0]
    if missing:
        x = torch.cat([x, x.new_full((missing, *x.shape[1:]), filler)])
    return x.reshape(num_blocks, BLOCK, *x.shape[1:])
