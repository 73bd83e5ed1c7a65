"""INT8, FP8, INT4 and NF4 by their definitions, number by number."""

import math

import numpy as np

from tests.agentkv.reference.dense import Layer

SIZE = 64
"""Tokens of an INT8 block."""


def fp8(row: np.ndarray) -> np.ndarray:
    """A token's key or value (D,) as e4m3 would give it back, with a scale per token (ARKV, section
    IV.F).

    The scale is a power of two (our choice): the smallest with which the largest |x| fits into 448.
    """
    top = max(abs(x) for x in row)
    if top == 0:
        return row
    top = rounded(top, math.floor(math.log2(top)) - 3)
    scale = 2.0 ** math.ceil(math.log2(top / 448))
    return np.array([e4m3(x / scale) * scale for x in row])


def e4m3(x: float) -> float:
    """Three bits after the leading one; below 2**-6 steps of 2**-9; 448 at most."""
    if x == 0:
        return 0.0
    step = max(math.floor(math.log2(abs(x))), -6) - 3
    return max(-448.0, min(448.0, rounded(x, step)))


INT4 = [n / 7 for n in range(-7, 8)]
"""Evenly spaced. 4 bits have one more, which a symmetric format has no use for."""

NF4 = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
]  # fmt: skip
"""QLoRA (arXiv 2305.14314), appendix E."""


def levels(row: np.ndarray, of: list[float]) -> np.ndarray:
    """A token's key or value (D,), D at most 32: the nearest levels times the largest |x|, which is
    stored in bfloat16, that is with 8 bits (our choice)."""
    top = max(abs(x) for x in row)
    scale = rounded(top, math.floor(math.log2(top)) - 7)
    return np.array([min(of, key=lambda level: abs(x / scale - level)) * scale for x in row])


def rounded(x: float, exponent: int) -> float:
    """Round to a multiple of 2**exponent, half to even."""
    return round(x / 2.0**exponent) * 2.0**exponent


class ByToken:
    """The tokens of one layer that are stored in a format with a scale per token and head."""

    def __init__(self, layer: Layer) -> None:
        self.layer = layer
        self.positions: list[int] = []

    def __len__(self) -> int:
        return len(self.positions)

    def drop(self, held: list[int]) -> None:
        """Forget tokens that the layer holds no more."""
        stays = set(held)
        self.positions = [i for i in self.positions if i in stays]

    def add(self, positions: list[int]) -> None:
        self.positions += positions
        for rows in (self.layer.keys, self.layer.values):
            for head in range(len(rows)):
                for i in positions:
                    rows[head, i] = self.rounded(rows[head, i])

    def rounded(self, row: np.ndarray) -> np.ndarray:
        raise NotImplementedError


class Fp8(ByToken):
    def rounded(self, row: np.ndarray) -> np.ndarray:
        return fp8(row)


class Int4(ByToken):
    def rounded(self, row: np.ndarray) -> np.ndarray:
        return levels(row, INT4)


class Nf4(ByToken):
    def rounded(self, row: np.ndarray) -> np.ndarray:
        return levels(row, NF4)


class Int8:
    """The tokens of one layer that are stored in INT8.

    The scale is symmetric, per head and channel (CONF-KV, "Tiled attention and mixed precision").
    That each block of 64 tokens has its own, for keys and for values, and that it is a power of two
    are our choice.
    """

    def __init__(self, layer: Layer) -> None:
        self.layer = layer
        self.blocks: list[list[int]] = []
        """Positions, ascending from block to block."""
        self.codes: dict[int, np.ndarray] = {}
        """Per position: (2, H, D) whole numbers, of the key and of the value."""
        self.scales: list[np.ndarray] = []
        """Per block: (2, H, D)."""
        self.num_packed = 0
        """Times that survivors of several blocks were put into fewer."""

    def __len__(self) -> int:
        return sum(len(block) for block in self.blocks)

    def add(self, positions: list[int]) -> None:
        """Quantise tokens of the layer, a block of them, once for all."""
        layer = self.layer
        rows = np.stack([layer.keys[:, positions], layer.values[:, positions]])  # (2, H, 64, D)
        self.scales.append(self.scale(np.abs(rows).max(axis=2)))
        self.blocks.append(list(positions))
        for n, position in enumerate(positions):
            self.codes[position] = np.rint(rows[:, :, n] / self.scales[-1])
        self._write()

    def scale(self, top: np.ndarray) -> np.ndarray:
        """Of channels with the largest |x| `top`."""
        return 2.0 ** np.ceil(np.log2(np.maximum(top, 1e-30) / 127))

    def drop(self, held: list[int]) -> None:
        """Forget tokens that the layer holds no more. If there are more than twice as many blocks
        as the others fill (our choice), pack these: a block takes the largest scale that its tokens
        come with, and where that is another, their numbers are rounded once, half to even."""
        self.blocks = [[i for i in block if i in set(held)] for block in self.blocks]
        if len(self.blocks) > 2 * math.ceil(len(self) / SIZE):
            came_with = {
                i: s for block, s in zip(self.blocks, self.scales, strict=True) for i in block
            }
            every, self.num_packed = list(came_with), self.num_packed + 1
            self.blocks = [every[n : n + SIZE] for n in range(0, len(every), SIZE)]
            self.scales = []
            for block in self.blocks:
                largest = np.max([came_with[i] for i in block], axis=0)
                self.scales.append(largest)
                for i in block:
                    self.codes[i] = np.rint(self.codes[i] * came_with[i] / largest)
            self._write()

    def _write(self) -> None:
        """Let the layer attend to what is stored."""
        for block, scale in zip(self.blocks, self.scales, strict=True):
            for i in block:
                self.layer.keys[:, i], self.layer.values[:, i] = self.codes[i] * scale


class Int8Max(Int8):
    """`Int8` with the scale max / 127 (CONF-KV), in bfloat16 (our choice)."""

    def scale(self, top: np.ndarray) -> np.ndarray:
        exponents = np.floor(np.log2(np.maximum(top, 1e-30) / 127)) - 7
        return np.rint(top / 127 / 2.0**exponents) * 2.0**exponents
