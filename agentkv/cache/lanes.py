"""Storage for the rows that one layer holds for one sequence: all its KV heads, one kept set.

Rows lie in order of age: first those in 8 bits, then those in the model's dtype. A cache of unequal
heads would hold several `Lanes` per sequence, one for each group of heads that share a kept set.

Shapes: H key-value heads, T rows, D head size, N blocks of rows that share a scale.
"""

import torch
from torch import Tensor

from agentkv.cache.strip import Meter, Strip
from agentkv_kernels.ops import BLOCK, Coded, Dense, merge, quantize


class Lanes:
    """Rows of one sequence in one layer: append, drop, keep, quantise; bytes are always those held.

    Args:
        tracks_mass: whether to keep a moving average of the attention each row draws.
        meter: is told of every byte taken and given back.
    """

    __slots__ = ("_block_ids", "_codes", "_dense", "_exponents", "_mass", "_meter", "_positions")

    def __init__(
        self,
        *,
        num_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        tracks_mass: bool,
        meter: Meter,
    ) -> None:
        def empty(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        self._meter = meter
        self._dense = Strip(empty(dtype, 2, num_heads, 0, head_dim), 2, meter)
        self._positions = Strip(empty(torch.int32, 0), 0, meter)
        self._mass = Strip(empty(torch.float32, 0), 0, meter) if tracks_mass else None
        # 8-bit rows are gathered often and so lie one after another; the others are read often and
        # so lie by head
        self._codes = Strip(empty(torch.int8, 0, 2, num_heads, head_dim), 0, meter)
        self._exponents = Strip(empty(torch.int8, 0, 2, num_heads, head_dim), 0, meter)
        self._block_ids = Strip(empty(torch.int32, 0), 0, meter)

    @property
    def num_rows(self) -> int:
        return self._positions.num_rows

    @property
    def num_coded(self) -> int:
        """Rows in 8 bits; they are the oldest."""
        return self._codes.num_rows

    @property
    def num_dense(self) -> int:
        return self._dense.num_rows

    @property
    def positions(self) -> Tensor:
        """(T,) int32, ascending. A view: it changes with the store."""
        return self._positions.rows

    @property
    def mass(self) -> Tensor | None:
        """(T,) float32, a view; None where it is not tracked."""
        return None if self._mass is None else self._mass.rows

    @property
    def nbytes(self) -> int:
        """Bytes of all storage, unused room included."""
        return sum(strip.nbytes for strip in self._strips())

    def append(self, keys: Tensor, values: Tensor, positions: Tensor | int) -> None:
        """Add rows at the end.

        Args:
            keys, values: (H, t, D).
            positions: (t,), ascending and after all stored ones, or the first of t in a row. New
                rows have a mass of 0 until they are observed.
        """
        count = keys.shape[1]
        new = self._dense.extend(count)
        new[0] = keys
        new[1] = values
        places = self._positions.extend(count)
        if isinstance(positions, Tensor):
            places.copy_(positions)
        elif count == 1:
            places.fill_(positions)
        else:
            torch.arange(positions, positions + count, out=places)
        if self._mass is not None:
            self._mass.extend(count).zero_()

    def observe(self, mass: Tensor, *, num_new: int, weight: float) -> None:
        """Move the averages towards what was just seen; the newest rows start at what was seen.

        Args:
            mass: (T,) float32.
            weight: of what was seen, 1 - decay ** (number of queries it averages over).
        """
        assert self._mass is not None
        stored = self._mass.rows
        stored[-num_new:] = mass[-num_new:]
        stored.lerp_(mass, weight)

    def drop(self, start: int, stop: int) -> None:
        """Rows start..stop - 1 go."""
        if stop <= start:
            return
        coded = self.num_coded
        if start < coded:
            self._codes.drop(start, min(stop, coded))
            self._block_ids.drop(start, min(stop, coded))
            self._tidy_blocks()
        if stop > coded:
            self._dense.drop(max(start - coded, 0), stop - coded)
        self._positions.drop(start, stop)
        if self._mass is not None:
            self._mass.drop(start, stop)

    def keep(self, index: Tensor) -> None:
        """Only the rows with these ascending numbers stay, in order; (n,) int64."""
        coded = self.num_coded
        split = int((index < coded).sum()) if coded else 0
        if split < coded:
            self._codes.keep(index[:split])
            self._block_ids.keep(index[:split])
            self._tidy_blocks()
        self._dense.keep(index[split:] - coded)
        self._positions.keep(index)
        if self._mass is not None:
            self._mass.keep(index)

    def quantise_to(self, recent: int) -> None:
        """Turn the oldest rows in the model's dtype to 8 bits, in blocks, while more than
        recent + 63 of them are left."""
        num_blocks = (self.num_dense - recent) // BLOCK
        if num_blocks <= 0:
            return
        count = num_blocks * BLOCK
        oldest = self._dense.rows.narrow(2, 0, count)  # (2, H, count, D)
        codes, exponents = quantize(oldest.permute(2, 0, 1, 3))
        ids = torch.arange(count, dtype=torch.int32, device=codes.device) // BLOCK
        self._block_ids.extend(count).copy_(ids + self._exponents.num_rows)
        self._codes.extend(count).copy_(codes)
        self._exponents.replace(torch.cat([self._exponents.rows, exponents]))
        self._dense.drop(0, count)

    def parts(self) -> list[Dense | Coded]:
        """The rows as views, for attention; a batch of one."""
        coded = self.num_coded
        dense = self._dense.rows
        positions = self.positions[None]
        if not coded:
            return [Dense(dense[0, None], dense[1, None], positions)]
        parts: list[Dense | Coded] = [
            Coded(
                self._codes.rows[None],
                self._exponents.rows[None],
                self._block_ids.rows[None],
                positions[:, :coded],
            )
        ]
        if self.num_dense:
            parts.append(Dense(dense[0, None], dense[1, None], positions[:, coded:]))
        return parts

    def copy(self) -> "Lanes":
        """An independent copy on the same meter."""
        twin = object.__new__(Lanes)
        twin._meter = self._meter
        for name in ("_dense", "_positions", "_mass", "_codes", "_exponents", "_block_ids"):
            strip: Strip | None = getattr(self, name)
            if strip is not None:
                copied = Strip(strip._tensor.clone(), strip._axis, strip._meter)
                copied.start, copied.stop = strip.start, strip.stop
                strip = copied
            setattr(twin, name, strip)
        return twin

    def release(self) -> None:
        """Give all memory back; the store is of no use afterwards."""
        self._meter.add(-self.nbytes)

    def check(self) -> None:
        """Audit the structure. Raises AssertionError saying what is broken."""
        rows, coded = self.num_rows, self.num_coded
        assert coded + self.num_dense == rows, f"{coded} + {self.num_dense} rows, {rows} positions"
        assert self._mass is None or self._mass.num_rows == rows, "masses and rows differ in number"
        assert bool((self.positions.diff() > 0).all()), "positions do not ascend"
        if self.mass is not None:
            assert bool((self.mass >= 0).all()), "a mass is negative or NaN"
        ids, num_blocks = self._block_ids.rows, self._exponents.num_rows
        assert ids.shape[0] == coded, f"{ids.shape[0]} block ids for {coded} rows"
        assert bool((ids.diff() >= 0).all()), "block ids do not ascend"
        if coded:
            assert 0 <= int(ids[0]) and int(ids[-1]) < num_blocks, "a block id has no scale"
            assert num_blocks <= _most_blocks(coded), f"{num_blocks} scales for {coded} rows"
            assert bool((self._codes.rows != -128).all()), "a code is outside [-127, 127]"
        else:
            assert num_blocks == 0, "scales without rows"
        for strip in self._strips():
            assert strip.capacity - strip.num_rows <= BLOCK, "more than a block of unused room"
            assert strip.start >= 0 and strip.stop <= strip.capacity, "rows outside their memory"
            expected = strip._tensor.numel() * strip._tensor.element_size()
            assert strip.nbytes == expected, "memory is held beyond the tensor"

    def _tidy_blocks(self) -> None:
        num_rows = self.num_coded
        if not num_rows:
            self._exponents.keep(self._block_ids.rows.long())
        elif self._exponents.num_rows > _most_blocks(num_rows):
            codes, exponents, ids = merge(
                self._codes.rows, self._exponents.rows, self._block_ids.rows
            )
            self._codes.rows.copy_(codes)
            self._block_ids.rows.copy_(ids)
            self._exponents.replace(exponents)

    def _strips(self) -> list[Strip]:
        strips = [self._dense, self._positions, self._codes, self._exponents, self._block_ids]
        return strips if self._mass is None else [*strips, self._mass]


def _most_blocks(num_rows: int) -> int:
    # twice the scales that full blocks need (our choice): merging less often rounds less
    return 2 * -(-num_rows // BLOCK)
