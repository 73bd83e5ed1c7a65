"""Where the time of episodes goes, from the rows of a run with `--profile`."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from agentkv_tasks.results import Row


@dataclass(frozen=True, slots=True)
class PartTime:
    """The time of one part in several episodes."""

    name: str
    seconds: float
    """Mean per episode."""
    share: float
    """Share of the time of all parts."""


def part_times(rows: Sequence[Row]) -> list[PartTime]:
    """Return the mean time of each part, the largest first; rows without parts do not count."""
    measured = [row.parts for row in rows if row.parts is not None]
    names = dict.fromkeys(name for parts in measured for name in parts)
    means = {name: statistics.fmean(parts.get(name, 0.0) for parts in measured) for name in names}
    total = sum(means.values())
    return [
        PartTime(name, mean, mean / total if total else 0.0)
        for name, mean in sorted(means.items(), key=lambda item: -item[1])
    ]
