"""Episodes of a run that wait for a worker."""

from collections import deque
from collections.abc import Iterable

from agentkv_tasks.results import Attempt
from agentkv_tasks.run.plan import Job


class JobQueue:
    """Episodes that wait for a worker, and the failed attempts at those that are played again.

    Any thread may add jobs; the scheduler alone takes them.

    Args:
        jobs: the first jobs.
        is_open: more jobs may follow until `close`.
    """

    def __init__(self, jobs: Iterable[Job] = (), *, is_open: bool = False) -> None:
        self._jobs = deque(jobs)
        self._attempts: dict[str, tuple[Attempt, ...]] = {}
        self._is_open = is_open

    @property
    def is_over(self) -> bool:
        """True if no job waits, and none can follow but those that are played again."""
        return not self._jobs and not self._is_open

    @property
    def has_job(self) -> bool:
        """True if a job waits."""
        return bool(self._jobs)

    def num_workers(self, most: int) -> int:
        """Return how many of `most` workers the jobs keep busy."""
        return most if self._is_open else min(most, len(self._jobs))

    def add(self, job: Job, attempts: tuple[Attempt, ...] = ()) -> None:
        """Put a job at the end.

        Args:
            attempts: earlier attempts at its episode, in order.
        """
        if attempts:
            self._attempts[job.key] = attempts
        self._jobs.append(job)

    def take(self) -> Job:
        """Remove and return the first job."""
        return self._jobs.popleft()

    def attempts_at(self, job: Job) -> tuple[Attempt, ...]:
        """Return the failed attempts at a job's episode, in order."""
        return self._attempts.get(job.key, ())

    def forget(self, job: Job) -> None:
        """Drop the failed attempts at an episode that has its row."""
        self._attempts.pop(job.key, None)

    def close(self) -> None:
        """Let the scheduler end once the jobs that wait are played."""
        self._is_open = False
