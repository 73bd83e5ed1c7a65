"""Tests for the vwa75 suite: its composition, its solutions and its images."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import pytest

from agentkv.models.scripted import Solution
from agentkv_env.actions import extract, parse
from agentkv_env.browser import Browser
from agentkv_env.ocr import Ocr, default_cache
from agentkv_env.page import Page
from agentkv_env.serialize import neutralize
from agentkv_env.sites.server import Server
from agentkv_env.sites.world import DEFAULT_SEED, World
from agentkv_tasks import vwa75
from agentkv_tasks.addresses import Addresses
from agentkv_tasks.suites import Suite, load_suite
from agentkv_tasks.task import Task
from tests.tasks.suite_runs import play

OTHER_SEED = 4711


@pytest.fixture(scope="module")
def suite() -> Suite:
    return load_suite("vwa75", world_seed=DEFAULT_SEED)


def test_the_suite_has_75_tasks_in_four_categories(suite: Suite) -> None:
    assert [task.task_id for task in suite.tasks] == list(range(75))
    assert Counter(task.category for task in suite.tasks) == vwa75.QUOTAS


def test_at_least_twelve_tasks_depend_on_text_in_an_image(suite: Suite) -> None:
    assert sum(task.reads_image for task in suite.tasks) >= 12


def test_solutions_have_three_steps_to_over_twenty(suite: Suite) -> None:
    lengths = [len(task.solution) for task in suite.tasks]
    assert min(lengths) <= 3 and sum(length > 20 for length in lengths) >= 4
    assert median(lengths) >= 8
    assert all(len(task.solution) <= task.max_steps for task in suite.tasks)


def test_needed_facts_are_neither_in_the_goal_nor_short_numbers(suite: Suite) -> None:
    for task in suite.tasks:
        given = [text for text in task.needs if text.lower() in task.intent.lower()]
        assert given == [], task.intent
        assert not [text for text in task.needs if re.fullmatch(r"\d?\d", text)], task.intent


def test_eight_tasks_are_impossible_and_ask_for_n_a(suite: Suite) -> None:
    impossible = [task for task in suite.tasks if task.solution[-1] == "stop [N/A]"]
    assert len(impossible) == 8
    for task in impossible:
        assert "Answer N/A if " in task.intent or "answer N/A if " in task.intent
        wanted = task.eval.reference_answers
        assert wanted is not None and wanted.exact_match == "N/A"
        assert len(task.eval.eval_types) == 2, "giving up on any page would score"


def test_all_intents_differ_and_all_solutions_end_with_stop(suite: Suite) -> None:
    assert len({task.intent for task in suite.tasks}) == 75
    assert all(task.solution[-1].startswith("stop [") for task in suite.tasks)


def test_equal_seeds_give_equal_suites_and_different_seeds_different_ones(suite: Suite) -> None:
    assert load_suite("vwa75", world_seed=DEFAULT_SEED).digest == suite.digest
    other = load_suite("vwa75", world_seed=OTHER_SEED)
    assert Counter(task.category for task in other.tasks) == vwa75.QUOTAS
    shared = {task.intent for task in suite.tasks} & {task.intent for task in other.tasks}
    assert len(shared) < 15


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("seed", [DEFAULT_SEED])
def test_every_task_is_solved_by_its_solution(seed: int, tmp_path: Path) -> None:
    rows = play(load_suite("vwa75", world_seed=seed), "solution", tmp_path)
    unsolved = {row.task_id: row.reason or row.error for row in rows if row.score != 1.0}
    assert unsolved == {}
    assert {row.status for row in rows} == {"stopped"}


@contextmanager
def walk(task: Task, browser: Browser, server: Server, ocr: Ocr) -> Iterator[Iterator[Page]]:
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


@pytest.mark.slow
@pytest.mark.browser
def test_the_text_of_an_image_task_is_read_by_ocr_and_appears_nowhere_before(suite: Suite) -> None:
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
            assert was_read, f"task {task.task_id}: OCR never found {wanted!r}"
