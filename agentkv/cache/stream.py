"""The tokens a cache was fed: a stream that only ever grows."""

from collections.abc import Sequence

import torch
from torch import Tensor

from agentkv.cache.table import Field, Meter, Table

TOKENS = 0
SPARE = 1023
"""Room for tokens, so that the stream moves at every thousandth step only."""
MOST_FRESH = 256
"""Forwards whose tokens wait to be joined."""


class IdStream:
    """Token ids of every sequence, where they came from; not counted as the cache's bytes."""

    __slots__ = ("_fresh", "_is_whole", "_table")

    def __init__(self) -> None:
        self._table: Table | None = None
        self._fresh: list[Tensor] = []
        """Of the latest forwards: joining them at once would cost every step."""
        self._is_whole = True

    def append(self, ids: Tensor | None) -> None:
        """Take in the ids (B, n) int32 of a forward; None: it had none, and the stream ends."""
        if ids is None:
            self._table, self._is_whole = None, False
            self._fresh.clear()
        elif self._is_whole:
            self._fresh.append(ids)
            if len(self._fresh) > MOST_FRESH:
                self._join()

    def _join(self) -> Table | None:
        """All of it in one table; None if there is nothing."""
        if self._fresh:
            ids = torch.cat(self._fresh, dim=1)
            self._fresh.clear()
            if self._table is None:
                fields = [Field(1, (), torch.int32)]
                self._table = Table(
                    fields, ids.shape[0], device=ids.device, meter=Meter(), spare=SPARE
                )
            self._table.extend(ids.shape[1])
            self._table.all_rows(TOKENS)[:, 0, -ids.shape[1] :] = ids
        return self._table

    def all(self) -> Tensor | None:
        """(B, n) int32 on the CPU, a copy; None if there are none or some are not known."""
        table = self._join()
        return None if table is None else table.all_rows(TOKENS)[:, 0].to("cpu", copy=True)

    @property
    def is_whole(self) -> bool:
        """Whether all tokens so far are known; if not, none are."""
        return self._is_whole

    def copy(self) -> "IdStream":
        """An independent copy."""
        twin = IdStream()
        twin._is_whole = self._is_whole
        table = self._join()
        if table is not None:
            twin._table = table.take(range(table.num_lanes))
        return twin

    def reorder(self, sequences: Sequence[int]) -> None:
        """Sequence i becomes a copy of what sequence sequences[i] was."""
        table = self._join()
        if table is not None:
            self._table = table.take(sequences)
