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
        needs: names of what an episode reserves while it is played, such as sites, by the key of
            its job. Two episodes never reserve the same at a time.
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
        self._reserved: dict[str, frozenset[str]] = {}
        """Names that the current episodes reserve, by the key of their job."""

    @property
    def is_over(self) -> bool:
        """True if no job waits, and none can follow but those that are played again."""
        return not self._jobs and not self._is_open

    def num_workers(self, most: int) -> int:
        """Return how many of `most` workers the jobs keep busy."""
        return most if self._is_open else min(most, len(self._jobs))

    def add(self, job: Job, attempts: tuple[Attempt, ...] = ()) -> None:
        """Put a job at the end, and release what its last attempt reserved.

        Args:
            attempts: earlier attempts at its episode, in order.
        """
        self._reserved.pop(job.key, None)
        if attempts:
            self._attempts[job.key] = attempts
        self._jobs.append(job)

    def take(self) -> Job | None:
        """Remove and return the first job whose episode can be played now; None if there is none.

        The job reserves what it needs until `add` or `end`.
        """
        taken = frozenset[str]().union(*self._reserved.values())
        for i, job in enumerate(self._jobs):
            needed = self._needs.get(job.key, frozenset())
            if taken.isdisjoint(needed):
                self._reserved[job.key] = needed
                return self._jobs.pop(i)
        return None

    def attempts_at(self, job: Job) -> tuple[Attempt, ...]:
        """Return the failed attempts at a job's episode, in order."""
        return self._attempts.get(job.key, ())

    def end(self, job: Job) -> None:
        """Forget an episode that has its row, and release what it reserved."""
        self._reserved.pop(job.key, None)
        self._attempts.pop(job.key, None)

    def close(self) -> None:
        """Let the scheduler end once the jobs that wait are played."""
        self._is_open = False
