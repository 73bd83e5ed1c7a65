"""vwa75: its composition, and that solutions, and only solutions, solve its tasks."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

import pytest

from agentkv.agent import Agent
from agentkv.config import read_settings
from agentkv.models.scripted import RandomClicks, Solution, SolutionStuck
from agentkv_env.actions import ActionError, extract, parse
from agentkv_env.browser import Browser
from agentkv_env.ocr import Ocr, default_cache
from agentkv_env.page import Page
from agentkv_env.serialize import neutralize
from agentkv_env.sites.server import Server
from agentkv_env.sites.world import DEFAULT_SEED, World
from agentkv_tasks import vwa75
from agentkv_tasks.addresses import Addresses
from agentkv_tasks.evaluate import Final, evaluate
from agentkv_tasks.results import Results, Row
from agentkv_tasks.run.plan import Job, make_plan
from agentkv_tasks.run.scheduler import run_jobs
from agentkv_tasks.run.worker import Stepped
from agentkv_tasks.suites import Suite, load_suite
from agentkv_tasks.task import Task
from tests.tasks.text_browser import NeedsScript, Refused
from tests.tasks.text_checks import UnknownScript
from tests.tasks.text_walk import walk as walk_text

OTHER_SEED = 4711


@pytest.fixture(scope="module")
def suite() -> Suite:
    return load_suite("vwa75", world_seed=DEFAULT_SEED)


class Silent:
    """A display that shows nothing."""

    def started(self, job: Job) -> None: ...

    def stepped(self, job: Job, step: Stepped) -> None: ...

    def finished(self, job: Job, row: Row) -> None: ...

    def tick(self) -> None: ...


def play(suite: Suite, model: str, out: Path) -> list[Row]:
    """Run every task of `suite` once, with two workers."""
    settings = read_settings(model=model, policies=("full",), out=out, screenshots=False, workers=2)
    plan = make_plan(settings, suite, sites={}, scoring="compat", step_timeout_s=300, threads=1)
    with Results(out / "results.jsonl") as results:
        run_jobs(plan, results, Silent(), jobs=plan.jobs)
        return sorted(results.rows, key=lambda row: row.task_id)


def test_it_has_75_tasks_in_four_categories(suite: Suite) -> None:
    assert [task.task_id for task in suite.tasks] == list(range(75))
    assert Counter(task.category for task in suite.tasks) == vwa75.QUOTAS


def test_at_least_twelve_tasks_need_text_inside_an_image(suite: Suite) -> None:
    assert sum(task.reads_image for task in suite.tasks) >= 12


def test_solutions_have_from_two_to_over_twenty_steps(suite: Suite) -> None:
    lengths = [len(task.solution) for task in suite.tasks]
    assert min(lengths) <= 3 and sum(length > 20 for length in lengths) >= 4
    assert median(lengths) >= 8
    assert all(len(task.solution) <= task.max_steps for task in suite.tasks)


def test_needed_texts_are_neither_in_the_goal_nor_short_numbers(suite: Suite) -> None:
    for task in suite.tasks:
        given = [text for text in task.needs if text.lower() in task.intent.lower()]
        assert given == [], task.intent
        assert not [text for text in task.needs if re.fullmatch(r"\d?\d", text)], task.intent


def test_eight_tasks_are_impossible_and_name_the_expected_answer(suite: Suite) -> None:
    given_up = [task for task in suite.tasks if task.solution[-1] == "stop [N/A]"]
    assert len(given_up) == 8
    for task in given_up:
        assert "Answer N/A if " in task.intent or "answer N/A if " in task.intent
        wanted = task.eval.reference_answers
        assert wanted is not None and wanted.exact_match == "N/A"
        assert len(task.eval.eval_types) == 2, "giving up on any page would succeed"


def test_goals_are_distinct_and_all_solutions_stop(suite: Suite) -> None:
    assert len({task.intent for task in suite.tasks}) == 75
    assert all(task.solution[-1].startswith("stop [") for task in suite.tasks)


def test_the_seed_determines_the_suite(suite: Suite) -> None:
    assert load_suite("vwa75", world_seed=DEFAULT_SEED).digest == suite.digest
    other = load_suite("vwa75", world_seed=OTHER_SEED)
    assert Counter(task.category for task in other.tasks) == vwa75.QUOTAS
    shared = {task.intent for task in suite.tasks} & {task.intent for task in other.tasks}
    assert len(shared) < 15


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("seed", [DEFAULT_SEED])
def test_every_task_is_solved_by_its_own_solution(seed: int, tmp_path: Path) -> None:
    rows = play(load_suite("vwa75", world_seed=seed), "solution", tmp_path)
    unsolved = {row.task_id: row.reason or row.error for row in rows if row.score != 1.0}
    assert unsolved == {}
    assert {row.status for row in rows} == {"stopped"}


@pytest.mark.slow
@pytest.mark.browser
def test_an_agent_that_stops_at_once_solves_nothing(suite: Suite, tmp_path: Path) -> None:
    rows = play(suite, "stop", tmp_path)
    assert {row.task_id for row in rows if row.score != 0.0} == set()
    assert {row.status for row in rows} == {"stopped"}


def by_start(suite: Suite) -> Mapping[str, list[Task]]:
    found: dict[str, list[Task]] = {}
    for task in suite.tasks:
        found.setdefault(task.start_url, []).append(task)
    return found


def test_the_solution_of_another_task_with_the_same_start_solves_nothing(suite: Suite) -> None:
    solved = []
    with Server(World(DEFAULT_SEED)) as server:
        for tasks in by_start(suite).values():
            for index, task in enumerate(tasks):
                for other in (tasks[(index + step) % len(tasks)] for step in (1, 2)):
                    if other is task:
                        continue
                    mistaken = task.model_copy(update={"solution": other.solution})
                    with suppress(SolutionStuck, Refused, ActionError, NeedsScript, UnknownScript):
                        if not walk_text(mistaken, server).reason:
                            solved.append((task.intent, other.intent))
    assert solved == []


@pytest.mark.slow
@pytest.mark.browser
def test_random_clicks_solve_nothing(suite: Suite) -> None:
    solved = []
    with Server(World(DEFAULT_SEED)) as server, Browser.launch() as browser:
        addresses = Addresses(server.placeholders, server.addresses)
        for start, tasks in by_start(suite).items():
            server.reset()
            with browser.session(hosts=server.hosts, addresses=server.addresses) as session:
                session.open(*(addresses.fill(url) for url in start.split(" |AND| ")))
                done = Agent(RandomClicks()).run(session, "", max_steps=10)
                ended = session.page  # checks open tabs, which the session would follow
                final = Final.of(ended, done.answer, addresses)
                for task in tasks:
                    score = evaluate(task, final, page=ended, addresses=addresses)
                    solved += [task.intent] if score.value else []
    assert solved == []


@contextmanager
def walk(task: Task, browser: Browser, server: Server, ocr: Ocr) -> Iterator[Iterator[Page]]:
    """Yield the pages of the solution of `task`, as the agent sees them."""
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


@pytest.mark.slow
@pytest.mark.browser
def test_only_ocr_reads_the_text_that_an_image_task_needs(
    suite: Suite,
) -> None:
    ocr = Ocr(default_cache())
    tasks = [task for task in suite.tasks if task.reads_image]
    with Server(World(DEFAULT_SEED)) as server, Browser.launch() as browser:
        for task in tasks:
            wanted = neutralize(task.turns_on).lower()
            was_read = False
            with walk(task, browser, server, ocr) as pages:
                for page in pages:
                    for node in page.nodes:
                        holds = wanted in neutralize(f"{node.name} {node.value}").lower()
                        was_read |= holds and node.kind == "ocr"
                        assert was_read or node.kind == "ocr" or not holds, (
                            f"task {task.task_id}: {page.url} shows {wanted!r} outside the image"
                        )
            assert was_read, f"task {task.task_id}: OCR never read {wanted!r}"
