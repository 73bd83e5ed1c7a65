"""The layout of one layer's storage: which tables it has, their fields, and where entries lie.

This module is the single definition that Python, Numba and Triton share. An *entry* is what a layer
stores of one token: key, value and metadata. A *segment* holds the entries of one head of one
sequence, or of all heads of a layer that keep the same entries. Descriptors are integers at fixed
addresses that Python and compiled code read and update in place.

Shapes: N segments, S of each sequence, W key-value heads per segment, D head size.
"""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, SupportsIndex

import torch
from torch import Tensor

from agentkv_kernels.formats import Format

POSITION, TRACKED, NORMS = range(3)
"""Fields of the metadata table; the last two are empty unless the policy reads them."""

KEYS, VALUES = range(2)
"""Fields of the dense table, of the codes, and of the scales of blocks."""

BLOCK_IDS = 2
"""Third field of the codes where blocks of entries share scales."""

KEY_SCALES, VALUE_SCALES = 2, 3
"""Further fields of the codes where each entry has its own scales."""

QUERY, QUERY_POSITION = range(2)
"""Fields of the table that holds a window of queries."""

DIGEST_BLOCK, DIGEST_LOW, DIGEST_HIGH, DIGEST_EXPONENT = range(4)
"""Fields of the table of digests: number of the block, codes of its bounds and their exponent."""

NUM_SEGMENTS, NUM_FIELDS, EXTENTS = range(3)
"""First numbers of a table descriptor: two counts, then the extents of the segments."""

BASE, CAPACITY, START, COUNT = range(4)
"""Columns of the extents, N numbers each. Entry t of head h of a segment with w heads is flat entry
w * base + h * capacity + start + t."""

ADDRESS, HEADS, SIZE = range(3)
"""Numbers per field, after the extents: address of its tensor, heads, bytes per entry and head."""

NUM_HEADS, HEAD_DIM, PER_SEQUENCE, WINDOW = range(4)
"""First numbers of a layer descriptor."""

METADATA, DENSE, CODES, SCALES, QUERIES = range(4, 9)
"""Addresses of the table descriptors in a layer descriptor; 0 for a table the layer lacks."""

DTYPE = 9
"""Dtype of dense entries and queries in a layer descriptor: one of the next four."""

FLOAT32, FLOAT16, BFLOAT16, OTHER = range(4)
"""Dtypes that compiled code reads, and any other."""

DTYPES = {torch.float32: FLOAT32, torch.float16: FLOAT16, torch.bfloat16: BFLOAT16}
"""Numbers of the dtypes that compiled code reads."""

FORMAT = 10
"""Format of quantized entries in a layer descriptor: one of the next six."""

NO_FORMAT, INT8, FP8, INT4, NF4, OTHER_FORMAT = range(6)
"""No format, the formats that compiled code reads, and any other."""

FORMAT_NUMBERS = {None: NO_FORMAT, "int8": INT8, "fp8": FP8, "int4": INT4, "nf4": NF4}
"""Numbers of the formats that compiled code reads, by name; None for no format."""

IDLE = 64
"""Further entries of capacity that a segment may have unused if evicted entries come back: looks
fetch, evict and quantize blocks, and need the capacity again."""

TOLERATED_BLOCKS = 2
"""Unused blocks of scales that a segment may have for each one in use, if evicted entries come
back: blocks come and go with every look, and are small beside the entries that they serve."""

LOAN_COUNTS, LOAN_ENTRIES, LOAN_ROOM = range(3)
"""Numbers of the loans of a cold tier: addresses of how many entries of each segment are lent, (N,)
int64, and of their positions and their numbers in the cold tier, (N, 2, room) int64; and the
room."""

FIRST_POSITION = 11
"""From here on, a layer descriptor holds the next position of every sequence."""


@dataclass(frozen=True, slots=True)
class Field:
    """One tensor of a table."""

    heads: int
    """W, or 1 for what describes an entry and not each of its heads."""
    inner: tuple[int, ...]
    """Dimensions of one entry of one head."""
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes per entry and head."""
        return self.dtype.itemsize * math.prod(self.inner)


def bytes_of_entry(fields: Sequence[Field]) -> int:
    """Return the bytes of an entry in all heads and fields."""
    return sum(field.heads * field.num_bytes for field in fields)


EMPTY = Field(1, (0,), torch.float32)
"""A field without numbers."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Tables of a layer and the fields of each."""

    segments_per_sequence: int
    """S: 1 where all heads keep the same entries, else one per head."""
    num_heads: int
    """W."""
    head_dim: int
    """D."""
    dtype: torch.dtype
    """Dtype of entries that are not quantized."""
    format: Format | None
    """Format of quantized entries; None if the layer quantizes nothing."""
    tracked: Field
    """Statistic that each entry carries; `EMPTY` for none."""
    num_norms: int
    """Norms of each entry's value per head; 0 for none."""
    by_rank: bool
    """True if rank decides what is quantized, so that entries are not stored by position."""
    promotes: bool = False
    """True if evicted entries may come back, which are then stored behind all others."""
    query_window: int = 0
    """Latest queries that are kept per sequence; 0 for none."""
    num_query_heads: int = 0
    """Query heads of a sequence; only read with a query window."""
    by_phase: bool = False
    """True if there are two such windows: one for single tokens, and one for several at once."""

    @property
    def is_by_position(self) -> bool:
        """True if the entries of a segment are stored in order of position."""
        return not self.by_rank and not self.promotes

    @property
    def metadata(self) -> tuple[Field, ...]:
        """Fields of every entry: position, tracked statistic, norms."""
        norms = Field(self.num_heads, (self.num_norms,), torch.float32)
        return Field(1, (), torch.int32), self.tracked, norms

    @property
    def dense(self) -> tuple[Field, ...]:
        """Fields of dense entries: keys and values."""
        return (Field(self.num_heads, (self.head_dim,), self.dtype),) * 2

    @property
    def codes(self) -> tuple[Field, ...]:
        """Fields of quantized entries; none without a format."""
        form = self.format
        if form is None:
            return ()
        codes = Field(self.num_heads, (form.code_size(self.head_dim),), form.code_dtype)
        if form.by_block:
            return codes, codes, Field(1, (), torch.int32)
        return codes, codes, self._scale, self._scale

    @property
    def scales(self) -> tuple[Field, ...]:
        """Fields of the scales that blocks of entries share; none if each entry has its own."""
        return () if self.format is None or not self.format.by_block else (self._scale,) * 2

    @property
    def queries(self) -> tuple[Field, ...]:
        """Fields of the query window: queries and positions; none without a window."""
        if not self.query_window:
            return ()
        query = Field(self.num_query_heads, (self.head_dim,), self.dtype)
        return query, Field(1, (), torch.int32)

    @property
    def _scale(self) -> Field:
        assert self.format is not None
        size = self.format.scale_size(self.head_dim)
        return Field(self.num_heads, (size,), self.format.scale_dtype)


class Addressed:
    """Base of values that compiled code finds by address, which a copy would not have."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or pickled by itself: compiled code finds "
            "it by its address. Copy the cache that it belongs to"
        )


class TableDescriptor(Addressed):
    """Describe one table to compiled code: extents of its segments, addresses of its fields.

    Args:
        num_segments: N.
        fields: fields of the table, whose tensors `point` names later.
    """

    def __init__(self, num_segments: int, fields: Sequence[Field]) -> None:
        self._num_segments, self._end = num_segments, EXTENTS + 4 * num_segments
        sizes = [number for field in fields for number in (0, field.heads, field.num_bytes)]
        self.numbers = array("q", [num_segments, len(fields), *[0] * (4 * num_segments), *sizes])

    @property
    def address(self) -> int:
        """Address of the numbers, which never move."""
        return self.numbers.buffer_info()[0]

    def column(self, which: int) -> list[int]:
        """Return one column of the extents, a number per segment."""
        start = EXTENTS + which * self._num_segments
        return self.numbers[start : start + self._num_segments].tolist()

    def set_column(self, which: int, numbers: Sequence[int]) -> None:
        """Write one column of the extents."""
        start = EXTENTS + which * self._num_segments
        assert len(numbers) == self._num_segments
        self.numbers[start : start + self._num_segments] = array("q", numbers)

    def count(self, segment: int, num_segments: int = 1) -> int:
        """Return the number of entries in consecutive segments."""
        at = EXTENTS + COUNT * self._num_segments + segment
        return self.numbers[at] if num_segments == 1 else sum(self.numbers[at : at + num_segments])

    def extent(self, segment: int) -> tuple[int, int, int, int]:
        """Return base, capacity, start and count of one segment."""
        numbers = self.numbers[EXTENTS + segment : self._end : self._num_segments]
        base, capacity, start, count = numbers
        return base, capacity, start, count

    def set_used(self, segment: int, start: int, count: int) -> None:
        """Set which entries of a segment's capacity are in use."""
        self.numbers[EXTENTS + START * self._num_segments + segment] = start
        self.numbers[EXTENTS + COUNT * self._num_segments + segment] = count

    @property
    def fields(self) -> list[tuple[int, int, int]]:
        """Address, heads, and bytes per entry and head, of each field."""
        numbers = self.numbers[self._end :].tolist()
        return list(zip(numbers[ADDRESS::3], numbers[HEADS::3], numbers[SIZE::3], strict=True))

    def point(self, tensors: Sequence[Tensor]) -> None:
        """Write the addresses of the fields' tensors."""
        for f, tensor in enumerate(tensors):
            self.numbers[self._end + 3 * f + ADDRESS] = tensor.data_ptr()

    def points_at(self, tensors: Sequence[Tensor]) -> bool:
        """Return whether the addresses are those of `tensors`."""
        found = self.numbers[self._end + ADDRESS :: 3].tolist()
        return found == [tensor.data_ptr() for tensor in tensors]


class LayerDescriptor(Addressed):
    """Describe all tables of one layer to compiled code.

    Args:
        layout: layout of the layer.
        batch: number of sequences.
        tables: descriptors of metadata, dense, codes, scales and queries; None for a table the
            layer lacks.
    """

    def __init__(
        self, layout: Layout, batch: int, tables: Sequence[TableDescriptor | None]
    ) -> None:
        # the numbers below hold addresses, which keep nothing alive
        self._tables = tuple(tables)
        addresses = [0 if table is None else table.address for table in self._tables]
        head = [layout.num_heads, layout.head_dim, layout.segments_per_sequence]
        dtype = DTYPES.get(layout.dtype, OTHER)
        name = None if layout.format is None else layout.format.name
        form = FORMAT_NUMBERS.get(name, OTHER_FORMAT)
        numbers = [*head, layout.query_window, *addresses, dtype, form, *[0] * batch]
        assert len(numbers) == FIRST_POSITION + batch
        self.numbers = array("q", numbers)
        self.address = self.numbers.buffer_info()[0]
        """Address of the numbers, which never move."""
        self.segments_per_sequence = layout.segments_per_sequence

    def set_positions(self, first: Sequence[int]) -> None:
        """Write the position of each sequence's next entry."""
        if len(first) == 1:
            self.numbers[FIRST_POSITION] = first[0]
        else:
            self.numbers[FIRST_POSITION:] = array("q", first)
