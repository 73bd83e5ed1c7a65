"""Entries as attention reads them: in the model's dtype, or in one of the `formats`.

Shapes: B sequences, H key-value heads, T entries, D head size; C codes and S scales per entry and
head, N blocks of entries that share scales.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from agentkv_kernels.formats import Format


@dataclass(frozen=True, slots=True)
class DensePart:
    """Entries in the model's dtype."""

    keys: Tensor
    """(B, H, T, D), already rotated."""
    values: Tensor
    """(B, H, T, D)."""
    positions: Tensor
    """(B, T) integers: position of each entry in its sequence."""

    @property
    def num_entries(self) -> int:
        return self.keys.shape[2]

    def decode(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return keys and values (B, H, T, D) in `dtype`."""
        return self.keys.to(dtype), self.values.to(dtype)

    def decode_keys(self) -> Tensor:
        """Return keys (B, H, T, D) in float32."""
        return self.keys.to(torch.float32)

    def slice(self, start: int, stop: int) -> "DensePart":
        """Return entries start..stop - 1 as views."""
        cut = slice(start, stop)
        return DensePart(self.keys[:, :, cut], self.values[:, :, cut], self.positions[:, cut])

    def pick(self, index: Tensor) -> "DensePart":
        """Return a copy of the entries with these numbers (n,)."""
        return DensePart(self.keys[:, :, index], self.values[:, :, index], self.positions[:, index])

    def to(self, device: torch.device) -> "DensePart":
        """Return the entries on a device, themselves if they are there."""
        return DensePart(*(x.to(device) for x in (self.keys, self.values, self.positions)))


@dataclass(frozen=True, slots=True)
class Quantized:
    """Entries in 8 or 4 bits."""

    format: Format
    keys: Tensor
    """(B, H, T, C) codes."""
    values: Tensor
    """(B, H, T, C) codes."""
    key_scales: Tensor
    """(B, H, N, S) if the format has scales per block, else (B, H, T, S)."""
    value_scales: Tensor
    """Same shape as `key_scales`."""
    block_ids: Tensor | None
    """(B, T) int32: the block whose scales an entry has; None if each entry has its own."""
    positions: Tensor
    """(B, T), as in `DensePart`."""

    @property
    def num_entries(self) -> int:
        return self.keys.shape[2]

    def decode(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return keys and values (B, H, T, D) in `dtype`."""
        values = self.format.decode(self.values, self.value_scales, self.block_ids)
        return self.decode_keys().to(dtype), values.to(dtype)

    def decode_keys(self) -> Tensor:
        """Return keys (B, H, T, D) in float32."""
        return self.format.decode(self.keys, self.key_scales, self.block_ids)

    def slice(self, start: int, stop: int) -> "Quantized":
        """Return entries start..stop - 1 as views."""
        if start == 0 and stop == self.num_entries:
            return self
        cut, by_block = slice(start, stop), self.format.by_block
        return Quantized(
            self.format,
            self.keys[:, :, cut],
            self.values[:, :, cut],
            self.key_scales if by_block else self.key_scales[:, :, cut],
            self.value_scales if by_block else self.value_scales[:, :, cut],
            None if self.block_ids is None else self.block_ids[:, cut],
            self.positions[:, cut],
        )

    def pick(self, index: Tensor) -> "Quantized":
        """Return a copy of the entries with these numbers (n,)."""
        by_block = self.format.by_block
        return Quantized(
            self.format,
            self.keys[:, :, index],
            self.values[:, :, index],
            self.key_scales if by_block else self.key_scales[:, :, index],
            self.value_scales if by_block else self.value_scales[:, :, index],
            None if self.block_ids is None else self.block_ids[:, index],
            self.positions[:, index],
        )


Part = DensePart | Quantized
"""Entries of one storage kind."""
