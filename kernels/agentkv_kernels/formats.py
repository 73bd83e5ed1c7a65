"""Formats of 8 and 4 bits: int8 and int8-max with scales per block of entries; fp8, int4 and nf4
per entry.

Every format rounds once, when an entry is stored, and keys once more when their positions are
renumbered. Encoding decoded entries yields the same codes and scales, and gathering stored entries
changes no number.

Shapes: H key-value heads, T entries, D head size; C codes and S scales per entry and head; N blocks
of entries that share scales.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 64
"""Entries of a full block (our choice: exponents then cost 1/64 of the codes)."""

GROUP = 32
"""Channels of an entry that share one 4-bit scale (our choice)."""

MIN_EXPONENT, MAX_EXPONENT = -126, 127
"""Exponents of normal float32 numbers; zeros get the smallest."""


class Format(Protocol):
    """A way to store keys or values in fewer bits."""

    @property
    def name(self) -> str:
        """Name that files and messages use."""
        ...

    @property
    def by_block(self) -> bool:
        """True if blocks of 64 entries share scales; False if each entry has its own."""
        ...

    @property
    def code_dtype(self) -> torch.dtype:
        """int8 or uint8."""
        ...

    @property
    def scale_dtype(self) -> torch.dtype:
        """Dtype of the scales."""
        ...

    def code_size(self, head_dim: int) -> int:
        """Return C, the codes per entry and head. Raises ValueError for an unsupported head
        size."""
        ...

    def scale_size(self, head_dim: int) -> int:
        """Return S, the scales per head and per block or entry."""
        ...

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return codes (H, T, C) and scales of entries `x` (H, T, D), any float dtype, |x| <=
        2**127.

        Scales are (H, ceil(T / 64), S) if `by_block`, with entry t in block t // 64; else (H, T,
        S).
        """
        ...

    def decode(self, codes: Tensor, scales: Tensor, block_ids: Tensor | None) -> Tensor:
        """Return entries (..., H, T, D) float32.

        Args:
            codes: (..., H, T, C).
            scales: (..., H, N, S) if `by_block`, else (..., H, T, S).
            block_ids: (..., T) int32, the block of each entry, 0 <= id < N; ignored, and may be
                None, where each entry has its own scales.
        """
        ...


class _InBlocks:
    """Base of the formats with integers -127..127, whose scales belong to a block of 64 entries,
    head and channel."""

    __slots__ = ()
    by_block: ClassVar[bool] = True
    code_dtype: ClassVar[torch.dtype] = torch.int8

    def code_size(self, head_dim: int) -> int:
        return head_dim

    def scale_size(self, head_dim: int) -> int:
        return head_dim

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        num_heads, num_entries, head_dim = x.shape
        blocks = _in_blocks(x.to(torch.float32), 0.0)
        scales = self._scales(blocks.abs().amax(dim=2))
        codes = (blocks / self._widened(scales).unsqueeze(2)).round_().clamp_(-127, 127)
        flat = codes.to(torch.int8).view(num_heads, blocks.shape[1] * BLOCK, head_dim)
        return flat[:, :num_entries], scales

    def decode(self, codes: Tensor, scales: Tensor, block_ids: Tensor | None) -> Tensor:
        return _by_block(codes, self._widened(scales), block_ids)

    def _scales(self, largest: Tensor) -> Tensor:
        """Return the scales of blocks, given the largest |x| of each, float32."""
        raise NotImplementedError

    def _widened(self, scales: Tensor) -> Tensor:
        """Return the factors of the codes, float32."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Int8(_InBlocks):
    """Integers -127..127 times a power of two per block of 64 entries, head and channel.

    Costs D bytes per entry and head, and D per block: D + D / 64. The exponent is the smallest e
    with max |x| <= 127 * 2**e over the block's channel; codes are x / 2**e rounded half to even. So
    |x - code * 2**e| <= 2**e / 2; Gaussian entries are off by 0.89% (Frobenius norm). Powers of two
    let blocks be merged repeatedly without drift (`merge`).

    Source: symmetric, per head and channel: CONF-KV; blocks and powers of two: our choice.
    """

    name: ClassVar[str] = "int8"
    scale_dtype: ClassVar[torch.dtype] = torch.int8

    def _scales(self, largest: Tensor) -> Tensor:
        # 127 = 0.9921875 * 2**7
        return _smallest_exponent(largest, 0.9921875, 7, MAX_EXPONENT)

    def _widened(self, scales: Tensor) -> Tensor:
        return powers(scales)


@dataclass(frozen=True, slots=True)
class Int8Max(_InBlocks):
    """Integers -127..127 times max |x| / 127 per block of 64 entries, head and channel.

    Costs D bytes per entry and head, and 2 D per block: D + D / 32. The scale is in bfloat16 (our
    choice), and still no number is off by more than half of it. Gaussian entries are off by 0.59%,
    against 0.89% in `int8`. Entries that are merged into a block with a larger scale are rounded
    anew, by up to half a scale each time, so that the error of a cache that evicts grows with its
    age.

    Compiled kernels do not read it: it serves comparisons with CONF-KV.

    Source: symmetric, per head and channel, the scale max / 127: CONF-KV; blocks: our choice.
    """

    name: ClassVar[str] = "int8-max"
    scale_dtype: ClassVar[torch.dtype] = torch.bfloat16

    def _scales(self, largest: Tensor) -> Tensor:
        least = torch.finfo(torch.bfloat16).tiny
        return (largest / 127).clamp_min_(least).to(torch.bfloat16)

    def _widened(self, scales: Tensor) -> Tensor:
        return scales.to(torch.float32)


@dataclass(frozen=True, slots=True)
class Fp8:
    """Floats of 8 bits, e4m3 (1, 4, 3 bits; largest 448), times a power of two per entry and head.

    Costs D + 1 bytes per entry and head. The exponent is the smallest e for which the largest |x|,
    rounded to e4m3, is at most 448 * 2**e; what still lies over 448 * 2**e is then stored as that.
    So the error is at most 2**-4 of |x| where |x| >= 2**(e - 6), and 2**(e - 10) below; Gaussian
    entries are off by 2.65%.

    Source: ARKV, whose scale is the entry's largest |x| over 448. A power of two, and one per head,
    are our choice: dividing by it is exact, so encoding stored entries again changes nothing.
    """

    name: ClassVar[str] = "fp8"
    by_block: ClassVar[bool] = False
    code_dtype: ClassVar[torch.dtype] = torch.uint8
    scale_dtype: ClassVar[torch.dtype] = torch.int8

    def code_size(self, head_dim: int) -> int:
        return head_dim

    def scale_size(self, head_dim: int) -> int:
        return 1

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.to(torch.float32)
        # up to 464, halfway to what would come next, rounds to 448; 464 = 0.90625 * 2**9.
        # `decode` takes 2**8 more than this into the scale: 119 is the largest that fits float32
        exponents = _smallest_exponent(x.abs().amax(dim=-1, keepdim=True), 0.90625, 9, 119)
        codes = (x / powers(exponents)).clamp_(-448, 448).to(torch.float8_e4m3fn)
        return codes.view(torch.uint8), exponents

    def decode(self, codes: Tensor, scales: Tensor, block_ids: Tensor | None) -> Tensor:
        # e4m3 is a float16 with fewer bits: sign to its place, exponent and fraction to theirs (the
        # sign's copy in between cleared), exponent bias 15 for 7. Much faster than torch's own cast
        bits = codes.view(torch.int8).to(torch.int16).bitwise_left_shift_(7).bitwise_and_(~0x4000)
        return bits.view(torch.float16).to(torch.float32).mul_(powers(scales).mul_(256))


@dataclass(frozen=True, slots=True)
class Levels:
    """One of 16 levels in 4 bits, times the largest |x| of 32 channels of an entry and head.

    Costs D / 2 + 2 * ceil(D / 32) bytes per entry and head; D must be even. The scale is the
    largest |x| in bfloat16, which has the range of float32 (our choice); each number goes to the
    nearest level. Gaussian entries are off by 9.7% in int4 and 8.7% in nf4.
    """

    name: str
    levels: tuple[float, ...]
    """16 numbers, ascending, with 0, -1 and 1 among them. Levels above 1 are never stored."""

    by_block: ClassVar[bool] = False
    code_dtype: ClassVar[torch.dtype] = torch.uint8
    scale_dtype: ClassVar[torch.dtype] = torch.bfloat16

    def code_size(self, head_dim: int) -> int:
        if head_dim % 2:
            raise ValueError(
                f"format {self.name!r} packs two numbers in a byte, so it needs an even head size; "
                f"this model's is {head_dim}: take int8 or fp8"
            )
        return head_dim // 2

    def scale_size(self, head_dim: int) -> int:
        return -(-head_dim // GROUP)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        num_heads, num_entries, head_dim = x.shape
        size, num_groups = self.code_size(head_dim), self.scale_size(head_dim)
        x = F.pad(x.to(torch.float32), (0, num_groups * GROUP - head_dim))
        groups = x.reshape(num_heads, num_entries, num_groups, GROUP)
        limits = torch.finfo(torch.bfloat16)
        scales = groups.abs().amax(dim=-1).clamp_(limits.tiny, limits.max).to(torch.bfloat16)
        used = torch.tensor([level for level in self.levels if level <= 1], device=x.device)
        between = (used[1:] + used[:-1]) / 2
        index = torch.bucketize(groups / scales.unsqueeze(-1), between, out_int32=True)
        index = index.flatten(-2)[..., :head_dim].to(torch.uint8)
        pairs = index.reshape(num_heads, num_entries, size, 2)
        return pairs[..., 0] | pairs[..., 1] << 4, scales

    def decode(self, codes: Tensor, scales: Tensor, block_ids: Tensor | None) -> Tensor:
        pairs = F.embedding(codes.to(torch.int32), _pairs(self.levels, codes.device))
        entries = pairs.flatten(-2)  # (..., H, T, D)
        by_channel = scales.to(torch.float32).repeat_interleave(GROUP, dim=-1)
        return entries.mul_(by_channel[..., : entries.shape[-1]])


INT4 = tuple((number - 7) / 7 for number in range(16))
"""Integers -7..7 over 7, symmetric; the sixteenth level is unused."""

NF4 = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
"""Quantiles of a normal distribution with an exact 0: NF4, QLoRA (arXiv 2305.14314), appendix E."""

FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "int8": Int8(),
        "fp8": Fp8(),
        "int4": Levels("int4", INT4),
        "nf4": Levels("nf4", NF4),
        "int8-max": Int8Max(),
    }
)
"""All formats by name."""


def format_of(name: str) -> Format:
    """Return the format of that name. Raises ValueError."""
    if name not in FORMATS:
        raise ValueError(f"unknown format {name!r}; known: {', '.join(FORMATS)}")
    return FORMATS[name]


def powers(exponents: Tensor) -> Tensor:
    """Return 2 ** exponents as float32, exact for every int8 exponent (a test checks all)."""
    return torch.exp2(exponents)


def merge(codes: Tensor, scales: Tensor, block_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pack entries into as few blocks as they fill; return codes, scales and block ids.

    Each new block takes 64 entries in order; its scale per channel is the largest among them.
    Entries that have it keep their integers; those of the others are rounded once, half to even.
    Exponents (int8) shift them right, so repeated merging does not drift; with scales of any size
    (int8-max) it does.

    Args:
        codes: (H, T, D) int8.  scales: (H, N, D) int8 exponents, or bfloat16.  block_ids: (T,)
            int32.
    """
    num_entries, are_exponents = codes.shape[1], scales.dtype == torch.int8
    own = scales.index_select(1, block_ids)  # (H, T, D)
    merged = _in_blocks(own, MIN_EXPONENT if are_exponents else 0.0).amax(dim=2)
    ids = torch.arange(num_entries, device=codes.device, dtype=torch.int32) // BLOCK
    largest = merged.index_select(1, ids)
    if are_exponents:
        # a shift of 8 or more leaves at most a rounding of 127 / 256, which is 0
        moved = codes.float() * powers((own.int() - largest.int()).clamp_(min=-9).to(torch.int8))
    else:
        # the product is exact, so that one rounding says what is half
        moved = codes.float() * own.float() / largest.float()
    return moved.round_().to(torch.int8), merged, ids


def _by_block(codes: Tensor, scale: Tensor, block_ids: Tensor | None) -> Tensor:
    """Multiply codes (..., H, T, D) by the float32 scales (..., H, N, D) of their blocks."""
    assert block_ids is not None
    if codes.dim() == 3:
        return scale.index_select(1, block_ids).mul_(codes)
    if codes.shape[:-3].numel() == 1:
        by_entry = scale.flatten(0, -3).index_select(1, block_ids.flatten())
        return by_entry.view(codes.shape).mul_(codes)
    # all heads of all sequences in one table: head number * N + block id
    num_blocks = scale.shape[-2]
    first = torch.arange(scale.shape[:-2].numel(), device=codes.device, dtype=torch.int32)
    ids = first.mul_(num_blocks).view(*scale.shape[:-2], 1) + block_ids.unsqueeze(-2)
    return F.embedding(ids, scale.flatten(0, -2)).mul_(codes)


def _smallest_exponent(top: Tensor, fraction: float, shift: int, largest: int) -> Tensor:
    """Return the smallest e with top <= fraction * 2**(shift + e), int8; `fraction` in [0.5, 1)."""
    mantissa, exponent = torch.frexp(top)  # top = mantissa * 2**exponent, mantissa in [0.5, 1)
    smallest = exponent - shift + (mantissa > fraction)
    smallest = smallest.masked_fill(mantissa == 0, MIN_EXPONENT)
    return smallest.clamp_(MIN_EXPONENT, largest).to(torch.int8)


def _in_blocks(x: Tensor, filler: float) -> Tensor:
    """Return (H, T, D) as (H, N, 64, D), the last block padded."""
    num_heads, num_entries, head_dim = x.shape
    num_blocks = -(-num_entries // BLOCK)
    missing = num_blocks * BLOCK - num_entries
    if missing:
        x = torch.cat([x, x.new_full((num_heads, missing, head_dim), filler)], dim=1)
    return x.reshape(num_heads, num_blocks, BLOCK, head_dim)


@cache
def _pairs(levels: tuple[float, ...], device: torch.device) -> Tensor:
    """Return (256, 2) float32: the two levels of every byte, low half first."""
    with torch.inference_mode(False):
        table = torch.tensor(levels)
        byte = torch.arange(256)
        return torch.stack([table[byte & 15], table[byte >> 4]], dim=1).to(device)
