"""One layer of the cache: attends over what it stores, then lets its policy decide what stays.

Shapes: B sequences, H key-value heads, G query heads per key-value head, Q new tokens, D head size;
S lanes of a sequence, N = B * S, W = H / S heads in a lane, T rows of a lane.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from agentkv.cache.budget import Allowance
from agentkv.cache.geometry import LayerShape
from agentkv.cache.lanes import Lanes, LaneShape
from agentkv.cache.ranks import Ranks
from agentkv.cache.ring import QueryRing
from agentkv.cache.table import Field, Meter
from agentkv.cache.view import Attention, View
from agentkv.policies.policy import Policy, Seen, Verdict
from agentkv_kernels.ops import BLOCK, attend, format_of, weights


class LayerStore:
    """The rows of every sequence in one layer, and the policy's part for this layer.

    Args:
        index: which of the layers that the policy acts on this is; None for a layer that only its
            window bounds.
        allowance: what the policy allows.
    """

    __slots__ = (
        "allowance", "attention", "energies", "fed", "index", "lanes", "meter", "num_steps",
        "ranks", "ring", "seen", "shape",
    )  # fmt: skip

    def __init__(
        self, shape: LayerShape, *, index: int | None, allowance: Allowance, meter: Meter
    ) -> None:
        self.shape, self.index, self.allowance, self.meter = shape, index, allowance, meter
        self.lanes: Lanes | None = None
        """None before the first forward."""
        self.ring: QueryRing | None = None
        self.ranks = Ranks()
        self.seen = 0
        """Columns of the token stream that were fed, padding included."""
        self.fed: list[int] = []
        """Tokens of each sequence that were fed."""
        self.num_steps = 0
        """Forwards of a single token."""
        self.energies: list[float | None] = []
        """Of each sequence, the sum of its scores when rows first had to go."""
        self.attention: Attention | None = None
        """Of the latest forward."""

    @property
    def policy(self) -> Policy | None:
        """With the parts as they were asked for, budgets not filled in; None without a policy."""
        return None if self.index is None else self.allowance.policy

    @property
    def nbytes(self) -> int:
        """Bytes of all storage, unused room included."""
        held = 0 if self.lanes is None else self.lanes.nbytes
        return held if self.ring is None else held + self.ring.nbytes

    def begin(self, q: Tensor, keys: Tensor) -> None:
        """Make empty storage for the sequences of a first forward, where their keys are."""
        batch, heads, policy = keys.shape[0], self.shape.num_heads, self.policy
        shared = policy is None or policy.allocator.shared or policy.scorer.by_age
        tracker = None if policy is None else policy.scorer.tracker
        form = None if policy is None else policy.precision.format
        norms = None if policy is None else policy.selector.norms
        group = q.shape[1] // heads
        shape = LaneShape(
            num_heads=heads if shared else 1,
            head_dim=self.shape.head_dim,
            dtype=keys.dtype,
            format=None if form is None else format_of(form),
            tracked=Field(1, (0,), torch.float32)
            if tracker is None
            else Field(1, (tracker.size,), tracker.dtype),
            num_norms={None: 0, "mean": 1, "each": group}[norms],
            by_rank=policy is not None and policy.precision.by_rank,
        )
        per = 1 if shared else heads
        self.lanes = Lanes(
            shape, batch=batch, per_sequence=per, device=keys.device, meter=self.meter
        )
        if policy is not None and policy.scorer.window:
            self.ring = QueryRing(
                policy.scorer.window,
                num_heads=q.shape[1],
                head_dim=q.shape[3],
                dtype=q.dtype,
                batch=batch,
                device=q.device,
                meter=self.meter,
            )
        self.fed, self.energies = [0] * batch, [None] * batch

    def attend(
        self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, attention: Attention
    ) -> Tensor:
        """Store the new tokens, attend over everything stored, and evict down to the ceiling.

        Args:
            q: (B, H * G, Q, D), rotated.  keys, values: (B, H, Q, D).
            mask: (B, at least Q) bool, its last Q columns say which new tokens are real; None: all.
                Others are not stored, and get zeros as their output.

        Returns:
            (B, Q, H * G, D).
        """
        if self.lanes is None:
            self.begin(q, keys)
        lanes, first, num_q, batch = self.lanes, self.seen, q.shape[2], q.shape[0]
        assert lanes is not None
        self.attention = attention
        columns = None
        if mask is not None:
            columns = [row.nonzero().squeeze(1) for row in mask[:, -num_q:]]
        norms = self._norms(values)
        lanes.append(
            self._by_lane(keys), self._by_lane(values), norms, first=first, columns=columns
        )
        by_lane = self._by_lane(q)
        if columns is None and lanes.is_even:
            out = self._attend_lane(None, by_lane, None, first).view(q.shape)
        else:
            out = torch.zeros_like(q)
            spread = self._by_lane(out)
            for lane in range(lanes.num_lanes):
                pick = None if columns is None else columns[lane // lanes.per_sequence]
                if pick is None:
                    spread[lane] = self._attend_lane(lane, by_lane[lane, None], None, first)[0]
                elif pick.shape[0]:
                    mine = by_lane[lane, None][:, :, pick]
                    spread[lane][:, pick] = self._attend_lane(lane, mine, pick, first)[0]
        if self.ring is not None:
            self.ring.append(q, first=first, columns=columns)
        self.seen = first + num_q
        self.num_steps += num_q == 1
        for i in range(batch):
            self.fed[i] += num_q if columns is None else columns[i].shape[0]
        self._drop_hidden(columns, first)
        self.evict([None] * batch, num_new=num_q)
        return out.transpose(1, 2)

    def _by_lane(self, x: Tensor) -> Tensor:
        """(B, S * w, Q, ...) -> (N, w, Q, ...), a view where it can be."""
        assert self.lanes is not None
        per = self.lanes.per_sequence
        return x if per == 1 else x.reshape(x.shape[0] * per, x.shape[1] // per, *x.shape[2:])

    def _norms(self, values: Tensor) -> Tensor | None:
        assert self.lanes is not None and self.attention is not None
        if not (count := self.lanes.shape.num_norms):
            return None
        projection = self.attention.projection
        assert projection is not None
        group = projection.shape[0] // values.shape[1]
        by_head = projection.view(-1, group, *projection.shape[1:])
        # one query head after another: the projected values of all would be G times the hidden size
        norms = torch.stack(
            [
                (values.to(projection.dtype) @ by_head[:, g]).abs().sum(-1, dtype=torch.float32)
                for g in range(group)
            ],
            dim=-1,
        )  # (B, H, Q, G)
        return self._by_lane(norms if count > 1 or group == 1 else norms.mean(-1, keepdim=True))

    def _attend_lane(self, lane: int | None, q: Tensor, pick: Tensor | None, first: int) -> Tensor:
        """Attend in one lane, or in all at once.

        Args:
            q: (n, W * G, Q', D).  pick: (Q',) the columns they stand in; None: all from the first.
        """
        lanes, module, window = self.lanes, self.attention, self.shape.window
        assert lanes is not None and module is not None
        num_new = q.shape[2]
        q_positions = None
        if num_new > 1 or (window is not None and pick is not None):
            # one token alone sees all that is stored: what its window hides is gone already
            places = torch.arange(num_new, device=q.device) if pick is None else pick
            q_positions = (places + first).expand(q.shape[0], -1)
        tracker = None if self.policy is None else self.policy.scorer.tracker
        sinks = module.sinks
        if sinks is not None and q.shape[1] != sinks.shape[0]:
            # each lane has its own head's sinks: of one lane, or of all, sequence by sequence
            sinks = sinks.view(lanes.per_sequence, -1)
            if lane is None:
                return torch.cat(
                    [self._attend_lane(i, q[i, None], pick, first) for i in range(lanes.num_lanes)]
                )
            sinks = sinks[lane % lanes.per_sequence]
        parts = lanes.parts(lane)
        num_queries = 0 if tracker is None else tracker.num_queries(num_new)
        done = attend(
            q,
            parts,
            scale=module.scale,
            q_positions=q_positions,
            window=window,
            sinks=sinks,
            num_mass_queries=num_queries,
        )
        if tracker is not None:
            assert done.mass is not None

            def each(count: int) -> Tensor:
                seen = weights(
                    q[:, :, -count:],
                    parts,
                    scale=module.scale,
                    q_positions=None if q_positions is None else q_positions[:, -count:],
                    window=window,
                    sinks=sinks,
                )
                return seen.mean(dim=(1, 2))

            places = torch.cat([part.positions for part in parts], dim=1)
            seen = Seen(done.mass.mean(dim=1), num_queries, places, num_new, each)
            column = lanes.statistic(lane)
            tracker.update(column, seen, 0, column.shape[1], first)
        return done.output

    # ---- eviction

    def _drop_hidden(self, columns: Sequence[Tensor] | None, first: int) -> None:
        """Let go of the rows that no later token can see."""
        window, lanes = self.shape.window, self.lanes
        assert lanes is not None
        if window is None:
            return
        oldest = []
        for lane in range(lanes.num_lanes):
            last = self.seen - 1
            if columns is not None:
                pick = columns[lane // lanes.per_sequence]
                last = first + int(pick[-1]) if pick.shape[0] else -1
            oldest.append(last - window + 2)
        lanes.drop_before(oldest)

    def evict(self, confidences: Sequence[float | None], *, num_new: int) -> None:
        """Drop rows of each sequence down to what the policy allows it, and quantise.

        Args:
            confidences: per sequence; None: the most the gate ever allows.
            num_new: tokens of the latest forward.
        """
        lanes, index = self.lanes, self.index
        if index is None or lanes is None:
            return
        precision = self.allowance.policy.precision
        verdicts = [self._verdict(i, sure, num_new) for i, sure in enumerate(confidences)]
        if any(verdict is not None for verdict in verdicts):
            lanes.apply(verdicts)
        if precision.format is not None and not precision.by_rank:
            recent = [self.allowance.at(num_seen).precision.recent or 0 for num_seen in self.fed]
            lanes.quantise_to(recent)

    def _verdict(self, sequence: int, confidence: float | None, num_new: int) -> Verdict | None:
        lanes, index, module = self.lanes, self.index, self.attention
        assert lanes is not None and index is not None and module is not None
        per, num_seen = lanes.per_sequence, self.fed[sequence]
        policy = self.allowance.at(num_seen)
        budget = self.allowance.layer(index, num_seen, confidence)
        num_rows = sum(lanes.counts[sequence * per : (sequence + 1) * per])
        if budget is None or num_rows <= per * (budget + policy.gate.slack):
            return None
        if not policy.gate.is_due(num_new, self.num_steps):
            return None
        target = policy.gate.target(budget, num_rows // per)
        view, protected = View(lanes, sequence), policy.selector.protected
        assert isinstance(protected, int)
        queries = places = None
        if self.ring is not None:
            queries, places = self.ring.of(sequence)
        rows = view.rows(
            num_seen=num_seen,
            sinks=policy.selector.sinks,
            protected=protected,
            queries=queries,
            query_positions=places,
            attention=module,
            window=self.shape.window,
        )
        scores = None
        if not policy.scorer.by_age:
            scores = policy.scorer.scores(rows)
            if scores.shape[0] > per:
                scores = scores.mean(dim=0, keepdim=True)
        verdict = policy.selector.select(rows, scores, target, policy.allocator)
        if scores is not None and policy.allocator.learns and self.energies[sequence] is None:
            self.energies[sequence] = float(scores.where(rows.candidates, 0).sum())
        verdict = view.in_storage_order(verdict)
        if policy.precision.by_rank:
            assert scores is not None
            past = rows.attention()[..., : rows.positions.shape[1] - protected]
            self.ranks.note(sequence, view.back(scores), verdict, policy.precision.quality(past))
        return verdict

    def store_by_rank(self, best: Mapping[int, float]) -> None:
        """Quantise what ranks below the share of rows that this layer deserves, where rows went in
        this forward, which has ended.

        Args:
            best: per sequence, the largest of all layers' qualities.
        """
        if not self.ranks.noted:
            return
        assert self.lanes is not None and self.index is not None
        policies, budgets = {}, {}
        for sequence in self.ranks.noted:
            policies[sequence] = self.allowance.at(self.fed[sequence])
            budget = self.allowance.layer(self.index, self.fed[sequence])
            assert budget is not None
            budgets[sequence] = budget
        self.ranks.settle(self.lanes, policies, budgets, best)

    # ---- as a whole

    def reorder(self, index: list[int]) -> None:
        """Sequence i becomes a copy of what sequence index[i] was."""
        assert self.lanes is not None
        lanes, ring = self.lanes, self.ring
        self.lanes = lanes.take(index)
        lanes.release()
        if ring is not None:
            self.ring = ring.take(index)
            ring.release()
        self.fed = [self.fed[i] for i in index]
        self.energies = [self.energies[i] for i in index]

    def reset(self) -> None:
        """Forget everything and give the memory back."""
        if self.lanes is not None:
            self.lanes.release()
        if self.ring is not None:
            self.ring.release()
        self.lanes, self.ring, self.attention, self.ranks = None, None, None, Ranks()
        self.seen, self.num_steps, self.fed, self.energies = 0, 0, [], []

    def kept(self) -> list[list[Tensor]]:
        """Positions still held, per sequence and KV head: int64, ascending."""
        lanes = self.lanes
        if lanes is None:
            return []
        per, heads = lanes.per_sequence, lanes.shape.num_heads
        held = [lanes.positions(lane).long().sort().values for lane in range(lanes.num_lanes)]
        return [
            [places for places in held[i : i + per] for _ in range(heads)]
            for i in range(0, len(held), per)
        ]

    def check(self) -> None:
        """Audit the structure. Raises AssertionError."""
        lanes = self.lanes
        if lanes is None:
            assert not self.seen, "tokens were seen and nothing was made to hold them"
            return
        lanes.check()
        if self.ring is not None:
            self.ring.table.check()
            most = [min(num_seen, self.ring.window) for num_seen in self.fed]
            assert self.ring.table.counts == most, "the window of queries is not whole"
        for i, of_heads in enumerate(self.kept()):
            for places in of_heads:
                if places.shape[0]:
                    assert int(places[-1]) < self.seen, "a row from the future"
                    reach = int(places[-1]) - int(places[0])
                    assert self.shape.window is None or reach < self.shape.window, "a hidden row"
            if self.index is not None:
                self._check_budget(i, sum(places.shape[0] for places in of_heads))

    def _check_budget(self, sequence: int, num_rows: int) -> None:
        assert self.lanes is not None and self.index is not None
        policy = self.allowance.at(self.fed[sequence])
        budget = self.allowance.layer(self.index, self.fed[sequence])
        if budget is not None and policy.gate.bounded:
            most = self.shape.num_heads * (budget + policy.gate.slack)
            assert num_rows <= most, f"{num_rows} rows in all heads, at most {most} allowed"
        if (recent := policy.precision.recent) is not None:
            per = self.lanes.per_sequence
            whole = max(self.lanes.num_dense[sequence * per : (sequence + 1) * per])
            assert whole < recent + BLOCK, f"{whole} rows in the model's dtype, {recent} asked for"
