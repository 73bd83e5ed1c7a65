"""The goal of an episode: the task's intent, or the instruction on its start page."""

from playwright.sync_api import Page

from agentkv_env.errors import ActionFailed
from agentkv_env.serialize import neutralize
from agentkv_tasks.task import Task


def goal_of(task: Task, page: Page) -> str:
    """Return the goal of `task`, whose start page is open in `page`.

    A goal on the page is text of the page. It is neutralized, so it reads as observations show it
    and can forge none of our lines.

    Raises:
        ActionFailed: the start page lacks the element that the task names.
        playwright.sync_api.Error: the page has died, or what the task names is no CSS selector.
    """
    if not task.intent_element:
        return task.intent
    found = page.locator(task.intent_element).all_text_contents()
    if not found:
        raise ActionFailed(
            f"the start page has no element {task.intent_element!r}, whose text is the goal; "
            "correct the task's intent_element"
        )
    return neutralize(" ".join(found[0].split()))
