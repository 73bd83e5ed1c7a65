"""One sequence's rows as a policy sees them, in order of position, and its verdict brought back.

Shapes: S lanes of W heads in a sequence, H = S * W, G query heads each; T rows of the longest lane.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from agentkv.cache.lanes import Lanes
from agentkv.policies.policy import Drop, Rows, Verdict
from agentkv_kernels.ops import weights


@dataclass(frozen=True, slots=True)
class Attention:
    """What a layer's attention module brings along."""

    scale: float
    sinks: Tensor | None
    """(H * G,) logits that join the softmax."""
    projection: Tensor | None
    """(H * G, D, hidden size), the output projection by query head; None unless asked for."""


class View:
    """The lanes of one sequence, filled up at their fronts to the longest."""

    __slots__ = ("_counts", "_lanes", "_numbers", "_orders")

    def __init__(self, lanes: Lanes, sequence: int) -> None:
        per = lanes.shape.per_sequence
        self._lanes = lanes
        self._numbers = range(sequence * per, (sequence + 1) * per)
        self._counts = [lanes.counts[lane] for lane in self._numbers]
        self._orders = None
        if lanes.shape.by_rank:
            self._orders = [lanes.positions(lane).argsort() for lane in self._numbers]

    def rows(
        self,
        *,
        num_seen: int,
        sinks: int,
        protected: int,
        ring: tuple[Tensor, Tensor] | None,
        attention: Attention,
        window: int | None,
    ) -> Rows:
        """What the policy is shown.

        Args:
            sinks, protected: of the policy's selector.
            ring: the last queries (H * G, w, D) and their positions (w,).
            attention, window: of the layer.
        """
        lanes, numbers = self._lanes, self._numbers
        tracked = norms = None
        if lanes.shape.tracked.inner != (0,):
            tracked = self._stacked([lanes.statistic(lane)[0] for lane in numbers], 0)
        if lanes.shape.num_norms:
            norms = self._stacked([lanes.norms(lane) for lane in numbers], 1).flatten(0, 1)
        seen: Tensor | None = None
        sink_logits = attention.sinks
        if sink_logits is not None:
            sink_logits = sink_logits.view(len(numbers), -1)

        def attend() -> Tensor:
            nonlocal seen
            assert ring is not None, "the policy's scorer has no window"
            if seen is None:
                queries, places = ring
                by_lane = queries.view(len(numbers), -1, *queries.shape[1:])
                of_lanes = [
                    weights(
                        by_lane[i, None],
                        lanes.parts(lane),
                        scale=attention.scale,
                        q_positions=places[None],
                        window=window,
                        sinks=None if sink_logits is None else sink_logits[i],
                    )[0]
                    for i, lane in enumerate(numbers)
                ]
                seen = self._stacked(of_lanes, 3).flatten(0, 1)
            return seen

        return Rows(
            positions=self._stacked([lanes.positions(lane) for lane in numbers], 0, fill=-1),
            num_seen=num_seen,
            num_heads=len(numbers) * lanes.shape.num_heads,
            sinks=sinks,
            protected=protected,
            tracked=tracked,
            norms=norms,
            attention=attend,
            keys_values=self._keys_values,
        )

    def in_storage_order(self, verdict: Verdict) -> Verdict:
        """A verdict on rows in order of position as one on rows in storage order."""
        if self._orders is None:
            return verdict
        longest = max(self._counts)
        if isinstance(verdict, Drop):
            keep = torch.ones(len(self._counts), longest, dtype=torch.bool)
            keep[:, verdict.start : verdict.stop] = False
            verdict = keep.to(self._orders[0].device)
        return self.back(verdict)

    def back(self, by_position: Tensor) -> Tensor:
        """(S, T) in order of position to (S, T) in storage order."""
        if self._orders is None:
            return by_position
        stored = torch.zeros_like(by_position)
        for i, (order, count) in enumerate(zip(self._orders, self._counts, strict=True)):
            first = by_position.shape[1] - count
            stored[i, first:][order] = by_position[i, first:]
        return stored

    def _keys_values(self) -> tuple[Tensor, Tensor]:
        both: tuple[list[Tensor], list[Tensor]] = ([], [])
        for lane in self._numbers:
            whole = [part.whole(torch.float32) for part in self._lanes.parts(lane)]
            for pieces, x in zip(both, zip(*whole, strict=True), strict=True):
                pieces.append(torch.cat(x, dim=2)[0])
        keys, values = (self._stacked(x, 1).flatten(0, 1) for x in both)
        return keys, values

    def _stacked(self, of_lanes: list[Tensor], axis: int, fill: float = 0) -> Tensor:
        """(..., T, ...) of every lane, T being `axis`, as one tensor with the lanes first."""
        if self._orders is not None:
            pairs = zip(of_lanes, self._orders, strict=True)
            of_lanes = [x.index_select(axis, order) for x, order in pairs]
        if len(of_lanes) == 1:
            return of_lanes[0][None]
        longest = max(self._counts)
        for i, x in enumerate(of_lanes):
            if missing := longest - x.shape[axis]:
                shape = list(x.shape)
                shape[axis] = missing
                of_lanes[i] = torch.cat([x.new_full(shape, fill), x], dim=axis)
        return torch.stack(of_lanes)
