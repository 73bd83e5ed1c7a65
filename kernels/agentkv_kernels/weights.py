"""Weights of linear layers in 8 and 4 bits: the block formats of GGUF files, repacked for products.

A weight is scale * (code - offset) + minimum, with scales and minima per block of 32 inputs. GGUF's
`*_k` formats have scales in two levels: a float16 per 256 inputs, times a step per block.

The order in memory suits processors that multiply four neighboring bytes at once and add them up:
16 rows stand side by side, so that their sums fill one register and none is added across it.

Shapes: R rows (outputs); K inputs; G groups of 16 rows, the last one filled with zeros; N = K / 32
blocks; P numbers per block, the scale before the minimum.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

BLOCK = 32
"""Inputs that share a scale of the activations, and of most weights."""

GROUP = 16
"""Rows side by side: 32-bit sums in a register of 512 bits."""

SUPER_BLOCK = 256
"""Inputs that share the float16 of a scale in two levels."""

LEAST = 1e-30
"""Activations whose largest is below this count as zeros, because 127 / x would overflow."""


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """A format of weights. Named as GGUF names it, in small letters."""

    name: str
    bits: int
    """Bits of a code in memory, 8 or 4: those of 5 and 6 bits take 8."""
    offset: int
    """Number that is subtracted from codes."""
    file_inputs: int
    file_bytes: int
    """Inputs and bytes of a block in a file."""
    has_minimum: bool
    has_steps: bool
    """Whether scales have two levels."""
    parts: int
    """Blocks of weights in a block of activations: 1, or 2 with 16 inputs each."""
    unpack: Callable[[Tensor], tuple[Tensor, Tensor, Tensor | None]]
    """Returns codes, scales and steps of the rows of a file, as `_packed` takes them."""


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """The weight of a linear layer in a block format."""

    format: BlockFormat
    rows: int
    width: int
    codes: Tensor
    """(G, N, V, 16, 4) uint8: V times four inputs of 16 rows. In 4 bits V is 4, low halves hold
    inputs 0..15 of a block and high halves inputs 16..31."""
    scales: Tensor
    """(G, N, P, 16) float16; (G, N / 8, P, 16) in two levels."""
    steps: Tensor | None
    """(G, N, 2, 16) int8, factors on the scales: of scale and minimum, or of both parts."""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(
            each.nbytes for each in (self.codes, self.scales, self.steps) if each is not None
        )


def pack(name: str, raw: Tensor) -> PackedWeight:
    """Pack rows of a GGUF file.

    Args:
        name: a key of `FORMATS`.
        raw: (R, bytes) uint8.

    Raises:
        ValueError: the format is not known, or the bytes are no whole blocks of it.
    """
    form = _format(name)
    if raw.dtype != torch.uint8 or raw.dim() != 2 or raw.shape[1] % form.file_bytes:
        raise ValueError(
            f"{tuple(raw.shape)} {raw.dtype} are no rows of {name}; expected (rows, bytes) uint8 "
            f"with a multiple of {form.file_bytes} bytes"
        )
    rows = raw.shape[0]
    return _packed(form, rows, *form.unpack(raw.reshape(rows, -1, form.file_bytes)))


def quantize(weight: Tensor, name: str) -> PackedWeight:
    """Quantize a weight (R, K) by the rule of llama.cpp for this format.

    Args:
        name: "q8_0", "q4_0" or "q4_1".

    Raises:
        ValueError: another format, or K is no multiple of 32.
    """
    rules = {"q8_0": _q8_0_rule, "q4_0": _q4_0_rule, "q4_1": _q4_1_rule}
    if name not in rules:
        raise ValueError(f"cannot quantize to {name!r}; expected one of {', '.join(rules)}")
    rows, width = weight.shape
    if width % BLOCK:
        raise ValueError(f"{width} inputs are no multiple of {BLOCK}, which {name} needs")
    codes, scales = rules[name](weight.detach().to(torch.float32).view(rows, -1, BLOCK))
    return _packed(FORMATS[name], rows, codes, scales.to(torch.float16), None)


def dequantize(packed: PackedWeight) -> Tensor:
    """Return the weight (R, K), float32, as llama.cpp dequantizes it."""
    return dequantize_rows(packed, torch.arange(packed.rows))


def dequantize_rows(packed: PackedWeight, rows: Tensor) -> Tensor:
    """Return rows (n,) of the weight, (n, K) float32."""
    codes, scales, minima = _blocks(packed, rows)
    values = scales[..., None] * (codes - packed.format.offset)
    if minima is not None:
        values += minima[..., None]
    return values.flatten(1)


def quantize_activations(x: Tensor) -> tuple[Tensor, Tensor]:
    """Round activations (T, K) to 8 bits per block of 32.

    Returns:
        Codes (T, N, 32) int8 and scales (T, N) float32. Blocks with infinities or NaN get a scale
        that is one of the two.
    """
    blocks = x.to(torch.float32).reshape(x.shape[0], x.shape[1] // BLOCK, BLOCK)
    largest = blocks.abs().amax(dim=2)
    is_usual = (largest >= LEAST) & largest.isfinite()
    inverse = torch.where(is_usual, 127.0 / largest, 0.0)
    codes = torch.where(is_usual[..., None], blocks * inverse[..., None], 0.0).round_()
    # infinities times zeros: NaN
    scales = torch.where(largest.isfinite(), largest / 127.0, largest.new_tensor(torch.nan))
    return codes.to(torch.int8), scales


def product(packed: PackedWeight, x: Tensor) -> Tensor:
    """Return x (T, K) times the transposed weight, (T, R) float32.

    Activations are rounded to 8 bits per block, as llama.cpp does it. Sums over a block are exact
    integers; those over blocks are float32, in order.
    """
    activations, x_scales = quantize_activations(x)
    codes, scales, minima = _blocks(packed, torch.arange(packed.rows))
    codes = codes - packed.format.offset
    parts = packed.format.parts
    own = activations.to(torch.float32).view(x.shape[0], codes.shape[1], BLOCK // parts)
    out = x.new_zeros(x.shape[0], packed.rows, dtype=torch.float32)
    for i in range(codes.shape[1]):
        factor = x_scales[:, i // parts, None]
        # whole numbers below 2**24: exact
        out += (own[:, i] @ codes[:, i].T) * (factor * scales[:, i])
        if minima is not None:
            out += (own[:, i].sum(dim=1, keepdim=True) * factor) * minima[:, i]
    return out


def _format(name: str) -> BlockFormat:
    if name not in FORMATS:
        raise ValueError(f"no such format of weights: {name!r}; known: {', '.join(FORMATS)}")
    return FORMATS[name]


def _packed(
    form: BlockFormat, rows: int, codes: Tensor, scales: Tensor, steps: Tensor | None
) -> PackedWeight:
    """Put the numbers of a weight into the order of `PackedWeight`.

    Args:
        codes: (R, N, 32) uint8.
        scales: (R, N or N / 8, P) float16.
        steps: (R, N, 2) int8, or None.
    """
    width = codes.shape[1] * BLOCK
    quads = _grouped(codes.reshape(rows, -1, BLOCK // 4, 4)).permute(0, 2, 3, 1, 4)
    if form.bits == 4:
        low, high = quads.chunk(2, dim=2)
        quads = low | (high << 4)
    return PackedWeight(
        format=form,
        rows=rows,
        width=width,
        codes=quads.contiguous(),
        scales=_grouped(scales).permute(0, 2, 3, 1).contiguous(),
        steps=None if steps is None else _grouped(steps).permute(0, 2, 3, 1).contiguous(),
    )


def _grouped(x: Tensor) -> Tensor:
    """Turn (R, ...) into (G, 16, ...), with zeros at the end."""
    missing = -x.shape[0] % GROUP
    if missing:
        x = torch.cat([x, x.new_zeros(missing, *x.shape[1:])])
    return x.view(-1, GROUP, *x.shape[1:])


def _blocks(packed: PackedWeight, rows: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return codes (n, N * parts, 32 / parts), scales and minima (n, N * parts), all float32."""
    form = packed.format
    group, own = rows // GROUP, rows % GROUP
    codes = packed.codes[group, :, :, own]  # (n, N, V, 4)
    if form.bits == 4:
        codes = torch.cat([codes & 15, codes >> 4], dim=2)
    codes = codes.reshape(len(rows), -1, BLOCK // form.parts)
    scales = packed.scales[group, :, :, own].to(torch.float32)  # (n, N, P)
    if packed.steps is not None:
        scales = scales.repeat_interleave(SUPER_BLOCK // BLOCK, dim=1)
        scales = scales * packed.steps[group, :, :, own]
    if form.has_minimum:
        return codes.to(torch.float32), scales[..., 0], scales[..., 1]
    return codes.to(torch.float32), scales.flatten(1), None


def _halves(raw: Tensor) -> Tensor:
    """Return the codes of bytes (..., n) in 4 bits, (..., 2 n): all low halves first."""
    return torch.cat([raw & 15, raw >> 4], dim=-1)


def _bits(raw: Tensor) -> Tensor:
    """Return the 32 bits of 4 bytes, (..., 32) uint8, the lowest first."""
    return ((raw[..., None] >> torch.arange(8, dtype=torch.uint8)) & 1).flatten(-2)


def _numbers(raw: Tensor) -> Tensor:
    """Return bytes (..., 2 n) as n float16."""
    return raw.contiguous().view(torch.float16)


Unpacked = tuple[Tensor, Tensor, Tensor | None]


def _q8_0(raw: Tensor) -> Unpacked:
    return raw[..., 2:] ^ 128, _numbers(raw[..., :2]), None


def _q4_0(raw: Tensor) -> Unpacked:
    return _halves(raw[..., 2:]), _numbers(raw[..., :2]), None


def _q4_1(raw: Tensor) -> Unpacked:
    return _halves(raw[..., 4:]), _numbers(raw[..., :4]), None


def _q5_0(raw: Tensor) -> Unpacked:
    return _halves(raw[..., 6:]) | (_bits(raw[..., 2:6]) << 4), _numbers(raw[..., :2]), None


def _q5_1(raw: Tensor) -> Unpacked:
    return _halves(raw[..., 8:]) | (_bits(raw[..., 4:8]) << 4), _numbers(raw[..., :4]), None


def _q4_k(raw: Tensor) -> Unpacked:
    codes = _halves(raw[..., 16:].reshape(*raw.shape[:2], 4, 32))
    return codes.reshape(raw.shape[0], -1, BLOCK), _scales_k(raw), _steps_k(raw)


def _q5_k(raw: Tensor) -> Unpacked:
    codes = _halves(raw[..., 48:].reshape(*raw.shape[:2], 4, 32)).view(*raw.shape[:2], 8, 32)
    high = (raw[..., None, 16:48] >> torch.arange(8, dtype=torch.uint8)[:, None]) & 1
    codes = codes | (high << 4)
    return codes.reshape(raw.shape[0], -1, BLOCK), _scales_k(raw), _steps_k(raw)


def _scales_k(raw: Tensor) -> Tensor:
    """Return float16 factors on scales and minima; minima are added here, subtracted there."""
    scales = _numbers(raw[..., :4]).clone()
    scales[..., 1].neg_()
    return scales


def _steps_k(raw: Tensor) -> Tensor:
    """Return the steps of 8 blocks, which take 6 bits each in 12 bytes."""
    scales, minima, rest = raw[..., 4:16].chunk(3, dim=-1)
    scales = torch.cat([scales & 63, (rest & 15) | ((scales >> 2) & 48)], dim=-1)
    minima = torch.cat([minima & 63, (rest >> 4) | ((minima >> 2) & 48)], dim=-1)
    steps = torch.stack([scales, minima], dim=-1)
    return steps.view(torch.int8).reshape(raw.shape[0], -1, 2)


def _q6_k(raw: Tensor) -> Unpacked:
    shape = raw.shape[:2]
    low = _halves(raw[..., :128].reshape(*shape, 2, 64)).view(*shape, 2, 4, 32)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
    high = (raw[..., 128:192].reshape(*shape, 2, 1, 32) >> shifts) & 3
    codes = (low | (high << 4)).reshape(raw.shape[0], -1, BLOCK)
    steps = raw[..., 192:208].contiguous().view(torch.int8).reshape(raw.shape[0], -1, 2)
    return codes, _numbers(raw[..., 208:]), steps


def _q8_0_rule(blocks: Tensor) -> tuple[Tensor, Tensor]:
    scales = blocks.abs().amax(dim=2, keepdim=True) / 127
    scaled = blocks * _inverse(scales)
    # half away from zero
    rounded = torch.where(scaled < 0, -1, 1) * (scaled.abs() + 0.5).floor()
    return (rounded + 128).to(torch.uint8), scales


def _q4_0_rule(blocks: Tensor) -> tuple[Tensor, Tensor]:
    largest = blocks.gather(2, blocks.abs().argmax(dim=2, keepdim=True))
    scales = largest / -8
    codes = (blocks * _inverse(scales) + 8.5).trunc().clamp(0, 15)
    return codes.to(torch.uint8), scales


def _q4_1_rule(blocks: Tensor) -> tuple[Tensor, Tensor]:
    minima = blocks.amin(dim=2, keepdim=True)
    scales = (blocks.amax(dim=2, keepdim=True) - minima) / 15
    codes = ((blocks - minima) * _inverse(scales) + 0.5).trunc().clamp(0, 15)
    return codes.to(torch.uint8), torch.cat([scales, minima], dim=2)


def _inverse(x: Tensor) -> Tensor:
    return torch.where(x == 0, 0.0, 1 / x)


FORMATS: Mapping[str, BlockFormat] = MappingProxyType(
    {
        form.name: form
        for form in (
            # name, bits, offset, inputs and bytes in a file, minimum, steps, parts
            BlockFormat("q8_0", 8, 128, 32, 34, False, False, 1, _q8_0),
            BlockFormat("q4_0", 4, 8, 32, 18, False, False, 1, _q4_0),
            BlockFormat("q4_1", 4, 0, 32, 20, True, False, 1, _q4_1),
            BlockFormat("q5_0", 8, 16, 32, 22, False, False, 1, _q5_0),
            BlockFormat("q5_1", 8, 0, 32, 24, True, False, 1, _q5_1),
            BlockFormat("q4_k", 4, 0, 256, 144, True, True, 1, _q4_k),
            BlockFormat("q5_k", 8, 0, 256, 176, True, True, 1, _q5_k),
            BlockFormat("q6_k", 8, 32, 256, 210, False, True, 2, _q6_k),
        )
    }
)
"""Formats by name."""

KINDS = tuple({(f.bits, f.has_minimum, f.has_steps, f.parts): 0 for f in FORMATS.values()})
"""What compiled code tells apart of formats: bits, has_minimum, has_steps and parts of a
`BlockFormat`."""

KIND, OFFSET, WIDTH, FIRST_ROW, CODES, SCALES, STEPS, WEIGHT_NUMBERS = range(8)
"""Numbers of a weight, as compiled code reads it: its place in `KINDS`; what is subtracted from
codes; K; the row that counts as the first; addresses, 0 for no steps."""


def numbers_of(packed: PackedWeight, first_row: int = 0) -> Tensor:
    """Return (`WEIGHT_NUMBERS`,) int64. They hold as long as the weight's tensors are kept."""
    form, steps = packed.format, packed.steps
    return torch.tensor(
        [
            KINDS.index((form.bits, form.has_minimum, form.has_steps, form.parts)),
            form.offset,
            packed.width,
            first_row,
            packed.codes.data_ptr(),
            packed.scales.data_ptr(),
            0 if steps is None else steps.data_ptr(),
        ]
    )
