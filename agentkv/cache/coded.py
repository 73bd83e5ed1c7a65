"""The quantised rows of one layer's lanes: codes, and the scales they were made with.

Codes are made once, from rows in the model's dtype. Where rows share scales by block, blocks are
merged as their rows go, which shifts integers and never reads them back to floating point.

Shapes: N lanes of W heads, D head size, C codes of a row and head, T rows, one lane's blocks K.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from agentkv.cache.table import Field, Meter, Table, Which
from agentkv_kernels.index import Addressed
from agentkv_kernels.ops import BLOCK, Coded, Format, merge

KEYS, VALUES, BLOCK_IDS = 0, 1, 2
KEY_SCALES, VALUE_SCALES = 2, 3
"""The third field of codes is the block of a row, or there are scales for each row."""


class CodedRows(Addressed):
    """Quantised rows of every lane, oldest conversion first."""

    __slots__ = ("_blocks", "_codes", "format")

    def __init__(
        self,
        format: Format,
        *,
        num_heads: int,
        head_dim: int,
        num_lanes: int,
        device: torch.device,
        meter: Meter,
    ) -> None:
        self.format = format
        codes = Field(num_heads, (format.code_size(head_dim),), format.code_dtype)
        scales = Field(num_heads, (format.scale_size(head_dim),), format.scale_dtype)
        block_ids = Field(1, (), torch.int32)
        fields = [codes, codes, block_ids] if format.by_block else [codes, codes, scales, scales]
        self._codes = Table(fields, num_lanes, device=device, meter=meter)
        self._blocks: Table | None = None
        if format.by_block:
            self._blocks = Table([scales, scales], num_lanes, device=device, meter=meter, spare=0)

    @property
    def counts(self) -> list[int]:
        """Rows of each lane. Read only."""
        return self._codes.counts

    @property
    def blocks(self) -> Table | None:
        """Scales by block; None where each row has its own."""
        return self._blocks

    @property
    def tables(self) -> list[Table]:
        return [self._codes] if self._blocks is None else [self._codes, self._blocks]

    def part(self, lanes: Which, positions: Tensor) -> Coded:
        """The rows as views, for attention: of some lanes; several must be even.

        Args:
            positions: (B, T) of these rows.
        """

        key_scales, value_scales = self._scale_fields
        table = self._blocks or self._codes
        return Coded(
            self.format,
            self._codes.show(KEYS, lanes),
            self._codes.show(VALUES, lanes),
            table.show(key_scales, lanes),
            table.show(value_scales, lanes),
            None if self._blocks is None else self._codes.show(BLOCK_IDS, lanes)[:, 0],
            positions,
        )

    def append(
        self, counts: Sequence[int], rows: Callable[[int, int], tuple[Tensor, bool]]
    ) -> None:
        """Quantise rows and add them.

        Args:
            counts: how many, of each lane.
            rows: KEYS or VALUES, and a lane that has some, to (W, T, D), and whether it is a copy.
        """
        meter = self._codes.meter
        self._codes.extend(counts)
        first_blocks: list[int] = []
        if self._blocks is not None:
            first_blocks = self._blocks.counts
            self._blocks.extend([-(-count // BLOCK) for count in counts])
        table = self._blocks or self._codes
        for lane, count in enumerate(counts):
            if not count:
                continue
            for field, scale_field in zip((KEYS, VALUES), self._scale_fields, strict=True):
                x, is_copy = rows(field, lane)
                with meter.passing(*([x] if is_copy else [])):
                    codes, scales = self.format.encode(x)
                    with meter.passing(codes, scales):
                        self._codes.rows(field, lane)[:, -count:] = codes
                        table.rows(scale_field, lane)[:, -scales.shape[1] :] = scales
                        del codes, scales
                    del x
            if self._blocks is not None:
                device = self._codes.tensors[KEYS].device
                ids = torch.arange(count, device=device) // BLOCK + first_blocks[lane]
                self._codes.rows(BLOCK_IDS, lane)[0, -count:] = ids
        self.tidy()

    def drop(self, runs: Sequence[tuple[int, int]]) -> None:
        """Of each lane, rows first..last - 1 go."""
        self._codes.drop(runs)
        self.tidy()

    def keep(self, picks: Sequence[Tensor | None]) -> None:
        """Of each lane only the rows with these numbers stay; None: all."""
        self._codes.keep(picks)
        self.tidy()

    def take(self, lanes: Sequence[int]) -> "CodedRows":
        """An independent copy of these lanes, on the same meter."""
        twin = object.__new__(CodedRows)
        twin.format, twin._codes = self.format, self._codes.take(lanes)
        twin._blocks = None if self._blocks is None else self._blocks.take(lanes)
        return twin

    def check(self) -> None:
        """Audit the scales; the tables audit themselves. Raises AssertionError."""
        if self._blocks is None:
            return
        for lane, (rows, blocks) in enumerate(zip(self.counts, self._blocks.counts, strict=True)):
            assert blocks <= most_blocks(rows), f"{blocks} blocks of scales for {rows} rows"
            if rows:
                ids = self._codes.rows(BLOCK_IDS, lane)[0]
                assert 0 <= int(ids.min()) and int(ids.max()) < blocks, "a block id has no scale"

    @property
    def _scale_fields(self) -> tuple[int, int]:
        return (KEY_SCALES, VALUE_SCALES) if self._blocks is None else (KEYS, VALUES)

    def tidy(self) -> None:
        """Merge the blocks of lanes that have more than `most_blocks`."""
        if self._blocks is None:
            return
        rows, blocks = self._codes.counts, self._blocks.counts
        crowded = [have > most_blocks(count) for have, count in zip(blocks, rows, strict=True)]
        if not any(crowded):
            return
        runs = [(0, 0)] * len(rows)
        for lane in (lane for lane, is_crowded in enumerate(crowded) if is_crowded):
            # the scales of merged blocks take the places of the first ones, and the others go
            num_merged = -(-rows[lane] // BLOCK)
            runs[lane] = (num_merged, blocks[lane])
            if num_merged:
                self._merge(self._blocks, lane, num_merged)
        self._blocks.drop(runs)

    def _merge(self, blocks: Table, lane: int, num_merged: int) -> None:
        """Merge a lane's blocks into so many, whose scales come first."""
        meter, ids = self._codes.meter, self._codes.rows(BLOCK_IDS, lane)[0]
        old_ids = ids.clone()
        with meter.passing(old_ids):
            for field in (KEYS, VALUES):
                codes, scales = (table.rows(field, lane) for table in (self._codes, blocks))
                new_codes, new_scales, new_ids = merge(codes, scales, old_ids)
                with meter.passing(new_codes, new_scales, new_ids):
                    codes.copy_(new_codes)
                    scales[:, :num_merged] = new_scales
                    ids.copy_(new_ids)
                    del new_codes, new_scales, new_ids


def most_blocks(num_rows: int) -> int:
    """Blocks of scales kept for so many rows at most: twice what full ones need (our choice:
    merging less often rounds less)."""
    return 2 * -(-num_rows // BLOCK)
