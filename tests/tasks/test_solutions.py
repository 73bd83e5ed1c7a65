"""Solutions of all tasks, run in a text browser in five other worlds and scored, within seconds.

The text browser sees neither layout nor scripts; `test_vwa75.py` plays solutions in a real browser.
"""

from collections.abc import Iterator

import pytest

from agentkv.models.scripted import SolutionStuck
from agentkv_env.actions import ActionError
from agentkv_env.sites.server import Server
from agentkv_env.sites.world import World
from agentkv_tasks.suites import SUITES
from tests.tasks.text_browser import ActionRefused, NeedsScript
from tests.tasks.text_checks import UnknownScript
from tests.tasks.text_walk import walk

SEEDS = (31, 134, 217, 4711, 90210)

WALKED = sorted(SUITES.keys() - {"vwa75-reworded", "vwa-horizon", "miniwob"})
"""The suites on the embedded sites with solutions of their own; MiniWoB++'s pages are scripts."""
MAX_UNWALKED = 8
"""Maximum number of tasks per suite that need JavaScript, which only a real browser runs."""
EVERY = {"vwa-long": 5, "vwa75": 2}
"""In the first world one task in so many is played; the slow tests play all in the second."""
CASES = [
    pytest.param(seed, suite, marks=marks)
    for suite in WALKED
    for seed, marks in (
        (SEEDS[0], ()),
        (SEEDS[1], pytest.mark.slow),
        # The long tasks take a quarter of a minute per world.
        *((seed, pytest.mark.exhaustive) for seed in SEEDS[2:] if suite != "vwa-long"),
    )
]


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(World(request.param)) as server:
        yield server


@pytest.mark.parametrize(("server", "suite"), CASES, indirect=["server"])
def test_every_solution_succeeds_in_other_worlds(suite: str, server: Server) -> None:
    failed: dict[str, str] = {}
    unwalked: dict[str, str] = {}
    tasks = SUITES[suite].tasks(server.world)
    if server.world.seed == SEEDS[0]:
        tasks = tasks[:: EVERY.get(suite, 1)]
    for task in tasks:
        name = f"{task.task_id} {task.intent[:60]}"
        try:
            reason = walk(task, server).reason
        except (NeedsScript, UnknownScript) as error:
            unwalked[name] = str(error)
            continue
        except (SolutionStuck, ActionRefused, ActionError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
        if reason:
            failed[name] = reason
    assert failed == {}
    assert len(unwalked) <= MAX_UNWALKED, unwalked


@pytest.mark.parametrize(("server", "suite"), CASES, indirect=["server"])
def test_stopping_at_once_solves_no_task(suite: str, server: Server) -> None:
    for task in SUITES[suite].tasks(server.world):
        stopped = task.model_copy(update={"solution": ("stop []",)})
        assert walk(stopped, server).reason, task.intent
