"""The last rotated queries of every sequence in one layer.

What a window of queries says of the stored rows can so be asked at any step, not only after a
prompt, and each query keeps the rotation of its own position.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from agentkv.cache.table import Field, Meter, Table
from agentkv_kernels.index import Addressed

QUERIES, PLACES = 0, 1

SPARE = 15
"""Rows of room, so that the memory moves at every sixteenth step only."""


class QueryRing(Addressed):
    """At most `window` queries (H * G, w, D) of each sequence, the newest ones."""

    __slots__ = ("table", "window")

    def __init__(
        self,
        window: int,
        *,
        num_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        batch: int,
        device: torch.device,
        meter: Meter,
    ) -> None:
        fields = [Field(num_heads, (head_dim,), dtype), Field(1, (), torch.int32)]
        self.window = window
        self.table = Table(fields, batch, device=device, meter=meter, spare=SPARE)

    @property
    def nbytes(self) -> int:
        """Bytes of all storage, unused room included."""
        return self.table.nbytes

    def append(self, q: Tensor, *, first: Sequence[int], columns: Sequence[Tensor] | None) -> None:
        """Take in the queries (B, H * G, Q, D) of a forward.

        Args:
            first: per sequence, the position of its first new query; the next has one more.
            columns: per sequence (n,) int64, which of them are real; None: all.
        """
        q, batch, num_q = q.detach(), q.shape[0], q.shape[2]
        picks = None if columns is None else [c[-self.window :] for c in columns]
        table = self.table
        whole = [min(num_q, self.window)] * batch
        counts = whole if picks is None else [pick.shape[0] for pick in picks]
        excess = [have + new - self.window for have, new in zip(table.counts, counts, strict=True)]
        table.drop([(0, max(0, count)) for count in excess])
        table.extend(counts)
        for i, count in enumerate(counts):
            if count:
                last_rows = table.rows(QUERIES, i)[:, -count:]
                if picks is None:
                    last_rows.copy_(q[i][:, -count:])
                else:
                    torch.index_select(q[i], 1, picks[i], out=last_rows)
                last = first[i] + (num_q if columns is None else columns[i].shape[0])
                torch.arange(last - count, last, out=table.rows(PLACES, i)[0, -count:])

    def of(self, sequence: int) -> tuple[Tensor, Tensor]:
        """Queries (H * G, w, D) and their positions (w,), as views."""
        return self.table.rows(QUERIES, sequence), self.table.rows(PLACES, sequence)[0]

    def release(self) -> None:
        """Give all memory back; the ring is of no use afterwards."""
        self.table.release()

    def check(self, fed: Sequence[int]) -> None:
        """Audit the structure, given the tokens each sequence was fed. Raises AssertionError."""
        self.table.check()
        whole = [min(num_seen, self.window) for num_seen in fed]
        assert self.table.counts == whole, "the window of queries is not whole"

    def take(self, sequences: Sequence[int]) -> "QueryRing":
        """An independent copy for these sequences, on the same meter."""
        twin = object.__new__(QueryRing)
        twin.window, twin.table = self.window, self.table.take(sequences)
        return twin
