"""Token ids that a cache was fed."""

from collections.abc import Sequence

import torch
from torch import Tensor

from agentkv.cache.storage.table import EntryTable, Meter
from agentkv_kernels.layout import Field

TOKENS = 0
SPARE = 1023
"""Unused entries, so that the stream moves at every thousandth step only."""
MAX_PENDING = 256
"""Forwards whose tokens wait to be joined."""


class TokenIds:
    """Token ids of every sequence, on the device they came on. They do not count as cache bytes."""

    def __init__(self) -> None:
        self._table: EntryTable | None = None
        self._pending: list[Tensor] = []
        """Ids of the latest forwards: joining them at once would cost time in every step."""
        self._is_complete = True

    def append(self, ids: Tensor | None) -> None:
        """Append the ids (B, n) int32 of a forward; None, for embeddings, ends the stream."""
        if ids is None:
            self._table, self._is_complete = None, False
            self._pending.clear()
        elif self._is_complete:
            self._pending.append(ids)
            if len(self._pending) > MAX_PENDING:
                self._join()

    def _join(self) -> EntryTable | None:
        """Return all ids in one table; None if there are none."""
        if self._pending:
            ids = torch.cat(self._pending, dim=1)
            self._pending.clear()
            if self._table is None:
                fields = [Field(1, (), torch.int32)]
                self._table = EntryTable(
                    fields, ids.shape[0], device=ids.device, meter=Meter(), spare=SPARE
                )
            self._table.extend(ids.shape[1])
            self._table.view(TOKENS, None)[:, 0, -ids.shape[1] :] = ids
        return self._table

    def all(self) -> Tensor | None:
        """Return a copy (B, n) int32 on the CPU; None if there are none or some are unknown."""
        table = self._join()
        return None if table is None else table.view(TOKENS, None)[:, 0].to("cpu", copy=True)

    def forget(self, count: int) -> None:
        """Drop the newest `count` ids of every sequence."""
        table = self._join()
        if table is not None:
            table.drop([(held - count, held) for held in table.counts])

    def reorder(self, sequences: Sequence[int]) -> None:
        """Make sequence i a copy of what sequence sequences[i] was."""
        table = self._join()
        if table is not None:
            self._table = table.take(sequences)
