"""Solutions of tasks in a text browser."""

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
    """Record of a solution's run."""

    reason: str = "the solution does not stop"
    """Reason for a score below 1; empty on success."""
    pages: list[Page] = field(default_factory=list)
    replies: list[str] = field(default_factory=list)
    """One reply per page."""


def walk(task: Task, server: Server) -> Walk:
    """Run the solution of `task` from a fresh state, and score it.

    Raises:
        SolutionStuck, Refused: the current page does not allow a step.
        NeedsScript, UnknownScript: a step or a check needs a real browser.
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
