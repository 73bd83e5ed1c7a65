"""How far repeats of a run vary: the same episodes under the same settings, played again."""

from collections.abc import Sequence
from dataclasses import dataclass

from agentkv_tasks.report.statistics import Rate, rate
from agentkv_tasks.report.summary import Summary, compare
from agentkv_tasks.results import Row

WHY = (
    "Equal settings are sure to give equal episodes only with --deterministic, with compiled "
    "kernels loaded and the same code: otherwise replies of several workers share forwards, which "
    "changes their rounding, and rounding can change a token."
)
"""Why repeats can differ."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The repeats of one policy, on the tasks that all of them played. Those of other seeds are
    repeats as well."""

    label: str
    solved: tuple[Rate, ...]
    """Success in each repeat."""
    p_values: tuple[float, ...]
    """p-value against the baseline in each repeat, not corrected; empty for the baseline."""
    num_changed: int
    """Tasks that some repeats solved and others did not."""
    num_tasks: int

    @property
    def least(self) -> int:
        """Fewest solved episodes of a repeat."""
        return min(each.num_successes for each in self.solved)

    @property
    def most(self) -> int:
        """Most solved episodes of a repeat."""
        return max(each.num_successes for each in self.solved)


def spreads(summaries: Sequence[Summary]) -> list[Spread]:
    """Return the spread of each policy of which a task was played more than once."""
    found = []
    for summary in summaries:
        repeats = _repeats(summary.rows)
        played = [{(row.world_seed, row.task_id) for row in rows} for rows in repeats.values()]
        common = set.intersection(*played)
        if len(repeats) < 2 or not common:
            continue
        own = {
            place: [row for row in rows if (row.world_seed, row.task_id) in common]
            for place, rows in repeats.items()
        }
        baseline = next(
            each
            for each in summaries
            if (each.suite, each.model) == (summary.suite, summary.model) and each.against is None
        )
        theirs = {} if summary is baseline else _repeats(baseline.rows)
        outcomes: dict[tuple[int, int], set[bool]] = {}
        for row in (row for rows in own.values() for row in rows):
            outcomes.setdefault((row.world_seed, row.task_id), set()).add(row.success)
        found.append(
            Spread(
                summary.label,
                tuple(rate([row.success for row in rows]) for rows in own.values()),
                tuple(
                    compare(theirs[place], rows).p_value
                    for place, rows in own.items()
                    if place in theirs
                ),
                sum(len(each) > 1 for each in outcomes.values()),
                len(common),
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
