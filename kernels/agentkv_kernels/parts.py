"""What attention reads: rows in the model's own dtype, and rows in one of the `formats`.

Shapes: B sequences, H key-value heads, T stored rows, D head size; C codes and S scales per row and
head, N blocks of rows that share their scales.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from agentkv_kernels.formats import Format


@dataclass(frozen=True, slots=True)
class Dense:
    """Rows in the model's own dtype."""

    keys: Tensor
    """(B, H, T, D), already rotated."""
    values: Tensor
    """(B, H, T, D)."""
    positions: Tensor
    """(B, T) integers, the place of each row in its sequence; -1 marks a row that is not there."""
    is_padded: bool = False
    """Whether any position is -1. Rows that are not there may hold anything, NaN included."""

    @property
    def num_rows(self) -> int:
        return self.keys.shape[2]

    def whole(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Keys and values (B, H, T, D) in `dtype`."""
        return self.keys.to(dtype), self.values.to(dtype)

    def rows(self, start: int, stop: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Keys, values (B, H, t, D) in `dtype` and positions (B, t) of rows start..stop."""
        keys, values = self.keys[:, :, start:stop], self.values[:, :, start:stop]
        return keys.to(dtype), values.to(dtype), self.positions[:, start:stop]

    def some_keys(self, start: int, stop: int) -> Tensor:
        """Keys (B, H, t, D) float32 of rows start..stop."""
        return self.keys[:, :, start:stop].to(torch.float32)


@dataclass(frozen=True, slots=True)
class Coded:
    """Rows in fewer bits."""

    format: Format
    keys: Tensor
    """(B, H, T, C) codes."""
    values: Tensor
    """(B, H, T, C) codes."""
    key_scales: Tensor
    """(B, H, N, S) where the format has scales by block, else (B, H, T, S)."""
    value_scales: Tensor
    """As `key_scales`."""
    block_ids: Tensor | None
    """(B, T) int32: which block's scales a row was encoded with, in 0..N - 1 also where a row is
    not there; None where each row has its own."""
    positions: Tensor
    """(B, T), as in `Dense`."""
    is_padded: bool = False

    @property
    def num_rows(self) -> int:
        return self.keys.shape[2]

    def whole(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Keys and values (B, H, T, D) in `dtype`."""
        decode, ids = self.format.decode, self.block_ids
        keys = decode(self.keys, self.key_scales, ids)
        return keys.to(dtype), decode(self.values, self.value_scales, ids).to(dtype)

    def rows(self, start: int, stop: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Keys, values (B, H, t, D) in `dtype` and positions (B, t) of rows start..stop."""
        part = self._slice(start, stop)
        return *part.whole(dtype), part.positions

    def some_keys(self, start: int, stop: int) -> Tensor:
        """Keys (B, H, t, D) float32 of rows start..stop."""
        part = self._slice(start, stop)
        return part.format.decode(part.keys, part.key_scales, part.block_ids)

    def _slice(self, start: int, stop: int) -> "Coded":
        if start == 0 and stop == self.num_rows:
            return self
        cut = slice(start, stop)
        by_block = self.format.by_block
        return Coded(
            self.format,
            self.keys[:, :, cut],
            self.values[:, :, cut],
            self.key_scales if by_block else self.key_scales[:, :, cut],
            self.value_scales if by_block else self.value_scales[:, :, cut],
            None if self.block_ids is None else self.block_ids[:, cut],
            self.positions[:, cut],
            self.is_padded,
        )


Part = Dense | Coded
