"""Rows as a policy sees them, in order of position, and its verdict brought back.

Shapes: a unit is one sequence in one layer, of S lanes of W heads, H = S * W, G query heads each; T
rows of the longest lane. Of several units S and H are those of all.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentkv.cache.geometry import Projection
from agentkv.cache.lanes import Lanes
from agentkv.cache.table import Which
from agentkv.policies.rows import Drop, DropOne, Rows, Verdict
from agentkv_kernels.ops import weights


@dataclass(frozen=True, slots=True)
class Attention:
    """What a layer's attention module brings along."""

    scale: float
    sinks: Tensor | None
    """(H * G,) logits that join the softmax."""
    projection: Projection | None
    """The output projection; None unless asked for."""

    def is_of(self, scale: float, sinks: Tensor | None, projection: Projection | None) -> bool:
        """Whether these are the same."""
        is_same = sinks is self.sinks and projection is self.projection
        return is_same and scale == self.scale


@dataclass(frozen=True, slots=True)
class Unit:
    """One sequence in one layer, as it is stored."""

    lanes: Lanes
    sequence: int
    ring: tuple[Tensor, Tensor] | None
    """Its last queries (H * G, w, D) and their positions (w,), if the layer keeps them."""
    attention: Attention
    """Of the layer."""
    window: int | None
    """Of the layer."""

    @property
    def numbers(self) -> range:
        """Of its lanes."""
        per = self.lanes.shape.per_sequence
        return range(self.sequence * per, (self.sequence + 1) * per)

    @property
    def pieces(self) -> Sequence[Which]:
        """Its lanes as they can be read: in one go where they are even, else one by one."""
        lanes, numbers = self.lanes, self.numbers
        if not lanes.is_even:
            return numbers
        return (None if len(numbers) == lanes.num_lanes else slice(numbers[0], numbers[-1] + 1),)


class View:
    """The lanes of some units, filled up at their fronts to the longest.

    Where rank decides what is quantised, storage order is not that of positions, and there may be
    one unit only.
    """

    __slots__ = ("_lengths", "_orders", "_units")

    def __init__(self, units: Sequence[Unit]) -> None:
        self._units = units
        self._lengths = {unit.lanes.counts[i] for unit in units for i in unit.numbers}
        self._orders: Tensor | None = None
        if units[0].lanes.shape.by_rank:
            assert len(units) == 1
            self._orders = self._joined(self._each(Lanes.places), -1).argsort(dim=1)

    def rows(self, *, num_seen: int, sinks: int, protected: int) -> Rows:
        """What the policy is shown.

        Args:
            num_seen: tokens of each of the sequences that were fed.
            sinks, protected: of the policy's selector.
        """
        shape = self._units[0].lanes.shape
        tracked = norms = None
        if shape.tracked.inner != (0,):
            tracked = self._sorted(self._each(Lanes.statistic), axis=1)
        if shape.num_norms:
            norms = self._sorted(self._each(Lanes.norms), axis=2).flatten(0, 1)
        seen: Tensor | None = None

        def attend() -> Tensor:
            nonlocal seen
            if seen is None:
                of_units = [piece for unit in self._units for piece in _attention(unit)]
                seen = self._sorted(of_units, axis=4).flatten(0, 1)
            return seen

        return Rows(
            positions=self._sorted(self._each(Lanes.places), axis=1, fill=-1),
            num_seen=num_seen,
            num_heads=len(self._units) * shape.per_sequence * shape.num_heads,
            sinks=sinks,
            protected=protected,
            tracked=tracked,
            norms=norms,
            attention=attend,
            keys_values=self._keys_values,
            num_units=len(self._units),
            is_filled=len(self._lengths) > 1,
        )

    def in_storage_order(self, verdict: Verdict) -> Verdict:
        """A verdict on rows in order of position as one on rows in storage order."""
        if self._orders is None:
            return verdict
        if isinstance(verdict, Drop):
            keep = torch.ones_like(self._orders, dtype=torch.bool)
            keep[:, verdict.start : verdict.stop] = False
            verdict = keep
        elif isinstance(verdict, DropOne):
            keep = torch.ones_like(self._orders, dtype=torch.bool)
            verdict = keep.scatter_(1, verdict.rows[:, None], False)
        return self.back(verdict)

    def back(self, by_position: Tensor) -> Tensor:
        """(S, T) in order of position to (S, T) in storage order."""
        if self._orders is None:
            return by_position
        return torch.empty_like(by_position).scatter_(1, self._orders, by_position)

    def _each(self, read: Callable[[Lanes, Which], Tensor]) -> list[Tensor]:
        return [read(unit.lanes, piece) for unit in self._units for piece in unit.pieces]

    def _keys_values(self) -> tuple[Tensor, Tensor]:
        both: tuple[list[Tensor], list[Tensor]] = ([], [])
        for parts in ((u.lanes.parts(piece)) for u in self._units for piece in u.pieces):
            whole = [part.whole(torch.float32) for part in parts]
            for pieces, x in zip(both, zip(*whole, strict=True), strict=True):
                pieces.append(torch.cat(x, dim=2))
        keys, values = (self._sorted(x, axis=2).flatten(0, 1) for x in both)
        return keys, values

    def _joined(self, pieces: list[Tensor], fill: float, axis: int = 1) -> Tensor:
        """(n, ..., T', ...) of all pieces as one, T being `axis`, filled up in front."""
        if len(self._lengths) > 1:
            longest = max(piece.shape[axis] for piece in pieces)
            for i, piece in enumerate(pieces):
                if missing := longest - piece.shape[axis]:
                    shape = list(piece.shape)
                    shape[axis] = missing
                    pieces[i] = torch.cat([piece.new_full(shape, fill), piece], dim=axis)
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def _sorted(self, pieces: list[Tensor], *, axis: int, fill: float = 0) -> Tensor:
        """The same, in order of position along `axis`."""
        joined = self._joined(pieces, fill, axis)
        if self._orders is None:
            return joined
        shape = [1] * joined.dim()
        shape[0], shape[axis] = self._orders.shape
        return joined.take_along_dim(self._orders.view(shape), dim=axis)


def _attention(unit: Unit) -> Iterator[Tensor]:
    """(n, W, G, w, T) float32 of each of a unit's pieces."""
    assert unit.ring is not None, "the policy's scorer has no window"
    (queries, places), attention = unit.ring, unit.attention
    by_lane = queries.view(len(unit.numbers), -1, *queries.shape[1:])
    pieces, sinks = unit.pieces, attention.sinks
    if sinks is not None and len(unit.numbers) > 1:
        # every head has a sink of its own, and a call takes those of one lane
        pieces = unit.numbers
    for i, piece in enumerate(pieces):
        q = by_lane if len(pieces) == 1 else by_lane[i, None]
        yield weights(
            q,
            unit.lanes.parts(piece),
            scale=attention.scale,
            q_positions=places.expand(q.shape[0], -1),
            window=unit.window,
            sinks=sinks if sinks is None else sinks.view(len(pieces), -1)[i],
        )
