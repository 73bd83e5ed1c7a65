"""The page of a run that goes on: what is done, what is left, and what is being played.

It stands where the report will be, reloads itself, and needs neither a server nor a script. It is
written from counts alone, so that a run of thousands of episodes writes it as fast as a small one.
"""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from agentkv.files import write_atomic
from agentkv.terminal import human_bytes
from agentkv_tasks.report.grid import SIGNS, outcome_of
from agentkv_tasks.report.html import template_environment
from agentkv_tasks.results import FAILURES, Row

EVERY_S = 5.0
"""Seconds between two pages at least (our choice)."""
_SHARE = 0.02
"""Share of the time that writing pages may take (our choice)."""
_LATEST = 10


@dataclass
class RunProgress:
    """Progress of one policy."""

    total: int
    done: int = 0
    successes: int = 0
    failures: int = 0
    """Episodes that ended for a reason outside the agent."""
    steps: int = 0
    seconds: float = 0.0
    _hot: int = 0
    _cold: int = 0
    _cached: int = 0

    def add(self, row: Row) -> None:
        """Count a finished episode."""
        self.done += 1
        self.successes += row.success
        self.failures += row.status in FAILURES
        self.steps += row.steps
        self.seconds += row.seconds
        if row.kv_peak_bytes is not None:
            self._hot += row.kv_peak_bytes
            self._cold += row.kv_stored_cold_bytes
            self._cached += 1

    @property
    def hot_bytes(self) -> float | None:
        """Mean over episodes of the peak of the hot entries; None without a cache."""
        return self._hot / self._cached if self._cached else None

    @property
    def cold_bytes(self) -> float | None:
        """Mean over episodes of the cold tier at the end."""
        return self._cold / self._cached if self._cached else None

    @property
    def all_bytes(self) -> float | None:
        """Mean over episodes of both."""
        return (self._hot + self._cold) / self._cached if self._cached else None


@dataclass(frozen=True, slots=True)
class Playing:
    """An episode that is being played."""

    task_id: int
    policy: str
    goal: str
    num_steps: int


class LivePage:
    """Writes the page of a run that goes on.

    Args:
        path: of the report, which the page replaces until the run ends.
        title: what is run.
    """

    def __init__(self, path: Path, *, title: str) -> None:
        self._path, self._title = path, title
        self._template = template_environment().get_template("live.html")
        self._begun = datetime.now(UTC)
        self._due = 0.0
        self._latest: deque[tuple[Row, str]] = deque(maxlen=_LATEST)

    @property
    def is_due(self) -> bool:
        """True if the page is old enough to be written again."""
        return time.monotonic() >= self._due

    def finished(self, row: Row, goal: str) -> None:
        """Note a finished episode for the list of the latest ones."""
        self._latest.appendleft((row, goal))

    def write(
        self,
        progress: Mapping[str, RunProgress],
        playing: Sequence[Playing],
        seconds_left: float | None,
        *,
        has_ended: bool = False,
    ) -> None:
        """Write the page.

        Args:
            progress: by policy.
            playing: episodes that are being played.
            seconds_left: estimate for all that is left; None if unknown.
            has_ended: the run is over, finished or not, and the page does not reload itself.

        Raises:
            WriteError: the page could not be written.
        """
        started = time.monotonic()
        text = self._template.render(
            title=self._title,
            begun=self._begun.strftime("%Y-%m-%d %H:%M"),
            written=datetime.now(UTC).strftime("%H:%M:%S"),
            every=round(EVERY_S),
            has_ended=has_ended,
            progress=progress,
            done=sum(each.done for each in progress.values()),
            total=sum(each.total for each in progress.values()),
            failures=sum(each.failures for each in progress.values()),
            playing=playing,
            left=None if seconds_left is None else _duration(seconds_left),
            latest=[
                (row, goal, outcome_of(row), SIGNS[outcome_of(row)]) for row, goal in self._latest
            ],
            human=human_bytes,
        )
        write_atomic(self._path, text)
        ended = time.monotonic()
        self._due = ended + max(EVERY_S, (ended - started) / _SHARE)


def _duration(seconds: float) -> str:
    """Return `40 seconds`, `12 minutes` or `3 h 20 min`."""
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    minutes = round(seconds / 60)
    return f"{minutes} minutes" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
