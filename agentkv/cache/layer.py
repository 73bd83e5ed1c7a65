"""One layer of the cache: attends over what it stores, then lets its policy decide what stays.

Shapes: B sequences, H key-value heads, G query heads per key-value head, Q new tokens, D head size.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from agentkv.cache.lanes import Lanes
from agentkv.cache.strip import Meter
from agentkv.policies.policy import Drop, Policy, Rows
from agentkv_kernels.ops import attend

MASS_QUERIES = 32
"""How many of a chunk's last queries seed the masses of its rows (our choice)."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What the cache must know of one attention layer."""

    num_heads: int
    """Key-value heads."""
    head_dim: int
    window: int | None
    """A token sees only those less than this many positions back; None for all."""


class LayerStore:
    """The rows of every sequence in one layer, and the policy's part for this layer.

    Args:
        policy: fitted to a budget; None for a layer that only its window bounds.
        ceiling: rows this layer may ever hold after a step; None for no bound.
    """

    __slots__ = ("ceiling", "has_evicted", "meter", "policy", "rows", "seen", "shape")

    def __init__(
        self, shape: LayerShape, *, policy: Policy | None, ceiling: int | None, meter: Meter
    ) -> None:
        self.shape, self.policy, self.ceiling, self.meter = shape, policy, ceiling, meter
        self.rows: list[Lanes] = []
        self.seen = 0
        """Columns of the token stream that were fed, padding included."""
        self.has_evicted = False

    @property
    def decay(self) -> float | None:
        """Of the moving average of masses; None where none is kept."""
        return None if self.policy is None else self.policy.scorer.decay

    def begin(self, batch: int, dtype: torch.dtype, device: torch.device) -> None:
        """Make empty storage for `batch` sequences."""
        self.rows = [
            Lanes(
                num_heads=self.shape.num_heads,
                head_dim=self.shape.head_dim,
                dtype=dtype,
                device=device,
                tracks_mass=self.decay is not None,
                meter=self.meter,
            )
            for _ in range(batch)
        ]

    def attend(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None,
        *,
        scale: float,
        sinks: Tensor | None,
    ) -> Tensor:
        """Store the new tokens, attend over everything stored, and evict down to the ceiling.

        Args:
            q: (B, H * G, Q, D), rotated.  keys, values: (B, H, Q, D).
            mask: (B, at least Q) bool, its last Q columns say which new tokens are real; None: all.
                Others are not stored, and get zeros as their output.
            sinks: (H * G,) logits that join the softmax.

        Returns:
            (B, Q, H * G, D).
        """
        first, num_q = self.seen, q.shape[2]
        if mask is None:
            out = [
                self._attend_row(
                    i, q[i : i + 1], keys[i], values[i], None, first, scale=scale, sinks=sinks
                )
                for i in range(len(self.rows))
            ]
            self.seen = first + num_q
            joined = out[0] if len(out) == 1 else torch.cat(out)
            return joined.transpose(1, 2)
        result = torch.zeros_like(q)
        for i, is_real in enumerate(mask[:, -num_q:]):
            columns = is_real.nonzero().squeeze(1)
            if columns.shape[0]:
                result[i, :, columns] = self._attend_row(
                    i,
                    q[i : i + 1, :, columns],
                    keys[i][:, columns],
                    values[i][:, columns],
                    columns + first,
                    first,
                    scale=scale,
                    sinks=sinks,
                )[0]
        self.seen = first + num_q
        return result.transpose(1, 2)

    def _attend_row(
        self,
        row: int,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        positions: Tensor | None,
        first: int,
        *,
        scale: float,
        sinks: Tensor | None,
    ) -> Tensor:
        lanes, num_new, window = self.rows[row], q.shape[2], self.shape.window
        lanes.append(keys, values, first if positions is None else positions)
        q_positions = None
        if num_new > 1 or (window is not None and positions is not None):
            # one token alone sees all that is stored: what its window hides is gone already
            if positions is None:
                positions = torch.arange(first, first + num_new, device=q.device)
            q_positions = positions[None]
        decay = self.decay
        done = attend(
            q,
            lanes.parts(),
            scale=scale,
            q_positions=q_positions,
            window=window,
            sinks=sinks,
            num_mass_queries=0 if decay is None else MASS_QUERIES,
        )
        if decay is not None:
            assert done.mass is not None
            num_averaged = min(num_new, MASS_QUERIES)
            lanes.observe(done.mass[0].mean(dim=0), num_new=num_new, weight=1 - decay**num_averaged)
        if window is not None:
            # how far back the window of the next token reaches
            last = first + num_new if positions is None else int(positions[-1]) + 1
            self._drop_before(lanes, last - window + 1)
        self.evict(row, self.ceiling)
        return done.output

    def _drop_before(self, lanes: Lanes, position: int) -> None:
        if position <= 0 or not lanes.num_rows or int(lanes.positions[0]) >= position:
            return
        count = int(torch.searchsorted(lanes.positions, position))
        lanes.drop(0, count)
        self.has_evicted = True

    def evict(self, row: int, budget: int | None) -> None:
        """Drop rows of a sequence down to `budget`, as the policy picks, and quantise the old."""
        policy = self.policy
        if policy is None:
            return
        lanes = self.rows[row]
        if budget is not None and lanes.num_rows > budget + policy.gate.slack:
            rows = Rows(lanes.num_rows, lanes.positions, lanes.mass)
            verdict = policy.selector.select(rows, budget, policy.scorer)
            if isinstance(verdict, Drop):
                lanes.drop(verdict.start, verdict.stop)
            else:
                lanes.keep(verdict)
            self.has_evicted = True
        if policy.precision.recent is not None:
            lanes.quantise_to(policy.precision.recent)

    def reorder(self, index: list[int]) -> None:
        """Sequence i becomes a copy of what sequence index[i] was."""
        copies = [self.rows[i].copy() for i in index]
        for lanes in self.rows:
            lanes.release()
        self.rows = copies

    def reset(self) -> None:
        """Forget everything and give the memory back."""
        for lanes in self.rows:
            lanes.release()
        self.rows, self.seen, self.has_evicted = [], 0, False

    def check(self) -> None:
        """Audit the structure. Raises AssertionError."""
        for lanes in self.rows:
            lanes.check()
            if lanes.num_rows:
                assert int(lanes.positions[-1]) < self.seen, "a row from the future"
            if self.shape.window is not None and lanes.num_rows:
                reach = int(lanes.positions[-1]) - int(lanes.positions[0])
                assert reach < self.shape.window, "a row no token can see"
            if self.policy is not None:
                recent = self.policy.precision.recent
                if recent is None:
                    assert not lanes.num_coded, "rows in 8 bits that should be whole"
                else:
                    assert lanes.num_dense < recent + 64, "rows that should be in 8 bits"
                if self.ceiling is not None:
                    most = self.ceiling + self.policy.gate.slack
                    assert lanes.num_rows <= most, f"{lanes.num_rows} rows, at most {most} allowed"
