"""The latest rotated queries of every sequence in one layer.

With them, attention of the window to the stored entries is available at every step and not only
after a prompt. Each query keeps the rotation of its own position.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from agentkv.cache.storage.table import EntryTable, Meter
from agentkv_kernels.layout import QUERY, QUERY_POSITION, Addressed, Layout

SPARE = 15
"""Unused entries, so that the memory moves at every sixteenth step only."""


class QueryWindow(Addressed):
    """Up to `layout.query_window` queries (H * G, w, D) of each sequence."""

    def __init__(self, layout: Layout, batch: int, *, device: torch.device, meter: Meter) -> None:
        self.window = layout.query_window
        self.table = EntryTable(layout.queries, batch, device=device, meter=meter, spare=SPARE)

    def append(
        self,
        q: Tensor,
        *,
        first: Sequence[int],
        columns: Sequence[Tensor] | None,
        spared: int = 0,
    ) -> None:
        """Append the queries (B, H * G, Q, D) of a forward, dropping the oldest beyond the window.

        Args:
            first: position of the first new query of each sequence.
            columns: per sequence (n,) int64, the columns of `q` that are tokens; None: all.
            spared: further queries to keep until `trim`, because that many may be forgotten.
        """
        q, batch, num_q, most = q.detach(), q.shape[0], q.shape[2], self.window + spared
        picks = None if columns is None else [c[-most:] for c in columns]
        table = self.table
        counts = [min(num_q, most)] * batch
        if picks is not None:
            counts = [pick.shape[0] for pick in picks]
        excess = [have + new - most for have, new in zip(table.counts, counts, strict=True)]
        table.drop([(0, max(0, count)) for count in excess])
        table.extend(counts)
        for i, count in enumerate(counts):
            if count:
                newest = table.entries(QUERY, i)[:, -count:]
                if picks is None:
                    newest.copy_(q[i][:, -count:])
                else:
                    torch.index_select(q[i], 1, picks[i], out=newest)
                end = first[i] + (num_q if columns is None else columns[i].shape[0])
                positions = table.entries(QUERY_POSITION, i)[0, -count:]
                torch.arange(end - count, end, out=positions)

    def forget(self, fed: Sequence[int]) -> None:
        """Drop the queries of tokens that come after the first `fed` of each sequence."""
        ends = self.table.counts
        starts = [int((self.of(i)[1] < num_seen).sum()) for i, num_seen in enumerate(fed)]
        self.table.drop(list(zip(starts, ends, strict=True)))

    def trim(self) -> None:
        """Drop the oldest queries beyond the window."""
        self.table.drop([(0, max(0, count - self.window)) for count in self.table.counts])

    def of(self, sequence: int) -> tuple[Tensor, Tensor]:
        """Return views of a sequence's queries (H * G, w, D) and their positions (w,)."""
        queries = self.table.entries(QUERY, sequence)
        return queries, self.table.entries(QUERY_POSITION, sequence)[0]

    def take(self, sequences: Sequence[int]) -> "QueryWindow":
        """Return an independent copy for these sequences, on the same meter."""
        copy = object.__new__(QueryWindow)
        copy.window, copy.table = self.window, self.table.take(sequences)
        return copy

    def check(self, fed: Sequence[int], *, is_whole: bool = True) -> None:
        """Audit the window, given the tokens fed to each sequence. Raises AssertionError.

        Args:
            is_whole: whether it holds the queries of all tokens, and not those of one phase.
        """
        for i, (count, num_seen) in enumerate(zip(self.table.counts, fed, strict=True)):
            assert count <= min(num_seen, self.window), "the window of queries holds too many"
            if is_whole:
                # fewer than the window after tokens were forgotten, whose queries had taken places
                newest = torch.arange(num_seen - count, num_seen)
                found = self.of(i)[1].to("cpu", torch.int64)
                assert torch.equal(found, newest), "the window does not hold the newest queries"
