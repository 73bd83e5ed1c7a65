"""A step of one new token per sequence, in all lanes at once, of whatever lengths.

Shapes: B sequences of S lanes, N = B * S, W heads in a lane, G query heads of each; D head size; T
rows of a lane, R of all of them with their room.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from agentkv.cache.lanes import TRACKED, Lanes
from agentkv.cache.ring import QueryRing
from agentkv.cache.view import Attention
from agentkv.policies.rows import Motion, Seen
from agentkv.policies.slots import Tracker
from agentkv_kernels.boxes import uploaded
from agentkv_kernels.index import Addressed, Rack
from agentkv_kernels.ops import (
    Average,
    DenseRows,
    Drawn,
    Int8Rows,
    Stored,
    append_row,
    attend_lanes,
    attend_row,
    serves_lanes,
    serves_rack,
    serves_rows,
)

STILL = Motion(keep=1.0, gain=0.0, starts_at_mass=False)


class Step(Addressed):
    """How a layer takes in one token of each sequence where compiled code does it in one go: the
    row stored, attention over all rows, the statistic moved, the query kept. On devices three
    launches do it, and nothing is asked of the device."""

    __slots__ = ("_behind", "_lanes", "_motion", "_ring", "_tracker", "rack", "uses_kernels")

    def __init__(self, lanes: Lanes, ring: QueryRing | None, tracker: Tracker | None) -> None:
        self._lanes, self._ring, self._tracker = lanes, ring, tracker
        self.rack: Rack | None = None
        """None where nothing compiled serves these rows."""
        shape = lanes.shape
        form = None if shape.format is None else shape.format.name
        if serves_rack(shape.dtype, form, lanes.device):
            self.rack = _rack(lanes, ring)
        self.uses_kernels = serves_rows(shape.dtype, shape.head_dim, form, lanes.device)
        """Whether kernels for devices store rows and let them go."""
        self._behind: tuple[list[int], Tensor] | None = None
        """How far each sequence is behind the first, and that for each lane on the device."""
        self._motion: Motion | None = STILL if tracker is None else tracker.motion
        """None: the tracker has to be told of the mass."""

    def take(
        self, q: Tensor, keys: Tensor, values: Tensor, attention: Attention, fed: Sequence[int]
    ) -> Tensor | None:
        """Take in queries (B, S * W * G, 1, D), keys and values (B, S * W, 1, D).

        Args:
            fed: tokens of each sequence before this one.

        Returns:
            As q; None, and nothing was done, where compiled code does not serve these queries.
        """
        if self.uses_kernels:
            return self._take_on_device(q, keys, values, attention, fed)
        if self.rack is None or q.dtype is not torch.float32:
            return None
        if q.requires_grad and torch.is_grad_enabled():
            return None
        self.rack.begin_row(fed)
        done = self._attend(q, keys, values, attention)
        if done is None:
            ring = [] if self._ring is None else [self._ring.table]
            for table in (*self._lanes.tables[:2], *ring):
                table.make_room()
            done = self._attend(q, keys, values, attention)
            assert done is not None, "there is no room where room was made"
        output, mass = done
        if mass is not None:
            assert self._tracker is not None
            _tell(self._tracker, self._lanes, mass, fed)
        return output

    def _take_on_device(
        self, q: Tensor, keys: Tensor, values: Tensor, attention: Attention, fed: Sequence[int]
    ) -> Tensor | None:
        lanes, tracker, motion = self._lanes, self._tracker, self._motion
        num_lanes, head_dim = lanes.num_lanes, q.shape[3]
        stored, by_lane = stored_in(lanes), q.reshape(num_lanes, -1, head_dim)
        if stored is None or not serves_lanes(by_lane, stored):
            return None
        about, dense = lanes.tables[:2]
        about.make_room()
        dense.make_room()
        stored = stored_in(lanes)
        assert stored is not None
        numbers = None if lanes.shape.tracked.inner == (0,) else about.tensors[TRACKED]
        stored = append_row(
            stored,
            keys.reshape(num_lanes, -1, head_dim),
            values.reshape(num_lanes, -1, head_dim),
            positions=self._places(fed),
            plus=fed[0],
            numbers=numbers,
        )
        about.use(stored.boxes)
        dense.use(stored.dense.boxes)
        average = None
        if tracker is not None and motion is not None:
            assert numbers is not None
            average = Average(numbers, motion.keep, motion.gain, motion.starts_at_mass)
        done: Drawn = attend_lanes(
            by_lane,
            stored,
            scale=attention.scale,
            sinks=attention.sinks,
            with_mass=motion is None,
            average=average,
        )
        if tracker is not None and motion is None:
            assert done.mass is not None
            _tell(tracker, lanes, done.mass, fed)
        if self._ring is not None:
            self._ring.append(q, first=fed, columns=None)
        return done.output.view(q.shape)

    def _places(self, fed: Sequence[int]) -> Tensor:
        """(N,) int32: what is to be added to the first sequence's position for that of each lane.
        Kept, as sequences go on side by side."""
        behind = [num_seen - fed[0] for num_seen in fed]
        if self._behind is None or self._behind[0] != behind:
            of_lanes = [by for by in behind for _ in range(self._lanes.shape.per_sequence)]
            there = uploaded(of_lanes, dtype=torch.int32, device=self._lanes.device)
            self._behind = behind, there
        return self._behind[1]

    def _attend(
        self, q: Tensor, keys: Tensor, values: Tensor, attention: Attention
    ) -> tuple[Tensor, Tensor | None] | None:
        assert self.rack is not None
        motion, mass = self._motion, None
        if motion is None:
            motion, mass = STILL, torch.empty(self._lanes.tables[0].tensors[0].shape[0])
        output = attend_row(
            self.rack,
            q,
            keys,
            values,
            scale=attention.scale,
            sinks=attention.sinks,
            mass=mass,
            motion=(motion.keep, motion.gain, motion.starts_at_mass),
        )
        return None if output is None else (output, mass)


def attend_step(
    q: Tensor, lanes: Lanes, *, attention: Attention, tracker: Tracker | None, fed: Sequence[int]
) -> Tensor | None:
    """Attend with queries (B, S * W * G, 1, D) whose rows are stored, over everything stored.

    Args:
        tracker: is told what each row drew, and moves its statistic.
        fed: tokens of each sequence before this one.

    Returns:
        As q; None, and nothing was done, where no kernels serve these rows.
    """
    stored = stored_in(lanes)
    if stored is None:
        return None
    by_lane = q.reshape(lanes.num_lanes, -1, q.shape[3])
    if not serves_lanes(by_lane, stored):
        return None
    done = attend_lanes(
        by_lane,
        stored,
        scale=attention.scale,
        sinks=attention.sinks,
        with_mass=tracker is not None,
    )
    if tracker is not None:
        assert done.mass is not None
        _tell(tracker, lanes, done.mass, fed)
    return done.output.view(q.shape)


def stored_in(lanes: Lanes) -> Stored | None:
    """What lanes hold, without copies; None for a format that kernels do not know."""
    about, whole, *coded = lanes.tables
    codes = None
    if lanes.coded is not None:
        if lanes.coded.format.name != "int8":
            return None
        if any(lanes.num_coded):
            rows, blocks = coded
            keys, values, block_ids = rows.tensors
            exponents = blocks.tensors
            codes = Int8Rows(rows.boxes, keys, values, block_ids, blocks.boxes, *exponents)
    dense = DenseRows(whole.boxes, *whole.tensors)
    return Stored(lanes.shape.num_heads, about.boxes, about.tensors[0], dense, codes)


def _tell(tracker: Tracker, lanes: Lanes, mass: Tensor, fed: Sequence[int]) -> None:
    """Move the statistic by the mass (R,) of one new token."""
    for numbers, lane, drawn in _spread(lanes, mass):

        def each(count: int, drawn: Tensor = drawn) -> Tensor:
            return drawn[:, None]

        seen = Seen(
            mass=drawn,
            num_queries=tracker.num_queries(1),
            first=[fed[number // lanes.shape.per_sequence] for number in numbers],
            num_new=1,
            each=each,
        )
        tracker.update(lanes.statistic(lane), seen)


def _spread(lanes: Lanes, numbers: Tensor) -> Iterator[tuple[Sequence[int], int | None, Tensor]]:
    """Numbers (R,) in the boxes of the positions as views (n, T): of all lanes, called None, where
    they are even, else of each; with their numbers."""
    index = lanes.tables[0].index
    if lanes.is_even:
        _, room, start, count = index.box(0)
        yield range(lanes.num_lanes), None, numbers.view(-1, room)[:, start : start + count]
        return
    for lane in range(lanes.num_lanes):
        base, _, start, count = index.box(lane)
        yield [lane], lane, numbers[None, base + start : base + start + count]


def _rack(lanes: Lanes, ring: QueryRing | None) -> Rack:
    """Where all of a layer is; right for as long as these live."""
    about, dense, *others = (table.index for table in lanes.tables)
    codes, blocks = others or (None, None)
    return Rack(
        num_heads=lanes.shape.num_heads,
        head_dim=lanes.shape.head_dim,
        per_sequence=lanes.shape.per_sequence,
        batch=lanes.num_lanes // lanes.shape.per_sequence,
        about=about,
        dense=dense,
        codes=codes,
        blocks=blocks,
        ring=None if ring is None else ring.table.index,
        window=0 if ring is None else ring.window,
    )
