"""One sequence's rows as a policy sees them, in order of position, and its verdict brought back.

Shapes: S lanes of W heads in a sequence, H = S * W, G query heads each; T rows of the longest lane.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from agentkv.cache.lanes import Lanes
from agentkv.policies.rows import Drop, Rows, Verdict
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

    __slots__ = ("_lanes", "_numbers", "_orders", "_pieces")

    def __init__(self, lanes: Lanes, sequence: int) -> None:
        per = lanes.shape.per_sequence
        self._lanes, self._numbers = lanes, range(sequence * per, (sequence + 1) * per)
        alone: list[int | slice] = list(self._numbers)
        # even lanes are read in one go
        together: list[int | slice] = [slice(sequence * per, (sequence + 1) * per)]
        self._pieces = together if lanes.is_even else alone
        self._orders: Tensor | None = None
        if lanes.shape.by_rank:
            self._orders = self._joined([lanes.places(piece) for piece in self._pieces], -1)
            self._orders = self._orders.argsort(dim=1)

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
        lanes, pieces = self._lanes, self._pieces
        tracked = norms = None
        if lanes.shape.tracked.inner != (0,):
            tracked = self._sorted([lanes.statistic(piece) for piece in pieces], axis=1)
        if lanes.shape.num_norms:
            norms = self._sorted([lanes.norms(piece) for piece in pieces], axis=2).flatten(0, 1)
        seen: Tensor | None = None

        def attend() -> Tensor:
            nonlocal seen
            assert ring is not None, "the policy's scorer has no window"
            if seen is None:
                seen = self._attention(*ring, attention, window)
            return seen

        return Rows(
            positions=self._sorted([lanes.places(piece) for piece in pieces], axis=1, fill=-1),
            num_seen=num_seen,
            num_heads=len(self._numbers) * lanes.shape.num_heads,
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
        if isinstance(verdict, Drop):
            keep = torch.ones_like(self._orders, dtype=torch.bool)
            keep[:, verdict.start : verdict.stop] = False
            verdict = keep
        return self.back(verdict)

    def back(self, by_position: Tensor) -> Tensor:
        """(S, T) in order of position to (S, T) in storage order."""
        if self._orders is None:
            return by_position
        return torch.empty_like(by_position).scatter_(1, self._orders, by_position)

    def _attention(
        self, queries: Tensor, places: Tensor, attention: Attention, window: int | None
    ) -> Tensor:
        """(H, G, w, T) float32."""
        lanes, num_lanes = self._lanes, len(self._numbers)
        by_lane = queries.view(num_lanes, -1, *queries.shape[1:])
        pieces, sinks = list(self._pieces), attention.sinks
        if sinks is not None and num_lanes > 1:
            # every head has a sink of its own, and a call takes those of one lane
            pieces = list(self._numbers)
        seen = []
        for i, piece in enumerate(pieces):
            q = by_lane if len(pieces) == 1 else by_lane[i, None]
            seen.append(
                weights(
                    q,
                    lanes.parts(piece),
                    scale=attention.scale,
                    q_positions=places.expand(q.shape[0], -1),
                    window=window,
                    sinks=sinks if sinks is None else sinks.view(len(pieces), -1)[i],
                )
            )
        return self._sorted(seen, axis=4).flatten(0, 1)

    def _keys_values(self) -> tuple[Tensor, Tensor]:
        both: tuple[list[Tensor], list[Tensor]] = ([], [])
        for piece in self._pieces:
            whole = [part.whole(torch.float32) for part in self._lanes.parts(piece)]
            for pieces, x in zip(both, zip(*whole, strict=True), strict=True):
                pieces.append(torch.cat(x, dim=2))
        keys, values = (self._sorted(x, axis=2).flatten(0, 1) for x in both)
        return keys, values

    def _joined(self, pieces: list[Tensor], fill: float, axis: int = 1) -> Tensor:
        """(n, ..., T', ...) of all pieces as one, T being `axis`, filled up in front."""
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
