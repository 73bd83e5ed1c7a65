"""Budgets, in tokens, as a share of the tokens seen or in bytes, and what they allow each layer."""

import bisect
import math
import re
from dataclasses import dataclass

from agentkv.cache.geometry import Geometry
from agentkv.cache.refusals import require_policy
from agentkv.cache.spans import NO_PINS, Pins
from agentkv.cache.storage.sizes import resting_bytes
from agentkv.defaults import BUDGET
from agentkv.policies.entries import PolicyError
from agentkv.policies.policy import Policy
from agentkv.policies.slots import EnergyState, Learner

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


AMPLE = 1 << 20
"""Entries that satisfy any policy."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes that the whole cache may hold at rest, all sequences together."""

    count: int


@dataclass(frozen=True, slots=True)
class Share:
    """Share of the tokens a sequence has seen that may stay per layer and KV head."""

    of_seen: float
    floor: int = 0
    """Tokens that may stay at least."""


Budget = int | Share | Bytes | None


def parse_budget(budget: int | float | str | None) -> Budget:
    """Parse a number as tokens, 0.25 or "25%" as a share, "25%, at least 1024" as a share with a
    least number of tokens, "64MiB" or "1.5 GB" as bytes.

    Raises:
        PolicyError: the budget is none of these.
    """
    if isinstance(budget, float) and not budget.is_integer():
        if 0 < budget < 1:
            return Share(budget)
        raise PolicyError(f"a budget as a share must be between 0 and 1; found {budget}")
    if not isinstance(budget, str):
        return int(budget) if isinstance(budget, float) else budget
    share = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*(?:, at least (\d+)\s*)?", budget)
    if share and 0 < float(share[1]) < 100:
        return Share(float(share[1]) / 100, int(share[2] or 0))
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", budget)
    unit = UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise PolicyError(
            f"budget {budget!r} is neither a number of tokens, nor a share such as '25%', nor "
            "bytes such as '64MiB'; units: B, KB, MB, GB, KiB, MiB, GiB"
        )
    return Bytes(int(float(match[1]) * unit))


def default_budget(policy: Policy) -> Budget:
    """Return the budget of a policy that got none: `agentkv.defaults.BUDGET`, or None for a policy
    that keeps everything or brings its own."""
    return parse_budget(BUDGET) if needs_budget(policy) else None


def needs_budget(policy: Policy) -> bool:
    """Return False for a policy that keeps everything or brings its own budget."""
    try:
        policy.fitted(None)
    except PolicyError:
        return True
    return False


class Allowance:
    """Entries that each layer may hold, depending on the tokens seen and on those pinned.

    Args:
        policy: the policy as requested.
        budget: as `parse_budget` returned it; `batch` sequences share bytes.

    Raises:
        PolicyError: the policy does not fit into the budget, or the model rules it out.
    """

    def __init__(self, policy: Policy, budget: Budget, geometry: Geometry, batch: int = 1) -> None:
        require_policy(policy, geometry)
        self.policy = policy
        self.batch = batch
        """Sequences that share bytes."""
        self._geometry = geometry
        self._budget = budget
        self._num_layers = len(geometry.policy_layers)
        self._has_window = geometry.layers[geometry.policy_layers[0]].window is not None
        self._layers: tuple[tuple[int, int, Policy | None], tuple[int, ...]] = ((0, 0, None), ())
        self.state: EnergyState = {}
        """Energies that a learning allocator uses until the next context begins."""
        self.begin_context()
        self._bytes_fit = 0
        """Entries that a budget in bytes holds."""
        if isinstance(budget, Bytes):
            self._bytes_fit = _fit_bytes(policy, budget.count, geometry, batch)
        self._least: tuple[tuple[int, int], int] | None = None
        """Latest number of pinned tokens (leading, others), and the entries they need at least."""
        self._fitted: tuple[tuple[int | None, int, int], Policy] | None = None
        """Latest fitted policy, with its entries and pinned tokens."""
        self.at(0)

    def begin_context(self) -> None:
        """Use everything learned so far: within a context, only earlier contexts count."""
        if isinstance(self.policy.allocator, Learner):
            self.use_state(self.policy.allocator.state)

    def use_state(self, state: EnergyState) -> None:
        """Use these energies until the next context begins."""
        self.state, self._layers = state, ((0, 0, None), ())

    def at(self, num_seen: int, pins: Pins = NO_PINS) -> Policy:
        """Return the policy with its budget filled in, after `num_seen` tokens of a sequence.

        Raises:
            PolicyError: the pinned tokens do not fit into the budget.
        """
        leading, others = self.pinned(num_seen, pins)
        key = (self._entries(num_seen, leading, others), leading, others)
        if self._fitted is None or self._fitted[0] != key:
            try:
                fitted = self.policy.fitted(key[0], leading=leading, pinned=others)
                if isinstance(self._budget, Bytes) and pins.ranges:
                    _require_bytes(fitted, self._budget.count, self._geometry, self.batch)
            except PolicyError as error:
                raise self._with_remedy(error, leading, others) from None
            self._fitted = key, fitted
        return self._fitted[1]

    def _with_remedy(self, error: PolicyError, leading: int, others: int) -> PolicyError:
        """Add the smallest budget that holds the pinned tokens, if there are any and one does."""
        if not leading + others:
            return error
        try:
            least = _least_rows(self.policy, leading, others)
        except PolicyError:
            return error
        enough = f"{least} entries"
        if isinstance(self._budget, Bytes):
            fitted = (
                self.policy.fitted(least),
                self.policy.fitted(least, leading=leading, pinned=others),
            )
            enough = _written(
                max(resting_bytes(each, self._geometry, self.batch) for each in fitted)
            )
        return PolicyError(
            f"{self.policy.name}: {error}; give a budget of at least {enough}, or pin fewer tokens"
        )

    def pinned(self, num_seen: int, pins: Pins) -> tuple[int, int]:
        """Return how many tokens are pinned at the start of a sequence, where they serve as sinks,
        and how many elsewhere.

        Where a window of the model's own hides the start, no pinned token is a sink.
        """
        if not pins.ranges:
            return 0, 0
        leading = 0 if self._has_window else pins.leading(num_seen)
        return leading, pins.count(num_seen) - leading

    def _entries(self, num_seen: int, leading: int, others: int) -> int | None:
        """Return the entries per head of all layers on average; None for no budget."""
        if isinstance(self._budget, Bytes):
            return self._bytes_fit
        if not isinstance(self._budget, Share):
            return self._budget
        if self._least is None or self._least[0] != (leading, others):
            self._least = (leading, others), _least_rows(self.policy, leading, others)
        # exact arithmetic gives 38 for 40 % of 96; the small term undoes rounding
        wanted = math.floor(self._budget.of_seen * num_seen + 1e-6)
        return max(self._least[1], self._budget.floor, wanted)

    def layers(
        self, num_seen: int, confidence: float | None = None, pins: Pins = NO_PINS
    ) -> tuple[int, ...] | None:
        """Entries per head for each layer the policy acts on; None for any number.

        Args:
            confidence: of the next token; None: allow the most that the gate ever does.
            pins: of the sequence.
        """
        policy = self.at(num_seen, pins)
        gate = policy.gate
        num_entries = gate.ceiling if confidence is None else gate.budget(confidence)
        if num_entries is None:
            return None
        key, shares = self._layers
        if key[:2] != (num_entries, num_seen) or key[2] is not policy:
            allocator = policy.allocator
            if allocator.learns and isinstance(allocator, Learner):
                allocator = allocator.with_state(self.state)
            shares = allocator.layers(num_entries, self._num_layers, num_seen)
            self._layers = ((num_entries, num_seen, policy), shares)
        return shares


def _least_rows(policy: Policy, leading: int = 0, pinned: int = 0) -> int:
    if policy.gate.ceiling is not None:
        raise PolicyError(
            f"{policy.name} brings its own budget of {policy.gate.ceiling} tokens; give no other"
        )

    def fits(num_entries: int) -> bool:
        try:
            policy.fitted(num_entries, leading=leading, pinned=pinned)
        except PolicyError:
            return False
        return True

    policy.fitted(AMPLE, leading=leading, pinned=pinned)  # raises what no budget would mend
    return bisect.bisect_left(range(1, AMPLE + 1), True, key=fits) + 1


def _fit_bytes(policy: Policy, num_bytes: int, geometry: Geometry, batch: int) -> int:
    """Return how many entries per layer and head fit into `num_bytes`. Raises PolicyError."""
    if geometry.recurrent_layers:
        raise PolicyError(
            "a budget in bytes counts the whole cache, and the recurrent states of "
            f"{geometry.family} have a size that only its first forward shows; give the budget in "
            "tokens or as a share"
        )
    low = _least_rows(policy)
    if not policy.gate.is_due(num_new=2, step=0):
        raise PolicyError(
            f"a budget in bytes needs a policy that evicts after an input; {policy.name} waits for "
            "decoded tokens: give the budget in tokens"
        )
    if policy.precision.sure is not None:
        raise PolicyError(
            f"a budget in bytes needs a policy that quantizes after every forward; {policy.name} "
            f"waits for a confidence of {policy.precision.sure}: give the budget in tokens"
        )
    needed = resting_bytes(policy.fitted(low), geometry, batch)
    if needed > num_bytes:
        raise PolicyError(
            f"a budget of {num_bytes} bytes is too small: {policy.name} needs at least {low} "
            f"entries in every layer, {needed} bytes for this model and a batch of {batch}"
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
    return low


def _require_bytes(fitted: Policy, num_bytes: int, geometry: Geometry, batch: int) -> None:
    """Raise PolicyError if layers that must hold pinned tokens exceed the budget."""
    needed = resting_bytes(fitted, geometry, batch)
    if needed > num_bytes:
        raise PolicyError(
            f"with its pinned tokens the cache needs {needed} bytes, its budget has {num_bytes}"
        )


def _written(num_bytes: int) -> str:
    """Return bytes as a budget is written, rounded up."""
    if num_bytes < UNITS["MIB"]:
        return f"{math.ceil(num_bytes / UNITS['KIB'])}KiB"
    return f"{math.ceil(10 * num_bytes / UNITS['MIB']) / 10:g}MiB"
