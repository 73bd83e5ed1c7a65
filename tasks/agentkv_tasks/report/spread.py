"""How far repeats of a run vary: the same episodes under the same settings, played again."""

from collections.abc import Sequence
from dataclasses import dataclass

from agentkv_tasks.report.statistics import Rate, rate
from agentkv_tasks.report.summary import Summary, compare
from agentkv_tasks.results import Row

WHY = (
    "Equal settings give equal episodes only with --deterministic, and once compiled kernels are "
    "loaded: otherwise replies of several workers share forwards, which changes their rounding, "
    "and rounding can change a token."
)
"""Why repeats differ."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The repeats of one policy. Those of other seeds are repeats as well."""

    label: str
    solved: tuple[Rate, ...]
    """Success in each repeat."""
    p_values: tuple[float, ...]
    """p-value against the baseline in each repeat, not corrected; empty for the baseline."""
    num_changed: int
    """Tasks that some repeats solved and others did not."""
    num_tasks: int
    """Tasks that were played more than once."""

    @property
    def least(self) -> int:
        """Fewest solved episodes of a repeat."""
        return min(each.num_successes for each in self.solved)

    @property
    def most(self) -> int:
        """Most solved episodes of a repeat."""
        return max(each.num_successes for each in self.solved)


def spreads(summaries: Sequence[Summary]) -> list[Spread]:
    """Return the spread of each policy; nothing if no episode was played more than once."""
    if len({(row.seed, row.repeat) for each in summaries for row in each.rows}) < 2:
        return []
    found = []
    for summary in summaries:
        baseline = next(
            each
            for each in summaries
            if (each.suite, each.model) == (summary.suite, summary.model) and each.against is None
        )
        theirs = _repeats(baseline.rows)
        own = _repeats(summary.rows)
        outcomes: dict[tuple[int, int], list[bool]] = {}
        for row in summary.rows:
            outcomes.setdefault((row.world_seed, row.task_id), []).append(row.success)
        again = [each for each in outcomes.values() if len(each) > 1]
        found.append(
            Spread(
                summary.label,
                tuple(rate([row.success for row in rows]) for rows in own.values()),
                tuple(
                    compare(theirs[place], rows).p_value
                    for place, rows in own.items()
                    if summary is not baseline and place in theirs
                ),
                sum(len(set(each)) > 1 for each in again),
                len(again),
            )
        )
    return found


def repeats_are_equal(rows: Sequence[Row]) -> bool:
    """Return whether the settings say that a repeat would give equal episodes."""
    return all(row.settings.get("deterministic") is True for row in rows)


def _repeats(rows: Sequence[Row]) -> dict[tuple[int, int], list[Row]]:
    found: dict[tuple[int, int], list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row.seed, row.repeat)):
        found.setdefault((row.seed, row.repeat), []).append(row)
    return found
