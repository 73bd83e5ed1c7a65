"""One layer of the cache: stores what is new and attends over all it holds.

Shapes: B sequences, H key-value heads, G query heads per key-value head, Q new tokens, D head size;
S lanes of a sequence, N = B * S, W = H / S heads in a lane, T rows of a lane.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from agentkv.cache.geometry import LayerShape
from agentkv.cache.keeper import Keeper
from agentkv.cache.lanes import Lanes
from agentkv.cache.norms import norms_of
from agentkv.cache.ring import QueryRing
from agentkv.cache.shape import lane_shape
from agentkv.cache.step import Step, attend_step
from agentkv.cache.table import Meter
from agentkv.cache.view import Attention, Unit
from agentkv.policies.rows import Seen
from agentkv.policies.slots import Tracker
from agentkv_kernels.index import Addressed, Rack
from agentkv_kernels.ops import attend, weights


class LayerStore(Addressed):
    """The rows of every sequence in one layer.

    Args:
        keeper: the policy's part for this layer; None for one that only its window bounds.
    """

    __slots__ = ("_step", "attention", "fed", "keeper", "lanes", "meter", "ring", "seen", "shape")

    def __init__(self, shape: LayerShape, *, keeper: Keeper | None, meter: Meter) -> None:
        self.shape, self.keeper, self.meter = shape, keeper, meter
        self.lanes: Lanes | None = None
        """None before the first forward."""
        self.ring: QueryRing | None = None
        """None without a policy that looks back through a window of queries."""
        self.seen = 0
        """Columns of the token stream that were fed, padding included."""
        self.fed: list[int] = []
        """Tokens of each sequence that were fed. The next has this position: padding has none, so
        that a sequence is the same alone and in a batch."""
        self.attention: Attention | None = None
        """Of the latest forward."""
        self._step: Step | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all storage, unused room included."""
        held = 0 if self.lanes is None else self.lanes.nbytes
        return held if self.ring is None else held + self.ring.nbytes

    def begin(
        self, batch: int, *, num_q_heads: int, dtype: torch.dtype, device: torch.device
    ) -> Lanes:
        """Make empty storage for so many sequences, and give it back."""
        policy = None if self.keeper is None else self.keeper.policy
        shape = lane_shape(self.shape, policy, dtype=dtype, num_q_heads=num_q_heads)
        self.lanes = Lanes(shape, batch=batch, device=device, meter=self.meter)
        self.fed = [0] * batch
        if self.keeper is not None:
            self.keeper.begin(self.fed)
        if policy is not None and policy.scorer.window:
            self.ring = QueryRing(
                policy.scorer.window,
                num_heads=num_q_heads,
                head_dim=self.shape.head_dim,
                dtype=dtype,
                batch=batch,
                device=device,
                meter=self.meter,
            )
        self._step = Step(self.lanes, self.ring, self._tracker)
        return self.lanes

    @property
    def rack(self) -> Rack | None:
        """Where all is, for compiled code; None where it does not serve."""
        return None if self._step is None else self._step.rack

    @property
    def uses_kernels(self) -> bool:
        """Whether kernels for devices store rows and let them go."""
        return self._step is not None and self._step.uses_kernels

    def unit(self, sequence: int) -> Unit:
        """One sequence, to be shown to the policy."""
        assert self.lanes is not None and self.attention is not None
        ring = None if self.ring is None else self.ring.of(sequence)
        return Unit(self.lanes, sequence, ring, self.attention, self.shape.window)

    def attend(
        self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, attention: Attention
    ) -> Tensor:
        """Store the new tokens and attend over everything stored. Nothing is evicted but what no
        later token can see.

        Args:
            q: (B, H * G, Q, D), rotated.  keys, values: (B, H, Q, D).
            mask: (B, at least Q) bool, its last Q columns say which new tokens are real; None: all.
                Others are not stored, and get zeros as their output.

        Returns:
            (B, Q, H * G, D).
        """
        lanes, num_q = self.lanes, q.shape[2]
        if lanes is None:
            lanes = self.begin(
                q.shape[0], num_q_heads=q.shape[1], dtype=keys.dtype, device=keys.device
            )
        self.attention, columns = attention, None
        if mask is not None and not mask[:, -num_q:].all():
            columns = [row.nonzero().squeeze(1) for row in mask[:, -num_q:]]
        norms, out = None, None
        if lanes.shape.num_norms:
            norms = self._by_lane(norms_of(values, attention, lanes.shape.num_norms))
        if num_q == 1 and columns is None:
            assert self._step is not None
            out = self._step.take(q, keys, values, attention, self.fed)
            if out is not None and norms is not None:
                for lane, new in enumerate(norms):
                    lanes.norms(lane)[0, :, -1:] = new
        if out is None:
            out = self._take_in(q, keys, values, norms, columns)
        self.seen += num_q
        for i in range(len(self.fed)):
            self.fed[i] += num_q if columns is None else columns[i].shape[0]
        if self.shape.window is not None:
            # the next token of a sequence sees no row before these
            oldest = [num_seen - self.shape.window + 1 for num_seen in self.fed]
            lanes.drop_before([first for first in oldest for _ in range(lanes.shape.per_sequence)])
        if self.keeper is not None:
            self.keeper.num_steps += num_q == 1
        return out.transpose(1, 2)

    def _take_in(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        norms: Tensor | None,
        columns: Sequence[Tensor] | None,
    ) -> Tensor:
        """The same in steps, for any number of tokens: as q."""
        lanes, attention, out = self.lanes, self.attention, None
        assert lanes is not None and attention is not None
        lanes.append(
            self._by_lane(keys), self._by_lane(values), norms, first=self.fed, columns=columns
        )
        if q.shape[2] == 1 and columns is None:
            tracker = self._tracker
            out = attend_step(q, lanes, attention=attention, tracker=tracker, fed=self.fed)
        if out is None:
            out = self._attend(q, columns)
        if self.ring is not None:
            self.ring.append(q, first=self.fed, columns=columns)
        return out

    @property
    def _tracker(self) -> Tracker | None:
        return None if self.keeper is None else self.keeper.policy.scorer.tracker

    def _by_lane(self, x: Tensor) -> Tensor:
        """(B, S * w, Q, ...) -> (N, w, Q, ...), a view where it can be."""
        assert self.lanes is not None
        per = self.lanes.shape.per_sequence
        return x if per == 1 else x.reshape(x.shape[0] * per, x.shape[1] // per, *x.shape[2:])

    def _attend(self, q: Tensor, columns: Sequence[Tensor] | None) -> Tensor:
        """Attend with queries (B, H * G, Q, D), of which `columns` are real tokens; None: all."""
        lanes, by_lane = self.lanes, self._by_lane(q)
        assert lanes is not None
        if columns is None and lanes.is_even:
            return self._attend_lane(None, by_lane).view(q.shape)
        # contiguous, unlike q, so that its lanes are views of it
        out = q.new_zeros(q.shape)
        spread = self._by_lane(out)
        for lane in range(lanes.num_lanes):
            pick = None if columns is None else columns[lane // lanes.shape.per_sequence]
            if pick is None:
                spread[lane] = self._attend_lane(lane, by_lane[lane, None])[0]
            elif pick.shape[0]:
                mine = by_lane[lane, None][:, :, pick]
                spread[lane][:, pick] = self._attend_lane(lane, mine)[0]
        return out

    def _attend_lane(self, lane: int | None, q: Tensor) -> Tensor:
        """Attend in one lane, or in all at once, with new queries (n, W * G, Q, D) of real tokens,
        whose rows are stored while `fed` does not count them yet."""
        lanes, module, window = self.lanes, self.attention, self.shape.window
        assert lanes is not None and module is not None
        num_new, sinks = q.shape[2], module.sinks
        if sinks is not None and lanes.shape.per_sequence > 1:
            if lane is None:
                # every head has a sink of its own, and a call takes those of one lane
                return torch.cat([self._attend_lane(i, row[None]) for i, row in enumerate(q)])
            sinks = sinks.view(lanes.shape.per_sequence, -1)[lane % lanes.shape.per_sequence]
        per = lanes.shape.per_sequence
        numbers = range(lanes.num_lanes) if lane is None else [lane]
        first, q_positions = [self.fed[number // per] for number in numbers], None
        if num_new > 1:
            # one token alone sees all that is stored: what its window hides is gone already
            places = torch.arange(num_new, device=q.device)
            if first.count(first[0]) == len(first):
                q_positions = (places + first[0]).expand(q.shape[0], -1)
            else:
                q_positions = places + torch.tensor(first, device=q.device)[:, None]
        tracker = self._tracker
        parts = lanes.parts(lane)
        done = attend(
            q,
            parts,
            scale=module.scale,
            q_positions=q_positions,
            window=window,
            sinks=sinks,
            num_mass_queries=0 if tracker is None else tracker.num_queries(num_new),
        )
        if tracker is not None:
            assert done.mass is not None

            def each(count: int) -> Tensor:
                last = None if q_positions is None else q_positions[:, -count:]
                return weights(
                    q[:, :, -count:],
                    parts,
                    scale=module.scale,
                    q_positions=last,
                    window=window,
                    sinks=sinks,
                ).mean(dim=(1, 2))

            seen = Seen(
                mass=done.mass.mean(dim=1),
                num_queries=tracker.num_queries(num_new),
                first=first,
                num_new=num_new,
                each=each,
            )
            tracker.update(lanes.statistic(lane), seen)
        return done.output

    def reorder(self, index: Sequence[int]) -> None:
        """Sequence i becomes a copy of what sequence index[i] was."""
        lanes, ring = self.lanes, self.ring
        assert lanes is not None
        self.lanes = lanes.take(index)
        lanes.release()
        if ring is not None:
            self.ring = ring.take(index)
            ring.release()
        self._step = Step(self.lanes, self.ring, self._tracker)
        self.fed = [self.fed[i] for i in index]
        if self.keeper is not None:
            self.keeper.reorder(index, self.fed)

    def reset(self) -> None:
        """Forget everything and give the memory back."""
        if self.lanes is not None:
            self.lanes.release()
        if self.ring is not None:
            self.ring.release()
        self.lanes, self.ring, self.attention, self._step = None, None, None, None
        self.seen, self.fed = 0, []
        if self.keeper is not None:
            self.keeper.begin(self.fed)

    def kept(self) -> list[list[Tensor]]:
        """Positions still held, per sequence and KV head: int64, ascending; padding has none."""
        lanes = self.lanes
        if lanes is None:
            return []
        per, heads = lanes.shape.per_sequence, lanes.shape.num_heads
        held = [lanes.positions(lane).long().sort().values for lane in range(lanes.num_lanes)]
        return [
            [places for places in held[i : i + per] for _ in range(heads)]
            for i in range(0, len(held), per)
        ]

    def check(self) -> None:
        """Audit the structure. Raises AssertionError."""
        lanes, window = self.lanes, self.shape.window
        if lanes is None:
            assert not self.seen, "tokens were seen and nothing was made to hold them"
            return
        lanes.check()
        if self.keeper is not None:
            self.keeper.check(lanes)
            if self.ring is not None:
                self.ring.check(self.fed)
        for num_seen, of_heads in zip(self.fed, self.kept(), strict=True):
            assert num_seen <= self.seen, "more tokens than columns"
            for places in (places for places in of_heads if places.shape[0]):
                assert int(places[-1]) < num_seen, "a row from the future"
                reach = num_seen - int(places[0])
                assert window is None or reach < window, "a row that no token can see"
