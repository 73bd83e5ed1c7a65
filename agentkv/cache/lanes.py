"""Storage for the rows of one layer: for every sequence one lane of all KV heads, where these keep
the same rows, or one lane per head.

Rows of a lane lie in storage order: first those that are quantised, then those in the model's
dtype. The latter ascend in position; the former do too while age decides what is quantised.

Shapes: B sequences, S lanes of each (1 or H), N = B * S; W heads in a lane (H or 1), D head size;
T rows of a lane.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from agentkv.cache.coded import CodedRows
from agentkv.cache.shape import LaneShape
from agentkv.cache.table import Field, Meter, Table, Which
from agentkv.cache.verdicts import Run, rows_gone, rows_left
from agentkv.policies.rows import Verdict
from agentkv_kernels.index import Addressed
from agentkv_kernels.ops import BLOCK, Coded, Dense

POSITION, TRACKED, NORMS = 0, 1, 2
"""Fields of the metadata; the last two are empty unless the policy reads them."""
KEYS, VALUES = 0, 1


class Lanes(Addressed):
    """The lanes of one layer: append, attend to, drop, keep, quantise; all bytes are metered."""

    __slots__ = ("_dense", "_meta", "coded", "device", "num_lanes", "shape")

    def __init__(
        self,
        shape: LaneShape,
        *,
        batch: int,
        device: torch.device,
        meter: Meter,
    ) -> None:
        heads, num_lanes = shape.num_heads, batch * shape.per_sequence
        self.shape, self.num_lanes, self.device = shape, num_lanes, device
        norms = Field(heads, (shape.num_norms,), torch.float32)
        about = [Field(1, (), torch.int32), shape.tracked, norms]
        self._meta = Table(about, num_lanes, device=device, meter=meter)
        whole = Field(heads, (shape.head_dim,), shape.dtype)
        self._dense = Table([whole, whole], num_lanes, device=device, meter=meter)
        self.coded: CodedRows | None = None
        if shape.format is not None:
            self.coded = CodedRows(
                shape.format,
                num_heads=heads,
                head_dim=shape.head_dim,
                num_lanes=num_lanes,
                device=device,
                meter=meter,
            )

    @property
    def counts(self) -> list[int]:
        """Rows of each lane."""
        return self._meta.counts

    def num_rows(self, sequence: int) -> int:
        """Rows of all lanes of a sequence."""
        per = self.shape.per_sequence
        return self._meta.index.count(sequence * per, per)

    @property
    def num_coded(self) -> list[int]:
        """Quantised rows of each lane, the first in storage order. Read only."""
        return [0] * self.num_lanes if self.coded is None else self.coded.counts

    @property
    def num_dense(self) -> list[int]:
        """Rows of each lane in the model's dtype. Read only."""
        return self._dense.counts

    @property
    def nbytes(self) -> int:
        """Bytes of all storage, unused room included."""
        return sum(table.nbytes for table in self.tables)

    @property
    def tables(self) -> list[Table]:
        """All that is stored, always in the same order."""
        return [self._meta, self._dense, *([] if self.coded is None else self.coded.tables)]

    @property
    def is_even(self) -> bool:
        """Whether one attention call can serve all lanes."""
        return all(table.is_even for table in self.tables)

    def positions(self, lane: int) -> Tensor:
        """(T,) int32 in storage order. A view: it changes with the store."""
        return self._meta.rows(POSITION, lane)[0]

    # ---- growing

    def append(
        self,
        keys: Tensor,
        values: Tensor,
        norms: Tensor | None,
        *,
        first: Sequence[int],
        columns: Sequence[Tensor] | None = None,
    ) -> None:
        """Add rows at the end of every lane; their statistic is 0.

        Args:
            keys, values: (N, W, t, D).
            norms: (N, W, t, n), if there are any.
            first: per sequence, the position of its first new row; the next has one more.
            columns: per sequence (n,) int64 ascending, the columns that are rows; None: all t.
        """
        before, count = self._meta.counts, keys.shape[2]
        counts: list[int] | int = count
        if columns is not None:
            counts = [
                columns[lane // self.shape.per_sequence].shape[0] for lane in range(len(before))
            ]
        self._meta.extend(counts)
        self._dense.extend(counts)
        as_one = columns is None and self._dense.is_even
        if as_one:
            self._dense.all_rows(KEYS)[:, :, -count:] = keys
            self._dense.all_rows(VALUES)[:, :, -count:] = values
        for lane, start in enumerate(before):
            pick = None if columns is None else columns[lane // self.shape.per_sequence]
            if not as_one:
                for field, x in ((KEYS, keys), (VALUES, values)):
                    self._write(self._dense.rows(field, lane), x[lane], pick)
            places = self.positions(lane)[start:]
            place = first[lane // self.shape.per_sequence]
            if places.shape[0] == 1:
                places.fill_(place)
            elif places.shape[0]:
                torch.arange(place, place + places.shape[0], out=places)
            if self.shape.tracked.inner != (0,):
                self.statistic(lane)[:, start:].zero_()
            if norms is not None:
                self._write(self._meta.rows(NORMS, lane), norms[lane], pick)

    def _write(self, rows: Tensor, x: Tensor, pick: Tensor | None) -> None:
        """The last of `rows` (W, T, F) become `x` (W, t, F), or what of it has these numbers."""
        num_new = x.shape[1] if pick is None else pick.shape[0]
        last = rows[:, rows.shape[1] - num_new :]
        if pick is None:
            last.copy_(x)
        else:
            torch.index_select(x, 1, pick, out=last)

    # ---- reading

    def places(self, lanes: Which = None) -> Tensor:
        """(n, T) int32, positions in storage order; of several lanes, these must be even."""
        return self._meta.show(POSITION, lanes)[:, 0]

    def statistic(self, lanes: Which = None) -> Tensor:
        """(n, T, k), what a tracker writes; a view."""
        return self._meta.show(TRACKED, lanes)[:, 0]

    def norms(self, lanes: Which = None) -> Tensor:
        """(n, W, T, k) float32, a view."""
        return self._meta.show(NORMS, lanes)

    def parts(self, lanes: Which = None) -> list[Dense | Coded]:
        """The rows as views, for attention; the lanes are its batch."""
        first = lanes if isinstance(lanes, int) else 0
        positions, num_coded = self.places(lanes), self.num_coded[first]
        parts: list[Dense | Coded] = []
        if num_coded:
            assert self.coded is not None
            parts.append(self.coded.part(lanes, positions[:, :num_coded]))
        if positions.shape[1] > num_coded or not parts:
            keys, values = self._dense.show(KEYS, lanes), self._dense.show(VALUES, lanes)
            parts.append(Dense(keys, values, positions[:, num_coded:]))
        return parts

    # ---- shrinking

    def apply(self, verdicts: Sequence[Verdict | None]) -> None:
        """Let rows go as each sequence's verdict says; None: all stay.

        The mask of a verdict goes by storage order, a shorter lane filled up at its front.
        """
        per = self.shape.per_sequence
        gone = [
            rows_gone(verdicts[lane // per], lane % per, count)
            for lane, count in enumerate(self.counts)
        ]
        runs = [rows for rows in gone if isinstance(rows, tuple)]
        if len(runs) == len(gone):
            self.drop(runs)
        else:
            both = zip(gone, self.counts, strict=True)
            self._keep([rows_left(rows, count, self.device) for rows, count in both])

    def drop(self, runs: Sequence[Run]) -> None:
        """Of each lane, rows first..last - 1 of the storage order go."""
        dense = runs
        if self.coded is not None:
            split = list(zip(runs, self.coded.counts, strict=True))
            dense = [(max(a - n, 0), max(b - n, 0)) for (a, b), n in split]
            self.coded.drop([(min(a, n), min(b, n)) for (a, b), n in split])
        self._dense.drop(dense)
        self._meta.drop(runs)

    def drop_before(self, oldest: Sequence[int]) -> None:
        """Of each lane, the rows that stand before a position go."""
        if self.shape.by_rank:
            limits = enumerate(oldest)
            self._keep([(self.positions(i) >= limit).nonzero().squeeze(1) for i, limit in limits])
            return
        runs = []
        for lane, limit in enumerate(oldest):
            places = self.positions(lane)
            is_in_reach = limit <= 0 or not places.shape[0] or int(places[0]) >= limit
            runs.append((0, 0 if is_in_reach else int((places < limit).sum())))
        self.drop(runs)

    def _keep(self, picks: Sequence[Tensor | None]) -> None:
        dense = picks
        if self.coded is not None:
            old, dense = [], []
            for pick, count in zip(picks, self.coded.counts, strict=True):
                split = 0 if pick is None or not count else int((pick < count).sum())
                old.append(None if pick is None or split == count else pick[:split])
                dense.append(None if pick is None else pick[split:] - count)
            self.coded.keep(old)
        self._dense.keep(dense)
        self._meta.keep(picks)

    # ---- quantising

    def quantise_to(self, recent: Sequence[int]) -> None:
        """Quantise the oldest rows in the model's dtype, in blocks, while more than recent + 63 of
        a lane are left; `recent` is given per sequence."""
        per, held = self.shape.per_sequence, self._dense.counts
        older = [count - recent[lane // per] for lane, count in enumerate(held)]
        if max(older) < BLOCK:
            return
        counts = [max(0, count) // BLOCK * BLOCK for count in older]
        assert self.coded is not None

        def oldest(field: int, lane: int) -> tuple[Tensor, bool]:
            return self._dense.rows(field, lane)[:, : counts[lane]], False

        self.coded.append(counts, oldest)
        self._dense.drop([(0, count) for count in counts])

    def quantise(self, picks: Sequence[Tensor]) -> None:
        """Quantise of each lane the rows with these numbers (n,), ascending, in storage order; all
        of them are in the model's dtype so far. They go behind the quantised ones."""
        if not any(pick.shape[0] for pick in picks):
            return
        assert self.coded is not None
        orders, stays = [], []
        for lane, pick in enumerate(picks):
            coded, device = self.coded.counts[lane], pick.device
            others = torch.ones(self.counts[lane], dtype=torch.bool, device=device)
            others[:coded] = False
            others[pick] = False
            stay = others.nonzero().squeeze(1)
            orders.append(torch.cat([torch.arange(coded, device=device), pick, stay]))
            stays.append(stay - coded)
        offsets = self.coded.counts

        def picked(field: int, lane: int) -> tuple[Tensor, bool]:
            return self._dense.rows(field, lane)[:, picks[lane] - offsets[lane]], True

        self.coded.append([pick.shape[0] for pick in picks], picked)
        self._dense.keep(stays)
        self._meta.keep(orders)

    # ---- as a whole

    def take(self, sequences: Sequence[int]) -> "Lanes":
        """An independent copy of these sequences, on the same meter."""
        per, twin = self.shape.per_sequence, object.__new__(Lanes)
        twin.shape, twin.device = self.shape, self.device
        lanes = [sequence * per + i for sequence in sequences for i in range(per)]
        twin.num_lanes = len(lanes)
        twin._meta, twin._dense = self._meta.take(lanes), self._dense.take(lanes)
        twin.coded = None if self.coded is None else self.coded.take(lanes)
        return twin

    def release(self) -> None:
        """Give all memory back; the store is of no use afterwards."""
        for table in self.tables:
            table.release()

    def check(self) -> None:
        """Audit the structure. Raises AssertionError saying what is broken."""
        for table in self.tables:
            table.check()
        if self.coded is not None:
            self.coded.check()
        for lane, (rows, coded) in enumerate(zip(self.counts, self.num_coded, strict=True)):
            dense = self._dense.counts[lane]
            assert coded + dense == rows, f"{coded} + {dense} rows, {rows} positions"
            places = self.positions(lane)
            assert bool((places >= 0).all()), "a row without a position"
            assert bool((places[coded:].diff() > 0).all()), "positions do not ascend"
            assert bool((places.sort().values.diff() > 0).all()), "a position is stored twice"
            if self.shape.tracked.dtype.is_floating_point:
                assert bool(self.statistic(lane).isfinite().all()), "a statistic is not finite"
