"""Budgets: a number of tokens, a share of those seen, or bytes for the whole cache; and what they
allow each layer."""

import math
import re
from dataclasses import dataclass

from agentkv.cache.geometry import Geometry
from agentkv.cache.size import resting_bytes
from agentkv.policies.policy import Policy
from agentkv.policies.rows import PolicyError
from agentkv.policies.slots import Learner, Remembered

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


AMPLE = 1 << 20
"""Rows that any policy can do with."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes that the whole cache may hold at rest, all sequences together."""

    count: int


@dataclass(frozen=True, slots=True)
class Share:
    """Of the tokens a sequence has seen, those that may stay per layer and KV head."""

    of_seen: float


Budget = int | Share | Bytes | None


def parse_budget(budget: int | float | str | None) -> Budget:
    """A whole number as tokens; 0.25 or "25%" as a share; "64MiB" or "1.5 GB" as bytes.

    Raises:
        PolicyError: it is none of these.
    """
    if isinstance(budget, float) and not budget.is_integer():
        if 0 < budget < 1:
            return Share(budget)
        raise PolicyError(f"a budget as a share must be between 0 and 1; found {budget}")
    if not isinstance(budget, str):
        return int(budget) if isinstance(budget, float) else budget
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+|%)\s*", budget)
    if match and match[2] == "%" and 0 < float(match[1]) < 100:
        return Share(float(match[1]) / 100)
    unit = UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise PolicyError(
            f"budget {budget!r} is neither a number of tokens, nor a share such as '25%', nor "
            "bytes such as '64MiB'; units: B, KB, MB, GB, KiB, MiB, GiB"
        )
    return Bytes(int(float(match[1]) * unit))


class Allowance:
    """How many rows each layer may hold, given how many tokens were seen.

    Args:
        policy: as it was asked for.
        budget: as `parse_budget` gave it; bytes are shared by `batch` sequences.

    Raises:
        PolicyError: the policy does not fit into the budget.
    """

    def __init__(self, policy: Policy, budget: Budget, geometry: Geometry, batch: int = 1) -> None:
        self.policy = policy
        self.batch = batch
        """By how many sequences bytes are shared."""
        self._num_layers = len(geometry.policy_layers)
        self._share = budget if isinstance(budget, Share) else None
        self._least = 1
        self._layers: tuple[tuple[int, int], tuple[int, ...]] = ((0, 0), ())
        self.memory: Remembered = {}
        """What an allocator that learns goes by until the next context begins."""
        self.begin_context()
        if isinstance(budget, Bytes):
            self._fitted = _fit_bytes(policy, budget.count, geometry, batch)
        elif isinstance(budget, Share):
            self._least = _least_rows(policy)
            self._fitted = policy.fitted(self._least)
        else:
            self._fitted = policy.fitted(budget)

    def begin_context(self) -> None:
        """From now on go by all that was learned so far: in a context, earlier ones count."""
        if isinstance(self.policy.allocator, Learner):
            self.go_by(self.policy.allocator.remembered)

    def go_by(self, memory: Remembered) -> None:
        """Until the next context begins, share out as this memory says."""
        self.memory, self._layers = memory, ((0, 0), ())

    def at(self, num_seen: int) -> Policy:
        """The policy with its budget filled in, after so many tokens of a sequence."""
        if self._share is not None:
            # the small number makes 40 % of 96 the 38 that exact arithmetic gives
            rows = max(self._least, math.floor(self._share.of_seen * num_seen + 1e-6))
            if self._fitted.gate.ceiling != rows:
                self._fitted = self.policy.fitted(rows)
        return self._fitted

    def layer(self, index: int, num_seen: int, confidence: float | None = None) -> int | None:
        """Rows per head for the layer of this number among those the policy acts on; see
        `layers`."""
        shares = self.layers(num_seen, confidence)
        return None if shares is None else shares[index]

    def layers(self, num_seen: int, confidence: float | None = None) -> tuple[int, ...] | None:
        """Rows per head for each layer the policy acts on; None for any number.

        Args:
            confidence: None gives the most the gate ever allows.
        """
        policy = self.at(num_seen)
        gate = policy.gate
        rows = gate.ceiling if confidence is None else gate.budget(confidence)
        if rows is None:
            return None
        key, shares = self._layers
        if key != (rows, num_seen):
            allocator = policy.allocator
            if allocator.learns and isinstance(allocator, Learner):
                allocator = allocator.going_by(self.memory)
            shares = allocator.layers(rows, self._num_layers, num_seen)
            self._layers = ((rows, num_seen), shares)
        return shares


def _least_rows(policy: Policy) -> int:
    if policy.gate.ceiling is not None:
        raise PolicyError(
            f"this policy has its own budget of {policy.gate.ceiling} tokens; leave the other out"
        )
    policy.fitted(AMPLE)  # raises what has nothing to do with the budget's size
    for rows in range(1, AMPLE):
        try:
            policy.fitted(rows)
        except PolicyError:
            continue
        return rows
    raise AssertionError("an ample budget fits")


def _fit_bytes(policy: Policy, num_bytes: int, geometry: Geometry, batch: int) -> Policy:
    low = _least_rows(policy)
    if not policy.gate.bounded:
        raise PolicyError(
            "a budget in bytes needs a policy that evicts at every step; this one lets the cache "
            "grow while it decodes"
        )
    needed = resting_bytes(policy.fitted(low), geometry, batch)
    if needed > num_bytes:
        raise PolicyError(
            f"a budget of {num_bytes} bytes is too small: the least this policy can do with, {low} "
            f"rows in every layer, takes {needed} bytes for this model and {batch} sequences, with "
            "room to grow"
        )
    high = low * 2
    while resting_bytes(policy.fitted(high), geometry, batch) <= num_bytes and high < 1 << 32:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if resting_bytes(policy.fitted(middle), geometry, batch) <= num_bytes:
            low = middle
        else:
            high = middle
    return policy.fitted(low)
