"""A step of one new token per sequence, in all lanes at once, of whatever lengths.

Shapes: B sequences of S lanes, N = B * S, W heads in a lane, G query heads of each; D head size; T
rows of a lane, R of all of them with their room.
"""

from collections.abc import Iterator, Sequence

from torch import Tensor

from agentkv.cache.lanes import Lanes
from agentkv.cache.view import Attention
from agentkv.policies.rows import Seen
from agentkv.policies.slots import Tracker
from agentkv_kernels.ops import DenseRows, Int8Rows, Stored, attend_lanes, serves_lanes


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
        for numbers, lane, mass in _masses(lanes, stored, done.mass):

            def each(count: int, mass: Tensor = mass) -> Tensor:
                return mass[:, None]

            seen = Seen(
                mass=mass,
                num_queries=tracker.num_queries(1),
                first=[fed[number // lanes.shape.per_sequence] for number in numbers],
                num_new=1,
                each=each,
            )
            tracker.update(lanes.statistic(lane), seen)
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


def _masses(
    lanes: Lanes, stored: Stored, mass: Tensor
) -> Iterator[tuple[Sequence[int], int | None, Tensor]]:
    """The mass (R,) as views (n, T): of all lanes, called None, where they are even, else of each;
    with their numbers."""
    boxes = stored.boxes
    if lanes.is_even:
        by_lane = mass.view(boxes.num_lanes, boxes.rooms[0])
        yield range(boxes.num_lanes), None, by_lane.narrow(1, boxes.starts[0], boxes.counts[0])
        return
    for lane in range(boxes.num_lanes):
        yield [lane], lane, boxes.rows(mass, lane, 1)
