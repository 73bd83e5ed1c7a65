"""Every solution walked without a screen in five fresh worlds, and scored: a minute for them all.

What looks or scripts decide is not seen here; `test_vwa75.py` plays solutions in a real browser.
"""

from collections.abc import Iterator

import pytest

from agentkv.models.scripted import Solution, SolutionStuck
from agentkv_env.actions import ActionError, extract, parse
from agentkv_env.sites.server import Server
from agentkv_env.sites.world import World
from agentkv_tasks.suites import SUITES
from agentkv_tasks.task import Task
from tests.tasks.text_browser import NeedsScript, Refused, TextBrowser
from tests.tasks.text_checks import UnknownScript, scored

SEEDS = (31, 134, 217, 4711, 90210)

MOST_UNWALKED = 8
"""So many tasks of a suite may need a page's JavaScript, which only a real browser runs."""


@pytest.fixture(scope="module", params=SEEDS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(World(request.param)) as server:
        yield server


@pytest.mark.parametrize("suite", sorted(SUITES))
def test_every_solution_scores_in_a_world_that_nobody_has_tried(suite: str, server: Server) -> None:
    failed: dict[str, str] = {}
    unwalked: dict[str, str] = {}
    for task in SUITES[suite].tasks(server.world):
        server.reset()
        name = f"{task.task_id} {task.intent[:60]}"
        try:
            reason = walked(task, server)
        except (NeedsScript, UnknownScript) as error:
            unwalked[name] = str(error)
            continue
        except (SolutionStuck, Refused, ActionError) as error:
            reason = str(error)
        if reason:
            failed[name] = reason
    assert failed == {}
    assert len(unwalked) <= MOST_UNWALKED, unwalked


def walked(task: Task, server: Server) -> str:
    """Why the solution of `task` does not score 1, or nothing."""
    browser = TextBrowser(server)
    try:
        browser.open(*task.start_urls)
        steps = [browser.addresses.fill(line) for line in task.solution]
        conversation = Solution(steps).begin(task.intent)
        for _ in steps:
            action = parse(extract(conversation.reply(browser.observe()).text))
            if action.kind == "stop":
                score = scored(task, browser, action.answer)
                return "" if score.value == 1.0 else score.reason or "scored less than 1"
            browser.act(action)
        return "the solution does not stop"
    finally:
        browser.close()


@pytest.mark.parametrize("suite", sorted(SUITES))
def test_stopping_at_once_scores_nothing(suite: str, server: Server) -> None:
    server.reset()
    for task in SUITES[suite].tasks(server.world):
        assert walked(task.model_copy(update={"solution": ("stop []",)}), server), task.intent
