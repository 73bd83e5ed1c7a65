"""Statistics of rows: paired counts, an exact test, bootstrap intervals, averages.

Policies are compared on the same tasks and seeds, because at 75 tasks the difference between two
unpaired success rates has a standard error of several points. A task in several worlds or with
several seeds is one cluster: its outcomes depend on each other.
"""

import functools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch

_Unit = TypeVar("_Unit", bound=Hashable)


MARGIN = 0.05
"""A policy is as good as another if it is shown to solve at most this share fewer (our choice, made
before the measurements: five points)."""

FEWEST = math.ceil(math.log(0.025) / math.log(1 - MARGIN))
"""Tasks from which on a loss of `MARGIN` would show in at least one with 97.5 % probability. The
bootstrap draws only what it has seen: without a lost task its interval is 0 to 0, of two tasks as
of two hundred."""


@dataclass(frozen=True, slots=True)
class Paired:
    """Outcomes of two policies on the units that both ran, such as a task in one world."""

    both: int
    only_first: int
    only_second: int
    neither: int
    clusters: tuple[tuple[int, int], ...]
    """Per cluster of dependent units, such as all units of a task: units that only the second
    policy solved minus those that only the first did, and number of units."""

    @property
    def num_units(self) -> int:
        """Units that both policies ran."""
        return self.both + self.only_first + self.only_second + self.neither

    @property
    def difference(self) -> float:
        """Success rate of the second policy minus that of the first; NaN without units."""
        return (self.only_second - self.only_first) / self.num_units if self.clusters else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the difference, by bootstrap over clusters; NaN without units."""
        return _difference_interval(self.clusters)

    @property
    def is_as_good(self) -> bool:
        """True if the interval shows that the second policy loses less than `MARGIN`.

        Fewer than `FEWEST` clusters show it only of a policy that is shown to win, however equal
        their outcomes.
        """
        low = self.interval[0]
        return low > 0 or (low > -MARGIN and len(self.clusters) >= FEWEST)

    @property
    def p_value(self) -> float:
        """Two-sided p-value of the exact sign-flip test over clusters."""
        return sign_flip_exact([gained for gained, _ in self.clusters])


@functools.lru_cache(maxsize=256)
def _difference_interval(clusters: tuple[tuple[int, int], ...]) -> tuple[float, float]:
    """Return the interval of `Paired`, which a report asks for several times."""
    if not clusters:
        return math.nan, math.nan
    differences = [gained / count for gained, count in clusters]
    return bootstrap_interval(differences, weights=[count for _, count in clusters])


def paired(
    first: Mapping[_Unit, bool],
    second: Mapping[_Unit, bool],
    *,
    cluster: Callable[[_Unit], Hashable] = lambda unit: unit,
) -> Paired:
    """Count the outcomes of the units in both mappings; True is a success.

    Args:
        cluster: returns the cluster of a unit; by default all units are independent.
    """
    units = [unit for unit in first if unit in second]
    outcomes = [(first[unit], second[unit]) for unit in units]
    clusters: dict[Hashable, list[int]] = {}
    for unit, (before, after) in zip(units, outcomes, strict=True):
        clusters.setdefault(cluster(unit), []).append(after - before)
    return Paired(
        both=outcomes.count((True, True)),
        only_first=outcomes.count((True, False)),
        only_second=outcomes.count((False, True)),
        neither=outcomes.count((False, False)),
        clusters=tuple((sum(each), len(each)) for each in clusters.values()),
    )


def sign_flip_exact(differences: Sequence[int]) -> float:
    """Return the two-sided p-value of the exact sign-flip test of a sum of differences.

    Without a difference between the policies, the difference of each cluster has either sign with
    probability one half. The p-value is the probability of a sum at least as far from 0. If no
    difference exceeds 1, it is that of the exact McNemar test.
    """
    ways = Counter({0: 1})  # of reaching each sum
    sizes = [abs(each) for each in differences if each]
    for size in sizes:
        longer: Counter[int] = Counter()
        for total, count in ways.items():
            longer[total + size] += count
            longer[total - size] += count
        ways = longer
    extreme = abs(sum(differences))
    num_extreme = sum(n for total, n in ways.items() if abs(total) >= extreme)
    return float(num_extreme / 2 ** len(sizes))


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct the p-values of several tests by Holm's method, in their order."""
    corrected = [0.0] * len(p_values)
    so_far = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        so_far = max(so_far, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = so_far
    return corrected


def bootstrap_interval(
    values: Sequence[float],
    *,
    weights: Sequence[float] | None = None,
    level: float = 0.95,
    num_resamples: int = 10_000,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the percentile interval of the weighted mean of `values`, one value per task.

    Pass the mean over the seeds of a task: the bootstrap draws tasks, and the seeds of a task are
    not independent. Equal arguments give equal intervals.

    Args:
        weights: one per value, such as its number of episodes; None: equal weights.
    """
    import torch  # only here: it takes seconds, and most commands compute no statistics

    assert values, "an interval needs at least one value"
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.tensor(values, dtype=torch.float64)
    heavy = torch.ones_like(drawn) if weights is None else torch.tensor(weights).to(drawn)
    picks = torch.randint(len(values), (num_resamples, len(values)), generator=generator)
    means = (drawn * heavy)[picks].sum(dim=1) / heavy[picks].sum(dim=1)
    return _percentiles(means.tolist(), level)


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


def ranks(values: Sequence[float]) -> "torch.Tensor":
    """Return the rank of each value, from 1 up; equal values share their mean rank."""
    import torch

    found = torch.tensor(values, dtype=torch.float64)
    ordered = found.sort().values
    first = torch.searchsorted(ordered, found)
    last = torch.searchsorted(ordered, found, right=True)
    return (first + last + 1).double() / 2


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Spearman's rank correlation; NaN if either has one value only."""
    import torch

    both = torch.stack([ranks(first), ranks(second)])
    centred = both - both.mean(dim=1, keepdim=True)
    norms = centred.square().sum(dim=1).prod().sqrt()
    return float((centred[0] * centred[1]).sum() / norms) if norms > 0 else math.nan


def separation(scores: Sequence[float], are_positive: Sequence[bool]) -> float:
    """Return the probability that a positive has the larger score than a negative, equal scores
    counting one half: the area under the ROC curve; NaN without positives or without negatives."""
    import torch

    positives = torch.tensor(are_positive)
    many, few = int(positives.sum()), int((~positives).sum())
    if not many or not few:
        return math.nan
    total = float(ranks(scores)[positives].sum())
    return (total - many * (many + 1) / 2) / (many * few)


def cluster_interval(
    statistic: Callable[[Sequence[int]], float],
    clusters: Sequence[Sequence[int]],
    *,
    level: float = 0.95,
    num_resamples: int = 1_000,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the percentile interval of a statistic of units, by bootstrap over their clusters.

    Resamples in which the statistic is NaN are left out. Equal arguments give equal intervals.

    Args:
        statistic: of the numbers of the units that were drawn, several times each perhaps.
        clusters: numbers of the units of each cluster, such as the tokens of a reply.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    picks = torch.randint(len(clusters), (num_resamples, len(clusters)), generator=generator)
    drawn = [statistic([unit for i in row for unit in clusters[i]]) for row in picks.tolist()]
    found = [value for value in drawn if not math.isnan(value)]
    return _percentiles(found, level) if found else (math.nan, math.nan)


def _percentiles(resampled: Sequence[float], level: float) -> tuple[float, float]:
    """Return the values between which the share `level` of the resampled ones lies."""
    ordered, below = sorted(resampled), (1.0 - level) / 2.0
    first = math.floor(below * (len(ordered) - 1))
    last = math.ceil((1.0 - below) * (len(ordered) - 1))
    return ordered[first], ordered[last]
