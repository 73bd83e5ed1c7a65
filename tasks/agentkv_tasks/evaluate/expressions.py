"""Syntax of the scripts and selectors in page checks, checked without running any of them."""

import re
from collections.abc import Iterator

from playwright.sync_api import Page

from agentkv_tasks.evaluate.calls import parse_call
from agentkv_tasks.task import Task

_SELECTING = ("get_query_text", "get_query_text_lowercase")
_FUNCTION = re.compile(r"(async)?\s*function[\s(]")
_MATCHES = """selector => {
    try { document.createDocumentFragment().querySelector(selector); return true }
    catch { return false }
}"""


def syntax_errors(task: Task, page: Page) -> list[str]:
    """Return what is wrong with the scripts and selectors of a task; empty if all can be read.

    Chromium compiles the scripts and runs none.

    Args:
        page: an empty page of any Chromium.
    """
    found = []
    protocol = page.context.new_cdp_session(page)
    protocol.send("Runtime.enable")
    try:
        for field, script in _scripts(task):
            answer = protocol.send(
                "Runtime.compileScript",
                {"expression": script, "sourceURL": "", "persistScript": False},
            )
            if problem := answer.get("exceptionDetails"):
                reason = problem.get("exception", {}).get("description", problem["text"])
                found.append(f"{field}: {reason.partition(chr(10))[0]}")
    finally:
        protocol.detach()
    for field, selector in _selectors(task):
        if not page.evaluate(_MATCHES, selector):
            found.append(f"{field}: '{selector}' is no CSS selector")
    return found


def _scripts(task: Task) -> Iterator[tuple[str, str]]:
    for number, target in enumerate(task.eval.program_html or ()):
        where = f"eval.program_html.{number}"
        for index, action in enumerate(target.prep_actions or ()):
            yield f"{where}.prep_actions.{index}", f"() => {action}"
        locator = target.locator.strip()
        if locator.startswith("lambda:"):
            script = locator.removeprefix("lambda:").strip()
            # As Playwright does, because a statement cannot begin with an unnamed function.
            yield f"{where}.locator", f"({script})" if _FUNCTION.match(script) else script
        elif locator and not locator.startswith("func:"):
            yield f"{where}.locator", f"() => {locator}"


def _selectors(task: Task) -> Iterator[tuple[str, str]]:
    for number, target in enumerate(task.eval.program_html or ()):
        for field, text in (("url", target.url), ("locator", target.locator.strip())):
            if text.startswith("func:"):
                call = parse_call(text.removeprefix("func:"))
                if call.name in _SELECTING:
                    yield f"eval.program_html.{number}.{field}", str(call.arguments[1])
