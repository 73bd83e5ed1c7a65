"""The 8-bit format: blocks of 64 rows, one power-of-two scale per (block, head, channel).

Power-of-two scales let a block be merged with others again and again without drift: codes whose
exponent stays the same stay the same integers, the others take one rounding shift.

Shapes: T rows, D channels, N blocks; any leading dimensions (keys/values, sequence, head).
"""

import torch
from torch import Tensor

BLOCK = 64
"""Rows per block when it is made (our choice; the exponents then cost 1/64 of the codes)."""

MIN_EXPONENT, MAX_EXPONENT = -126, 127
"""What a normal float32 can hold; a channel of zeros gets the smallest."""


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes (..., T, D) int8 and exponents (..., ceil(T / 64), D) int8 of rows `x` (..., T, D).

    The exponent is the smallest e with max |x| <= 127 * 2**e over the block's channel; codes are
    x / 2**e rounded half to even into [-127, 127]. So |x - code * 2**e| <= 2**e / 2, and quantising
    what was dequantised gives the same codes.
    """
    num_rows, num_channels = x.shape[-2:]
    num_blocks = -(-num_rows // BLOCK)
    x = x.to(torch.float32)
    padded = torch.nn.functional.pad(x, (0, 0, 0, num_blocks * BLOCK - num_rows))
    blocks = padded.view(*x.shape[:-2], num_blocks, BLOCK, num_channels)
    mantissa, exponent = torch.frexp(blocks.abs().amax(dim=-2) / 127)  # mantissa in [0.5, 1)
    # x = m * 2**e with m in [0.5, 1): the next power of two is 2**e, or x itself when m is 0.5
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)
    exponent = exponent.masked_fill(mantissa == 0, MIN_EXPONENT)
    exponents = exponent.clamp(MIN_EXPONENT, MAX_EXPONENT).to(torch.int8)  # (..., N, D)
    codes = (blocks / scales(exponents).unsqueeze(-2)).round_().clamp_(-127, 127)
    return codes.to(torch.int8).flatten(-3, -2)[..., :num_rows, :].contiguous(), exponents


def scales(exponents: Tensor) -> Tensor:
    """2 ** exponents as float32, exactly: the exponent field is written, nothing is computed."""
    return (exponents.to(torch.int32) + 127).bitwise_left_shift(23).view(torch.float32)


def dequantize(
    codes: Tensor, exponents: Tensor, block_ids: Tensor, *, dtype: torch.dtype
) -> Tensor:
    """Rows (2, B, H, T, D) in `dtype` from codes of that shape and exponents (2, B, H, N, D).

    `block_ids` (B, T) says which block's scale a row has. Exact in float32.
    """
    scale = scales(exponents)
    if block_ids.shape[0] == 1:
        by_row = scale.index_select(3, block_ids[0])  # (2, 1, H, T, D)
    else:
        index = block_ids.long()[None, :, None, :, None].expand(codes.shape)
        by_row = scale.gather(3, index)
    return by_row.mul_(codes).to(dtype)


def merge(codes: Tensor, exponents: Tensor, block_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pack surviving rows into as few blocks as they fill: new codes, exponents and block ids.

    Each new block takes 64 rows in order; its exponent per channel is the largest its rows came
    with. Rows that came with it keep their integers; the others are shifted right once, rounding half
    to even. Nothing is dequantised, so repeated merging does not drift.

    Args:
        codes: (..., T, D) int8.  exponents: (..., N, D) int8.  block_ids: (T,) int32.
    """
    num_rows, num_channels = codes.shape[-2:]
    num_blocks = -(-num_rows // BLOCK)
    own = exponents.index_select(-2, block_ids)  # (..., T, D)
    pad = num_blocks * BLOCK - num_rows
    padded = torch.nn.functional.pad(own, (0, 0, 0, pad), value=MIN_EXPONENT)
    merged = padded.view(*own.shape[:-2], num_blocks, BLOCK, num_channels).amax(dim=-2)
    ids = torch.arange(num_rows, device=codes.device, dtype=torch.int32) // BLOCK
    # a shift of 8 or more leaves at most a rounding of 127 / 256, which is 0
    shift = (merged.index_select(-2, ids).int() - own.int()).clamp_(max=9)
    shifted = (codes.float() * scales((-shift).to(torch.int8))).round_()
    return shifted.to(torch.int8), merged, ids
