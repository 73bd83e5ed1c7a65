"""Agents that do not look, or do not remember, solve no task on the embedded sites."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from agentkv.agent import Agent
from agentkv.models.scripted import RandomClicks, SolutionStuck
from agentkv_env.actions import ActionError
from agentkv_env.browser import Browser
from agentkv_env.serialize import serialize
from agentkv_env.sites.server import Server
from agentkv_env.sites.world import DEFAULT_SEED, World
from agentkv_lab.reach import uses
from agentkv_tasks.addresses import Addresses
from agentkv_tasks.evaluate import Final, evaluate
from agentkv_tasks.suites import Suite, load_suite
from agentkv_tasks.task import Task
from tests.tasks.suite_checks import play
from tests.tasks.text_browser import ActionRefused, NeedsScript
from tests.tasks.text_checks import UnknownScript
from tests.tasks.text_walk import walk

OTHER_SEED = 4711


SUITES = ("vwa75", "vwa-long", "vwa-unseen")


@pytest.fixture(scope="module", params=SUITES)
def suite(request: pytest.FixtureRequest) -> Suite:
    return load_suite(request.param, world_seed=DEFAULT_SEED)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(World(DEFAULT_SEED)) as server:
        yield server


def one_of_each_template(suite: Suite) -> list[Task]:
    return list({task.intent_template_id: task for task in suite.tasks}.values())


TEMPLATES = pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
"""One template in so many is tried."""


def is_solved_by(task: Task, steps: Sequence[str], server: Server) -> bool:
    try:
        return not walk(task.model_copy(update={"solution": tuple(steps)}), server).reason
    except (SolutionStuck, ActionRefused, ActionError, NeedsScript, UnknownScript):
        return False


@TEMPLATES
def test_the_solution_of_another_task_with_the_same_start_scores_nothing(
    suite: Suite, server: Server, every: int
) -> None:
    solved = []
    for task in one_of_each_template(suite)[::every]:
        beside = [other for other in suite.tasks if other.start_url == task.start_url]
        other = beside[(beside.index(task) + 1) % len(beside)]
        if other is not task and is_solved_by(task, other.solution, server):
            solved.append((task.intent, other.intent))
    assert solved == []


@TEMPLATES
def test_the_solution_of_the_same_template_with_other_values_scores_nothing(
    suite: Suite, server: Server, every: int
) -> None:
    solved = [
        task.intent
        for task in one_of_each_template(suite)[::every]
        for other in suite.tasks
        if other.intent_template_id == task.intent_template_id
        and other is not task
        and is_solved_by(task, other.solution, server)
    ]
    assert solved == []


def test_a_solution_of_vwa_long_from_another_world_scores_nothing(server: Server) -> None:
    here = load_suite("vwa-long", world_seed=DEFAULT_SEED).tasks
    elsewhere = load_suite("vwa-long", world_seed=OTHER_SEED).tasks
    solved = [
        task.intent
        for task, other in list(zip(here, elsewhere, strict=True))[::2]
        if is_solved_by(task, other.solution, server)
    ]
    assert solved == []


@pytest.mark.slow
def test_a_solution_of_vwa_long_that_forgets_what_left_the_screen_scores_nothing(
    server: Server,
) -> None:
    solved = []
    for task in load_suite("vwa-long", world_seed=DEFAULT_SEED).tasks:
        result = walk(task, server)
        pages = [serialize(page).text for page in result.pages]
        steps = list(task.solution)
        for use in uses(task.needs, pages, result.replies):
            if use.distance > 0:
                for number in range(use.step, len(steps)):
                    steps[number] = steps[number].replace(use.text, "forgotten")
        assert steps != list(task.solution), task.intent
        solved += [task.intent] if is_solved_by(task, steps, server) else []
    assert solved == []


IN_A_BROWSER = pytest.mark.parametrize(
    "suite",
    ["vwa75", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in SUITES[1:])],
    indirect=True,
)
"""The text browser plays all suites: `test_solutions.py` stops at once there as well."""


@pytest.mark.slow
@pytest.mark.browser
@IN_A_BROWSER
def test_stopping_immediately_solves_no_task(suite: Suite, tmp_path: Path) -> None:
    rows = play(suite, "stop", tmp_path, only=range(0, 75, 3))
    assert {row.task_id for row in rows if row.score != 0.0} == set()
    assert {row.status for row in rows} == {"stopped"}


@pytest.mark.slow
@pytest.mark.browser
@IN_A_BROWSER
def test_random_clicks_solve_no_task(suite: Suite, server: Server) -> None:
    solved = []
    addresses = Addresses(server.placeholders, server.addresses)
    with Browser.launch() as browser:
        for start in dict.fromkeys(task.start_url for task in suite.tasks):
            server.reset()
            with browser.session(hosts=server.hosts, addresses=server.addresses) as session:
                session.open(*(addresses.fill(url) for url in start.split(" |AND| ")))
                episode = Agent(RandomClicks()).run(session, "", max_steps=10)
                # Checks open tabs and the session follows them, so the final page is kept here.
                final_page = session.page
                final = Final.of(final_page, episode.answer, addresses)
                for task in suite.tasks:
                    if task.start_url == start:
                        score = evaluate(task, final, page=final_page, addresses=addresses)
                        solved += [task.intent] if score.value else []
    assert solved == []
