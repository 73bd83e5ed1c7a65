"""Replay of a task's solution in the text browser."""

from dataclasses import dataclass, field

from agentkv.models.scripted import Solution
from agentkv_env.actions import extract, parse
from agentkv_env.page import Page
from agentkv_env.sites.server import Server
from agentkv_tasks.task import Task
from tests.tasks.text_browser import TextBrowser
from tests.tasks.text_checks import score_episode


@dataclass
class Walk:
    """Result of a replay."""

    reason: str = "the solution does not stop"
    """Why the solution does not score 1; empty if it does."""
    pages: list[Page] = field(default_factory=list)
    replies: list[str] = field(default_factory=list)
    """The reply to each page."""


def walk(task: Task, server: Server) -> Walk:
    """Reset `server`, carry out the solution of `task` and score it.

    Raises:
        SolutionStuck, ActionRefused: a step fails on its page.
        NeedsScript, UnknownScript: a step or a check requires a real browser.
    """
    server.reset()
    result = Walk()
    browser = TextBrowser(server)
    try:
        browser.open(*task.start_urls)
        steps = [browser.addresses.fill(line) for line in task.solution]
        conversation = Solution(steps).begin(task.intent)
        for _ in steps:
            page = browser.observe()
            reply = conversation.reply(page).text
            result.pages.append(page)
            result.replies.append(reply)
            action = parse(extract(reply))
            if action.kind == "stop":
                score = score_episode(task, browser, action.answer)
                result.reason = "" if score.value == 1.0 else score.reason or "scores less than 1"
                break
            browser.act(action)
    finally:
        browser.close()
    return result
