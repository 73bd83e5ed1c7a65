"""A task in a browser session: its pages and goal at the beginning, its score at the end."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from playwright.sync_api import Page, StorageState

from agentkv_env.browser import Browser
from agentkv_env.named_secrets import Secret, names_in
from agentkv_env.ocr import Ocr
from agentkv_env.session import Session
from agentkv_tasks.addresses import Addresses
from agentkv_tasks.evaluate import NOBODY, Final, Graders, Score, evaluate
from agentkv_tasks.goal import goal_of
from agentkv_tasks.run.playwright_trace import PlaywrightTrace, recorded
from agentkv_tasks.task import Task

_EVALUATION_S = 60.0
"""Time limit of reading a goal and of scoring, which both run scripts of pages."""
JUDGED_S = 240.0
"""Time limit of scoring with a judge model."""


@contextmanager
def begun(
    task: Task,
    browser: Browser,
    addresses: Addresses,
    *,
    ocr: Ocr | None,
    log_in: StorageState | None,
    out_of_bounds: Collection[str] = (),
    secrets: Mapping[str, Secret] | None = None,
    playwright_trace: PlaywrightTrace | None = None,
    **options: Any,
) -> Iterator[tuple[Session, str]]:
    """Open the start pages of a task; yield the session and the task's goal.

    Args:
        log_in: cookies and storage with which the task begins.
        out_of_bounds: addresses of sites that the session may not visit.
        secrets: those that the agent may type, by name. Only those that the goal or the solution
            names are given to the session, because a session hides its secrets in pages.
        playwright_trace: where Playwright's own trace goes; None: nowhere.
        options: further ones of `Browser.session`.

    Raises:
        ActionFailed: a start page did not load.
        BrowserGone: the browser died.
        WriteError: Playwright's trace could not be written.
    """
    named = names_in(" ".join((task.intent, *task.solution)))
    opened = browser.session(
        hosts=addresses.hosts(*task.start_urls, without=out_of_bounds),
        addresses=dict(addresses.origins),
        viewport=task.window,
        ocr=ocr,
        storage_state=log_in,
        secrets={name: each for name, each in (secrets or {}).items() if name in named},
        **options,
    )
    with opened as session, recorded(session, browser, playwright_trace):
        session.open(*(addresses.fill(url) for url in task.start_urls))
        if task.intent_element:
            session.dismiss_dialogs()  # the page would not answer
        with browser.watchdog.limit(_EVALUATION_S):
            goal = goal_of(task, session.page)
        yield session, goal


@dataclass(frozen=True, slots=True)
class EpisodeEnd:
    """The end of an episode, captured before the first check: checks open tabs of their own in the
    same context, and the session would take one of those for the agent's."""

    page: Page
    """The agent's last tab."""
    final: Final

    @classmethod
    def of(
        cls, session: Session, answer: str, browser: Browser, addresses: Addresses
    ) -> "EpisodeEnd":
        """Capture the end of a session. A dialog that is still open is dismissed: no check could
        read the page.

        Raises:
            BrowserGone: the browser died, or does not answer.
        """
        session.dismiss_dialogs()
        with browser.watchdog.limit(_EVALUATION_S):
            page = session.page
            return cls(page, Final.of(page, answer, addresses))


def score_of(
    task: Task,
    end: EpisodeEnd,
    browser: Browser,
    addresses: Addresses,
    *,
    graders: Graders = NOBODY,
    **options: Any,
) -> Score:
    """Score a task by the end of its episode; a further call may score it in another way.

    Args:
        options: further ones of `evaluate`.

    Raises:
        CannotScore: an evaluator cannot be computed here.
        BrowserGone: the browser died, or a check ran out of time.
    """
    with browser.watchdog.limit(_EVALUATION_S if graders.judge is None else JUDGED_S):
        return evaluate(
            task, end.final, page=end.page, addresses=addresses, graders=graders, **options
        )


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its class if it has none."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
