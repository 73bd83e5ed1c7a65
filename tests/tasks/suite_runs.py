"""Runs of a whole suite in a real browser, with a scripted model."""

from collections.abc import Collection
from pathlib import Path

from agentkv.config import read_settings
from agentkv_tasks.results import Results, Row
from agentkv_tasks.run.plan import Job, make_plan
from agentkv_tasks.run.scheduler import run_jobs
from agentkv_tasks.run.worker import Stepped
from agentkv_tasks.suites import Suite


class NoDisplay:
    """A display that ignores all events."""

    def started(self, job: Job) -> None: ...

    def stepped(self, job: Job, step: Stepped) -> None: ...

    def finished(self, job: Job, row: Row) -> None: ...

    def tick(self) -> None: ...


def play(suite: Suite, model: str, out: Path, only: Collection[int] | None = None) -> list[Row]:
    """Run every task of `suite` once with two workers, or the tasks with the ids `only`."""
    settings = read_settings(model=model, policies=("full",), out=out, screenshots=False, workers=2)
    plan = make_plan(settings, suite, sites={}, scoring="compat", step_timeout_s=300, threads=1)
    jobs = [job for job in plan.jobs if only is None or job.task.task_id in only]
    with Results(out / "results.jsonl") as results:
        run_jobs(plan, results, NoDisplay(), jobs=jobs)
        return sorted(results.rows, key=lambda row: row.task_id)
