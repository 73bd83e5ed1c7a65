"""Statistics of rows: paired counts, an exact test, bootstrap intervals, averages.

Policies are compared on the same tasks and seeds, because at 75 tasks the difference between two
unpaired success rates has a standard error of several points.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

_Unit = TypeVar("_Unit", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Paired:
    """Outcomes of two policies on the units (task and seed) that both ran."""

    both: int
    only_first: int
    only_second: int
    neither: int

    @property
    def num_units(self) -> int:
        """Units that both policies ran."""
        return self.both + self.only_first + self.only_second + self.neither

    @property
    def p_value(self) -> float:
        """Two-sided p-value of the exact McNemar test."""
        return mcnemar_exact(self.only_first, self.only_second)


def paired(first: Mapping[_Unit, bool], second: Mapping[_Unit, bool]) -> Paired:
    """Count the outcomes of the units in both mappings; True is a success."""
    outcomes = [(first[unit], second[unit]) for unit in first if unit in second]
    return Paired(
        both=outcomes.count((True, True)),
        only_first=outcomes.count((True, False)),
        only_second=outcomes.count((False, True)),
        neither=outcomes.count((False, False)),
    )


def mcnemar_exact(only_first: int, only_second: int) -> float:
    """Return the two-sided p-value of the exact McNemar test.

    It is a binomial test at one half over the discordant pairs; 1.0 without such a pair.
    """
    discordant = only_first + only_second
    if discordant == 0:
        return 1.0
    tail = sum(math.comb(discordant, count) for count in range(min(only_first, only_second) + 1))
    return float(min(1.0, 2.0 * tail / 2.0**discordant))


def bootstrap_interval(
    values: Sequence[float], *, level: float = 0.95, num_resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Return the percentile interval of the mean of `values`, one value per task.

    Pass the mean over the seeds of a task: the bootstrap draws tasks, and the seeds of a task are
    not independent. Equal arguments give equal intervals.
    """
    assert values, "an interval needs at least one value"
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.tensor(values, dtype=torch.float64)
    picks = torch.randint(len(values), (num_resamples, len(values)), generator=generator)
    means = drawn[picks].mean(dim=1).sort().values
    below = (1.0 - level) / 2.0
    first = math.floor(below * (num_resamples - 1))
    last = math.ceil((1.0 - below) * (num_resamples - 1))
    return float(means[first]), float(means[last])


@dataclass(frozen=True, slots=True)
class Rate:
    """A number of successes in a number of episodes."""

    num_successes: int
    num_episodes: int

    @property
    def value(self) -> float:
        """Share of successes; NaN without episodes."""
        return self.num_successes / self.num_episodes if self.num_episodes else math.nan


def rate(successes: Sequence[bool]) -> Rate:
    """Return the rate over all episodes (micro average)."""
    return Rate(sum(successes), len(successes))


def wilson_interval(found: Rate, *, deviates: float = 1.959964) -> tuple[float, float]:
    """Return Wilson's score interval of a rate; it is valid at 0 and 1 and for few trials.

    Args:
        found: at least one trial; the trials are independent.
        deviates: half-width in standard deviations; 1.96 gives 95 %.
    """
    number, share, square = found.num_episodes, found.value, deviates**2
    assert number, "an interval needs at least one trial"
    middle = share + square / (2 * number)
    reach = deviates * math.sqrt(share * (1 - share) / number + square / (4 * number**2))
    whole = 1 + square / number
    return max(0.0, (middle - reach) / whole), min(1.0, (middle + reach) / whole)


def macro_average(rates: Mapping[_Unit, Rate]) -> float:
    """Return the mean of the groups' rates (macro average), ignoring empty groups."""
    present = [group.value for group in rates.values() if group.num_episodes]
    return sum(present) / len(present) if present else math.nan
