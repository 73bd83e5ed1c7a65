"""Checks that suites share: solutions succeed, and agents that do not look at the task fail."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from agentkv.agent import Agent
from agentkv.config import read_settings
from agentkv.models.scripted import RandomClicks, Solution, SolutionStuck
from agentkv_env.actions import ActionError, extract, parse
from agentkv_env.browser import Browser
from agentkv_env.ocr import Ocr, default_cache
from agentkv_env.page import Page
from agentkv_env.serialize import neutralize
from agentkv_env.sites.server import Server
from agentkv_env.sites.world import World
from agentkv_tasks.addresses import Addresses
from agentkv_tasks.evaluate import Final, evaluate
from agentkv_tasks.results import Results, Row
from agentkv_tasks.run.plan import Job, make_plan
from agentkv_tasks.run.scheduler import run_jobs
from agentkv_tasks.run.worker import Stepped
from agentkv_tasks.suites import Suite
from agentkv_tasks.task import Task
from tests.tasks.text_browser import ActionRefused, NeedsScript
from tests.tasks.text_checks import UnknownScript
from tests.tasks.text_walk import walk as walk_text


class NoDisplay:
    """A display that ignores all events."""

    def started(self, job: Job) -> None: ...

    def stepped(self, job: Job, step: Stepped) -> None: ...

    def finished(self, job: Job, row: Row) -> None: ...

    def tick(self) -> None: ...


def play(suite: Suite, model: str, out: Path) -> list[Row]:
    """Run every task of `suite` once with two workers."""
    settings = read_settings(model=model, policies=("full",), out=out, screenshots=False, workers=2)
    plan = make_plan(settings, suite, sites={}, scoring="compat", step_timeout_s=300, threads=1)
    with Results(out / "results.jsonl") as results:
        run_jobs(plan, results, NoDisplay(), jobs=plan.jobs)
        return sorted(results.rows, key=lambda row: row.task_id)


def unsolved_by_solutions(suite: Suite, out: Path) -> dict[int, str]:
    """Return why tasks score less than 1 in a browser with their own solutions, by task id."""
    return {
        row.task_id: row.reason or row.error or row.status
        for row in play(suite, "solution", out)
        if row.score != 1.0 or row.status != "stopped"
    }


def solved_by_stopping(suite: Suite, out: Path) -> set[int]:
    """Return the tasks that an agent solves by stopping at once."""
    rows = play(suite, "stop", out)
    assert {row.status for row in rows} == {"stopped"}
    return {row.task_id for row in rows if row.score != 0.0}


def group_by_start(suite: Suite) -> Mapping[str, list[Task]]:
    """Return the tasks by the page where they start."""
    groups: dict[str, list[Task]] = {}
    for task in suite.tasks:
        groups.setdefault(task.start_url, []).append(task)
    return groups


def solved_by_other_solutions(suite: Suite) -> list[tuple[str, str]]:
    """Return pairs of goals, of which the first task is solved by the second task's solution.

    The two tasks that follow with the same start are tried for each task, in the text browser.
    """
    solved = []
    with Server(World(suite.world_seed)) as server:
        for tasks in group_by_start(suite).values():
            for index, task in enumerate(tasks):
                for other in (tasks[(index + step) % len(tasks)] for step in (1, 2)):
                    if other is task:
                        continue
                    swapped = task.model_copy(update={"solution": other.solution})
                    with suppress(
                        SolutionStuck, ActionRefused, ActionError, NeedsScript, UnknownScript
                    ):
                        if not walk_text(swapped, server).reason:
                            solved.append((task.intent, other.intent))
    return solved


def solved_by_random_clicks(suite: Suite) -> list[str]:
    """Return the goals that ten random clicks from the start page achieve, in a browser."""
    solved = []
    with Server(World(suite.world_seed)) as server, Browser.launch() as browser:
        addresses = Addresses(server.placeholders, server.addresses)
        for start, tasks in group_by_start(suite).items():
            server.reset()
            with browser.session(hosts=server.hosts, addresses=server.addresses) as session:
                session.open(*(addresses.fill(url) for url in start.split(" |AND| ")))
                episode = Agent(RandomClicks()).run(session, "", max_steps=10)
                # Checks open tabs and the session follows them, so the final page is kept here.
                final_page = session.page
                final = Final.of(final_page, episode.answer, addresses)
                for task in tasks:
                    score = evaluate(task, final, page=final_page, addresses=addresses)
                    solved += [task.intent] if score.value else []
    return solved


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
