"""Entries as a policy sees them, in order of position, and verdicts in storage order.

Shapes: a unit is one sequence in one layer, with S segments of W heads, H = S * W, and G query
heads per key-value head; T entries of the longest segment. For several units, S and H count all of
them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentkv.cache.geometry import Attention, LayerShape
from agentkv.cache.spans import Pins
from agentkv.cache.storage.layer_storage import LayerStorage
from agentkv.cache.storage.table import Which
from agentkv.policies.entries import Drop, DropOne, Entries, PolicyError, Queries, Selection, Span
from agentkv_kernels.attention import weights


@dataclass(frozen=True, slots=True)
class LayerUnit:
    """One sequence in one layer, as it is stored."""

    storage: LayerStorage
    sequence: int
    attention: Attention
    """Attention of the layer."""
    shape: LayerShape

    @property
    def segments(self) -> range:
        """Segments of the sequence."""
        return self.storage.segments(self.sequence)

    @property
    def pieces(self) -> Sequence[Which]:
        """Segments as they can be read: all at once if they are even, else one by one."""
        segments = self.segments
        if not self.storage.is_even:
            return segments
        if len(segments) == self.storage.num_segments:
            return (None,)
        return (slice(segments[0], segments[-1] + 1),)


class View:
    """Segments of some units, padded at their fronts to the longest.

    If rank decides what is quantized, storage order differs from the order of positions, and a view
    shows one unit only.
    """

    def __init__(self, units: Sequence[LayerUnit]) -> None:
        self._units = units
        self._lengths = {
            count
            for unit in units
            for count in unit.storage.counts[unit.segments.start : unit.segments.stop]
        }
        self._orders: Tensor | None = None
        if units[0].storage.layout.by_rank:
            assert len(units) == 1
            self._orders = self._joined(self._each(LayerStorage.all_positions), -1).argsort(dim=1)

    def entries(
        self, *, num_seen: int, sinks: int, protected: int, spans: Sequence[Span], pins: Pins
    ) -> Entries:
        """Return what the policy is shown.

        Args:
            num_seen: tokens that the sequence was fed.
            sinks, protected: as in the policy's selector; pinned leading tokens are sinks.
            spans: labelled spans of the sequence.
            pins: of the sequence; empty if all of them are sinks.
        """
        layout = self._units[0].storage.layout
        tracked = norms = None
        if layout.tracked.inner != (0,):
            tracked = self._sorted(self._each(LayerStorage.tracked), axis=1)
        if layout.num_norms:
            norms = self._sorted(self._each(LayerStorage.norms), axis=2).flatten(0, 1)
        seen: Tensor | None = None

        def attend() -> Tensor:
            nonlocal seen
            if seen is None:
                of_units = [piece for unit in self._units for piece in _attention(unit)]
                seen = self._sorted(of_units, axis=4).flatten(0, 1)
            return seen

        positions = self._sorted(self._each(LayerStorage.all_positions), axis=1, fill=-1)
        pinned = None
        if pins.ranges:
            pinned = pins.mask(positions)
            pinned &= (positions >= 0).cumsum(dim=1) > sinks
            pinned[:, max(0, positions.shape[1] - protected) :] = False
        return Entries(
            positions=positions,
            num_seen=num_seen,
            num_heads=len(self._units) * layout.segments_per_sequence * layout.num_heads,
            sinks=sinks,
            protected=protected,
            tracked=tracked,
            norms=norms,
            attention=attend,
            keys_values=self._keys_values,
            queries=self._queries,
            num_units=len(self._units),
            is_padded=len(self._lengths) > 1,
            pinned=pinned,
            spans=spans,
        )

    def in_storage_order(self, verdict: Selection) -> Selection:
        """Return a verdict on entries in order of position as one in storage order."""
        if self._orders is None:
            return verdict
        if isinstance(verdict, Drop):
            keep = torch.ones_like(self._orders, dtype=torch.bool)
            keep[:, verdict.start : verdict.stop] = False
            verdict = keep
        elif isinstance(verdict, DropOne):
            keep = torch.ones_like(self._orders, dtype=torch.bool)
            verdict = keep.scatter_(1, verdict.entries[:, None], False)
        return self.to_storage_order(verdict)

    def to_storage_order(self, by_position: Tensor) -> Tensor:
        """Return numbers (S, T) in storage order, given them in order of position."""
        if self._orders is None:
            return by_position
        return torch.empty_like(by_position).scatter_(1, self._orders, by_position)

    def _each(self, read: Callable[[LayerStorage, Which], Tensor]) -> list[Tensor]:
        return [read(unit.storage, piece) for unit in self._units for piece in unit.pieces]

    def _keys_values(self) -> tuple[Tensor, Tensor]:
        both: tuple[list[Tensor], list[Tensor]] = ([], [])
        for unit in self._units:
            for piece in unit.pieces:
                decoded = [part.decode(torch.float32) for part in unit.storage.parts(piece)]
                found, values = (torch.cat(x, dim=2) for x in zip(*decoded, strict=True))
                both[0].append(_in_pairs(found, unit.shape))
                both[1].append(values)
        keys, values = (self._sorted(x, axis=2).flatten(0, 1) for x in both)
        return keys, values

    def _queries(self) -> Queries:
        """All units are of one sequence, so their queries have the same positions."""
        rotated, frequencies = [], []
        for unit in self._units:
            q, positions = unit.storage.last_queries(unit.sequence)
            heads = len(unit.segments) * unit.storage.layout.num_heads
            by_head = q.view(heads, -1, *q.shape[1:])
            turned = _in_pairs(by_head.to(torch.float32), unit.shape)
            rotated.append(turned * unit.attention.scale)
            angles = unit.shape.frequencies
            if angles is None:
                raise PolicyError(
                    "the policy reads queries, and stored ones cannot be turned to other positions "
                    "in this model; take another policy"
                )
            frequencies.append(rotated[-1].new_tensor(angles).expand(heads, -1))
        return Queries(torch.cat(rotated), positions, torch.cat(frequencies))

    def _joined(self, pieces: list[Tensor], fill: float, axis: int = 1) -> Tensor:
        """Join pieces (n, ..., T', ...), T being `axis`, padded in front with `fill`."""
        if len(self._lengths) > 1:
            longest = max(piece.shape[axis] for piece in pieces)
            for i, piece in enumerate(pieces):
                if missing := longest - piece.shape[axis]:
                    shape = list(piece.shape)
                    shape[axis] = missing
                    pieces[i] = torch.cat([piece.new_full(shape, fill), piece], dim=axis)
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def _sorted(self, pieces: list[Tensor], *, axis: int, fill: float = 0) -> Tensor:
        """Join pieces in order of position along `axis`."""
        joined = self._joined(pieces, fill, axis)
        if self._orders is None:
            return joined
        shape = [1] * joined.dim()
        shape[0], shape[axis] = self._orders.shape
        return joined.take_along_dim(self._orders.view(shape), dim=axis)


def _attention(unit: LayerUnit) -> Iterator[Tensor]:
    """Yield the window's attention (n, W, G, w, T) float32 for each of a unit's pieces."""
    (queries, positions), attention = unit.storage.last_queries(unit.sequence), unit.attention
    by_segment = queries.view(len(unit.segments), -1, *queries.shape[1:])
    pieces, sinks = unit.pieces, attention.sinks
    if sinks is not None and len(unit.segments) > 1:
        # every head has its own sinks, and a call takes those of one segment
        pieces = unit.segments
    for i, piece in enumerate(pieces):
        q = by_segment if len(pieces) == 1 else by_segment[i, None]
        yield weights(
            q,
            unit.storage.parts(piece),
            scale=attention.scale,
            q_positions=positions.expand(q.shape[0], -1),
            window=unit.shape.window,
            sinks=sinks if sinks is None else sinks.view(len(pieces), -1)[i],
        )


def _in_pairs(x: Tensor, shape: LayerShape) -> Tensor:
    """Return queries or keys (..., D) with channels i and i + D / 2 as a pair."""
    return x if shape.order is None else x[..., list(shape.order)]
