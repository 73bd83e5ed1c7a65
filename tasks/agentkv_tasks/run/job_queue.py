"""Episodes of a run that wait for a worker."""

from collections.abc import Iterable, Mapping

from agentkv_tasks.results import Attempt
from agentkv_tasks.run.plan import Job


class JobQueue:
    """Episodes that wait for a worker, and the failed attempts at those that are played again.

    Any thread may add jobs; the scheduler alone takes them.

    Args:
        jobs: the first jobs.
        is_open: more jobs may follow until `close`.
        needs: what an episode holds while it is played, such as sites that it changes, by the key
            of its job; no two episodes hold the same at a time.
    """

    def __init__(
        self,
        jobs: Iterable[Job] = (),
        *,
        is_open: bool = False,
        needs: Mapping[str, frozenset[str]] | None = None,
    ) -> None:
        self._jobs = list(jobs)
        self._attempts: dict[str, tuple[Attempt, ...]] = {}
        self._is_open = is_open
        self._needs = needs or {}
        self._held: dict[str, frozenset[str]] = {}
        """What the episodes that are played hold, by key."""

    @property
    def is_over(self) -> bool:
        """True if no job waits, and none can follow but those that are played again."""
        return not self._jobs and not self._is_open

    def num_workers(self, most: int) -> int:
        """Return how many of `most` workers the jobs keep busy."""
        return most if self._is_open else min(most, len(self._jobs))

    def add(self, job: Job, attempts: tuple[Attempt, ...] = ()) -> None:
        """Put a job at the end; what its last attempt held is free.

        Args:
            attempts: earlier attempts at its episode, in order.
        """
        self._held.pop(job.key, None)
        if attempts:
            self._attempts[job.key] = attempts
        self._jobs.append(job)

    def take(self) -> Job | None:
        """Remove and return the first job whose episode can be played now; None if there is none.

        It holds what it needs until it is added again or over.
        """
        taken = frozenset[str]().union(*self._held.values())
        for i, job in enumerate(self._jobs):
            needed = self._needs.get(job.key, frozenset())
            if taken.isdisjoint(needed):
                self._held[job.key] = needed
                return self._jobs.pop(i)
        return None

    def attempts_at(self, job: Job) -> tuple[Attempt, ...]:
        """Return the failed attempts at a job's episode, in order."""
        return self._attempts.get(job.key, ())

    def end(self, job: Job) -> None:
        """Forget an episode that has its row, and free what it held."""
        self._held.pop(job.key, None)
        self._attempts.pop(job.key, None)

    def close(self) -> None:
        """Let the scheduler end once the jobs that wait are played."""
        self._is_open = False
