"""Rotary positions of a sequence once it is longer than the model's positions.

A cache that evicts holds few entries of a long stream. Where rotary positions run out, the entries
held are renumbered from 0, as in StreamingLLM (arXiv 2309.17453), and their keys are turned to the
new positions. All other positions of the package stay those of the stream.

One numbering serves all layers and heads of a sequence, whatever each of them keeps. Rotary
positions never decrease along the stream; between the first eighth and the latest quarter,
neighbours may share one.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from agentkv.cache.geometry import Geometry
from agentkv.policies.policy import Policy

EXACT_FIRST, EXACT_LAST, USED = 1 / 8, 1 / 4, 1 / 2
"""Shares of the model's positions (our choice). Entries in the first and in the last of those in
use keep a position each, and those between may share; the third is the most in use after sharing.
"""

LEAST_ROOM = 1 / 8
"""Share of the model's positions that a new numbering leaves free, so that it serves many tokens
(our choice)."""


@dataclass(frozen=True, slots=True, eq=False)
class Numbering:
    """Rotary positions of one sequence; a value. The first one numbers as the stream does."""

    starts: Tensor = field(default_factory=lambda: torch.arange(0))
    """(n,) int64, ascending: the first position of the stream with rotary position 0, 1, ..."""
    end: int = 0
    """Position of the first token after the new numbering; that has rotary position n."""

    def of(self, positions: Tensor) -> Tensor:
        """Return rotary positions, int64 on the CPU, of positions (...) of the stream."""
        positions = positions.to("cpu", torch.int64)
        older = torch.searchsorted(self.starts, positions, right=True) - 1
        return torch.where(positions < self.end, older.clamp_min(0), positions - self.shift)

    @property
    def shift(self) -> int:
        """By how much positions of new tokens exceed their rotary positions."""
        return self.end - self.starts.shape[0]

    def renewed(
        self, held: Tensor, *, most: int, num_new: int, may_share: bool
    ) -> "Numbering | None":
        """Return a numbering that makes room for new tokens.

        Only positions at which an entry is held are counted, and all of the latest quarter. If
        that leaves too little room, older entries share positions: of those between the first
        eighth and the latest quarter, 2, 4, 8, ... in a row (as in Self-Extend, arXiv 2401.01325,
        but more with every new numbering).

        Args:
            held: (tokens seen,) bool, whether any layer or head holds an entry of a position.
            most: positions of the model.
            num_new: tokens that come next.
            may_share: whether entries may share positions.

        Returns:
            None if entries may not share positions and `num_new` tokens find no room.
        """
        num_seen = held.shape[0]
        latest = int(most * EXACT_LAST)
        counted = held.clone()
        counted[max(0, num_seen - latest) :] = True
        positions = counted.nonzero().squeeze(1)
        used, numbers = torch.unique_consecutive(self.of(positions), return_inverse=True)
        num_used = used.shape[0]
        if num_used + max(num_new, int(most * LEAST_ROOM)) > most:
            if may_share:
                numbers = _shared(numbers, num_used, most)
            elif num_used + num_new > most:
                return None
        counts = torch.unique_consecutive(numbers, return_counts=True)[1]
        return Numbering(positions[counts.cumsum(0) - counts], num_seen)


def why_limited(policy: Policy, geometry: Geometry) -> str | None:
    """Return why a cache can be fed no more tokens than its model has positions, apart from those
    that are dropped; None if it can."""
    if geometry.max_positions is None:
        return None
    if geometry.why_fixed is not None:
        return geometry.why_fixed
    return None if is_bounded(policy, geometry) else "the policy keeps every token"


def is_bounded(policy: Policy, geometry: Geometry) -> bool:
    """Return whether entries leave a cache while it is fed."""
    return policy.gate.evicts or geometry.is_all_windowed


def _shared(numbers: Tensor, num_used: int, most: int) -> Tensor:
    """Return numbers of which at most `USED` are in use.

    Args:
        numbers: (n,) 0 ... num_used - 1 in ascending order, some repeatedly.
    """
    first, last = int(most * EXACT_FIRST), int(most * EXACT_LAST)
    between, room = num_used - first - last, int(most * USED) - first - last
    bits = 0
    while -(-between >> bits) > max(1, room):
        bits += 1
    shared = torch.where(numbers < first, numbers, first + ((numbers - first) >> bits))
    gone = between - -(-between >> bits)
    return torch.where(numbers < num_used - last, shared, numbers - gone)
