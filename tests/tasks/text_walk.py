"""Walking a task's solution in a text browser."""

from dataclasses import dataclass, field

from agentkv.models.scripted import Solution
from agentkv_env.actions import extract, parse
from agentkv_env.page import Page
from agentkv_env.sites.server import Server
from agentkv_tasks.task import Task
from tests.tasks.text_browser import TextBrowser
from tests.tasks.text_checks import scored


@dataclass
class Walk:
    """What was met on the way."""

    reason: str = "the solution does not stop"
    """Why it does not score 1; empty if it does."""
    pages: list[Page] = field(default_factory=list)
    replies: list[str] = field(default_factory=list)
    """One for each page."""


def walk(task: Task, server: Server) -> Walk:
    """The solution of `task` carried out from a fresh state, and scored.

    Raises:
        SolutionStuck, Refused: a step cannot be done on the page it meets.
        NeedsScript, UnknownScript: only a real browser can do a step, or a check.
    """
    server.reset()
    done = Walk()
    browser = TextBrowser(server)
    try:
        browser.open(*task.start_urls)
        steps = [browser.addresses.fill(line) for line in task.solution]
        conversation = Solution(steps).begin(task.intent)
        for _ in steps:
            page = browser.observe()
            reply = conversation.reply(page).text
            done.pages.append(page)
            done.replies.append(reply)
            action = parse(extract(reply))
            if action.kind == "stop":
                score = scored(task, browser, action.answer)
                done.reason = "" if score.value == 1.0 else score.reason or "scores less than 1"
                break
            browser.act(action)
    finally:
        browser.close()
    return done
