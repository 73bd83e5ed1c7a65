"""Runs of suites in a real browser with a scripted model, and what their images show."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from agentkv.models.scripted import Solution
from agentkv_env.actions import extract, parse
from agentkv_env.browser import Browser
from agentkv_env.ocr import Ocr, default_cache
from agentkv_env.page import Page
from agentkv_env.serialize import neutralize
from agentkv_env.sites.server import Server
from agentkv_env.sites.world import World
from agentkv_tasks.addresses import Addresses
from agentkv_tasks.results import Results, Row
from agentkv_tasks.run.plan import Job, make_plan
from agentkv_tasks.run.scheduler import run_jobs
from agentkv_tasks.run.worker import Stepped
from agentkv_tasks.settings import RunSettings
from agentkv_tasks.suites import Suite
from agentkv_tasks.task import Task
from tests.tasks.runs import play as play_here


class NoDisplay:
    """A display that ignores all events."""

    def started(self, job: Job) -> None: ...

    def stepped(self, job: Job, step: Stepped) -> None: ...
    def retried(self, job: Job, row: Row) -> None: ...

    def finished(self, job: Job, row: Row) -> None: ...

    def preparing(self, what: str) -> None: ...

    def tick(self) -> None: ...


def play(suite: Suite, model: str, out: Path, only: Collection[int] | None = None) -> list[Row]:
    """Run every task of `suite` once, or the tasks with the ids `only`."""
    settings = RunSettings.read(
        model=model, policies=("full",), out=out, screenshots=False, workers=2
    )
    plan = make_plan(settings, suite, suite.tasks, sites={}, threads=1)
    jobs = [job for job in plan.jobs if only is None or job.task.task_id in only]
    if len(jobs) < 5:  # a worker takes seconds to start
        return play_here(plan, jobs)
    with Results(out / "results.jsonl") as results:
        run_jobs(plan, results, NoDisplay(), jobs=jobs)
        return sorted(results.rows, key=lambda row: row.task_id)


def unsolved_by_solutions(suite: Suite, out: Path, every: int = 1) -> dict[int, str]:
    """Return why tasks score less than 1 in a browser with their own solutions, by task id.

    One task in `every` is played.
    """
    only = [task.task_id for task in suite.tasks[::every]]
    return {
        row.task_id: row.reason or row.error or row.status
        for row in play(suite, "solution", out, only)
        if row.score != 1.0 or row.status != "stopped"
    }


def not_only_in_images(suite: Suite) -> list[str]:
    """Return what is wrong with the image texts that tasks turn on.

    OCR must find each of them, and no page may show it in another way before.
    """
    wrong = []
    ocr = Ocr(default_cache())
    with Server(World(suite.world_seed)) as server, Browser.launch() as browser:
        for task in (task for task in suite.tasks if task.reads_image):
            wanted = neutralize(task.turns_on).lower()
            was_read = False
            with _walk(task, browser, server, ocr) as pages:
                for page in pages:
                    for node in page.nodes:
                        holds = wanted in neutralize(f"{node.name} {node.value}").lower()
                        was_read |= holds and node.kind == "ocr"
                        if holds and not was_read:
                            wrong.append(f"{task.task_id}: {page.url} shows {wanted!r} as text")
            if not was_read:
                wrong.append(f"{task.task_id}: OCR never found {wanted!r}")
    return wrong


@contextmanager
def _walk(task: Task, browser: Browser, server: Server, ocr: Ocr) -> Iterator[Iterator[Page]]:
    """Open a session whose pages, as the agent sees them, follow the solution of `task`."""
    server.reset()
    addresses = Addresses(server.placeholders, server.addresses)
    with browser.session(hosts=server.hosts, addresses=server.addresses, ocr=ocr) as session:
        session.open(*(addresses.fill(url) for url in task.start_urls))
        steps = [addresses.fill(line) for line in task.solution]

        def pages() -> Iterator[Page]:
            conversation = Solution(steps).begin(task.intent)
            for _ in steps:
                page = session.observe()
                yield page
                action = parse(extract(conversation.reply(page).text))
                if action.kind != "stop":
                    session.act(action)

        yield pages()
