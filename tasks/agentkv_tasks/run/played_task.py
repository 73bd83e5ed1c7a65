"""A task in a browser session: its pages and goal at the beginning, its score at the end."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import StorageState

from agentkv_env.browser import Browser
from agentkv_env.ocr import Ocr
from agentkv_env.session import Session
from agentkv_tasks.addresses import Addresses
from agentkv_tasks.evaluate import Final, Score, evaluate
from agentkv_tasks.goal import goal_of
from agentkv_tasks.task import Task

_EVALUATION_S = 60.0
"""Time limit of reading a goal and of scoring, which both run scripts of pages."""


@contextmanager
def begun(
    task: Task,
    browser: Browser,
    addresses: Addresses,
    *,
    ocr: Ocr | None,
    log_in: StorageState | None,
    **options: Any,
) -> Iterator[tuple[Session, str]]:
    """Open the start pages of a task; yield the session and the task's goal.

    Args:
        log_in: cookies and storage with which the task begins.
        options: further ones of `Browser.session`.

    Raises:
        ActionFailed: a start page did not load.
        BrowserGone: the browser died.
    """
    with browser.session(
        hosts=addresses.hosts(*task.start_urls),
        addresses=dict(addresses.origins),
        viewport=task.window,
        ocr=ocr,
        storage_state=log_in,
        **options,
    ) as session:
        session.open(*(addresses.fill(url) for url in task.start_urls))
        with browser.watchdog.limit(_EVALUATION_S):
            goal = goal_of(task, session.page)
        yield session, goal


def score_of(
    task: Task,
    answer: str,
    session: Session,
    browser: Browser,
    addresses: Addresses,
    **options: Any,
) -> Score:
    """Score a task by the agent's answer and the final state of its session.

    Args:
        options: further ones of `evaluate`.

    Raises:
        CannotScore: an evaluator cannot be computed here.
        BrowserGone: the browser died, or a check ran out of time.
    """
    with browser.watchdog.limit(_EVALUATION_S):
        final = Final.of(session.page, answer, addresses)
        return evaluate(task, final, page=session.page, addresses=addresses, **options)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its class if it has none."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
