"""vwa-long: its composition, its memory distances, and two solutions in a real browser."""

from collections import Counter
from pathlib import Path

import pytest

from agentkv.config import read_settings
from agentkv_env.serialize import serialize
from agentkv_env.sites.server import Server
from agentkv_env.sites.world import DEFAULT_SEED, World
from agentkv_tasks import vwa_long
from agentkv_tasks.reach import uses
from agentkv_tasks.results import Results, Row
from agentkv_tasks.run.plan import Job, make_plan
from agentkv_tasks.run.scheduler import run_jobs
from agentkv_tasks.run.worker import Stepped
from agentkv_tasks.suites import Suite, load_suite
from tests.tasks.text_walk import walk

OTHER_SEED = 4711
REPLAYED = (4, 13)
"""A task on one site, and a task that alternates between two sites."""
CHARACTERS_PER_TOKEN = 3.2


@pytest.fixture(scope="module")
def suite() -> Suite:
    return load_suite("vwa-long", world_seed=DEFAULT_SEED)


def test_it_has_15_tasks_of_25_to_60_steps(suite: Suite) -> None:
    assert [task.task_id for task in suite.tasks] == list(range(15))
    assert Counter(task.category for task in suite.tasks) == vwa_long.QUOTAS
    assert all(25 <= len(task.solution) <= 60 for task in suite.tasks)
    assert all(task.max_steps >= len(task.solution) + 30 for task in suite.tasks)
    assert all(task.solution[-1].startswith("stop [") for task in suite.tasks)


def test_other_worlds_have_other_goals(suite: Suite) -> None:
    assert load_suite("vwa-long", world_seed=DEFAULT_SEED).digest == suite.digest
    other = load_suite("vwa-long", world_seed=OTHER_SEED)
    assert not {task.intent for task in suite.tasks} & {task.intent for task in other.tasks}


def test_every_task_needs_a_text_from_more_than_2000_tokens_earlier(suite: Suite) -> None:
    with Server(World(DEFAULT_SEED)) as server:
        for task in suite.tasks:
            assert reach(task, server) > 2000 * CHARACTERS_PER_TOKEN, task.intent


def reach(task, server) -> int:
    """Return the characters on the pages between the earliest fact and its use, without images."""
    walked = walk(task, server)
    pages = [serialize(page, budget=10**6, count=len).text for page in walked.pages]
    found = list(uses(task.needs, pages, walked.replies))
    assert task.reads_image or all(use.source is not None for use in found), task.intent
    return max(use.distance for use in found)


class Silent:
    """A display that shows nothing."""

    def started(self, job: Job) -> None: ...

    def stepped(self, job: Job, step: Stepped) -> None: ...

    def finished(self, job: Job, row: Row) -> None: ...

    def tick(self) -> None: ...


@pytest.mark.browser
def test_two_tasks_are_solved_in_a_real_browser(suite: Suite, tmp_path: Path) -> None:
    settings = read_settings(
        model="solution", policies=("full",), out=tmp_path, screenshots=False, workers=2
    )
    plan = make_plan(settings, suite, sites={}, scoring="compat", step_timeout_s=300, threads=1)
    jobs = [job for job in plan.jobs if job.task.task_id in REPLAYED]
    with Results(tmp_path / "results.jsonl") as results:
        run_jobs(plan, results, Silent(), jobs=jobs)
        rows = list(results.rows)
    assert {row.task_id: row.score for row in rows} == dict.fromkeys(REPLAYED, 1.0)
