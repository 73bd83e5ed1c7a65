"""Page checks: the contents of pages at the end of an episode (program_html).

A check of the agent's last page runs in the agent's tab. Any other check opens a new tab, so that
it cannot navigate the page of the next check. VisualWebArena navigates the agent's tab instead.
"""

from collections.abc import Sequence

from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import Page

from agentkv_tasks.addresses import Addresses
from agentkv_tasks.evaluate.calls import parse_call
from agentkv_tasks.evaluate.graders import Graders
from agentkv_tasks.evaluate.strings import Meaning, compare, describe
from agentkv_tasks.settings import Scoring
from agentkv_tasks.task import PageCheck, References, Task, TaskError

_CHECK_TIMEOUT_MS = 20_000
_MAX_QUOTED = 80  # longest text, in characters, that a reason quotes


def program_html(
    targets: Sequence[PageCheck],
    *,
    page: Page,
    url: str,
    html: str,
    addresses: Addresses,
    scoring: Scoring,
    graders: Graders,
    meaning: Meaning,
) -> tuple[float, str]:
    """Return 1.0 if all targets hold, else 0.0, and the reason for 0.0.

    Args:
        page: the agent's last tab, which is read but never navigated.
        url: public address of `page`.
        html: full content of `page`, captured before the first check.

    Raises:
        CannotScore: a target needs a judge model or an interface that `graders` lacks.
        playwright.sync_api.Error: the browser has died.
    """
    for number, target in enumerate(targets):
        where = f"program_html[{number}]"
        place = target.url
        if place.startswith("func:"):
            call = parse_call(place.removeprefix("func:"))
            place = addresses.public(str(call.on(page, last_url=url, graders=graders)))
        if place == "last":
            selected = _select(target, page, addresses, graders, html=html)
        else:
            tab = page.context.new_page()
            try:
                exists = visit(tab, place, addresses)
                selected = _select(target, tab, addresses, graders, html=None) if exists else None
            finally:
                tab.close()
        place = f"the last page, {url}," if place == "last" else place
        subject = f"{target.locator} at {place}" if target.locator else place
        if selected is None:
            return 0.0, f"{where}: {subject} returned nothing"
        failed = _failed_comparison(target.required_contents, selected, scoring, meaning)
        if failed:
            found = f'; it is "{selected}"' if len(str(selected)) <= _MAX_QUOTED else ""
            return 0.0, f"{where}: {subject} {failed}{found}"
    return 1.0, ""


def check_calls(task: Task) -> None:
    """Check the `func:` strings and locators of a task before any episode starts.

    Raises:
        TaskError: a string is invalid; the message names the task and the field.
    """
    for number, target in enumerate(task.eval.program_html or ()):
        for field, text in (("url", target.url), ("locator", target.locator)):
            if text.startswith("func:"):
                try:
                    parse_call(text.removeprefix("func:"))
                except ValueError as error:
                    raise TaskError(
                        f"task {task.task_id}: eval.program_html.{number}.{field}: {error}"
                    ) from None
        locator = target.locator.strip()
        if locator and not locator.startswith(("document.", "[...document.", "lambda:", "func:")):
            raise TaskError(
                f"task {task.task_id}: eval.program_html.{number}.locator: unknown form "
                f"'{locator}'; expected an empty string, document..., lambda:... or func:..."
            )


def visit(tab: Page, place: str, addresses: Addresses) -> bool:
    """Open `place` in a tab of its own for a check; return False if the page does not exist.

    Raises:
        playwright.sync_api.Error: the browser has died.
    """
    try:
        tab.goto(addresses.real(place), wait_until="load", timeout=_CHECK_TIMEOUT_MS)
    except PlaywrightError:
        if tab.is_closed():
            raise
        return False
    tab.wait_for_timeout(addresses.settle_s * 1000)
    return True


def _select(
    target: PageCheck, page: Page, addresses: Addresses, graders: Graders, *, html: str | None
) -> str | int | float | None:
    """Return the part of `page` that the locator selects, or None if a `lambda:` finds nothing."""
    locator = addresses.fill(target.locator.strip())
    if not locator:
        return addresses.public(page.content()) if html is None else html
    if locator.startswith("func:"):
        return parse_call(locator.removeprefix("func:")).on(page, graders=graders)
    for action in target.prep_actions or ():
        _run(page, f"() => {action}")
    if locator.startswith("lambda:"):
        found = _run(page, locator.removeprefix("lambda:"))
        return str(found) if found else None
    found = _run(page, f"() => {locator}")
    return "" if found is None else str(found)


def _run(page: Page, script: str) -> object:
    """Return the result of `script` on `page`, or None if it throws, as on an unexpected page."""
    try:
        return page.evaluate(script)
    except PlaywrightError:
        if page.is_closed():
            raise
        return None


def _failed_comparison(
    contents: References, selected: str | int | float, scoring: Scoring, meaning: Meaning
) -> str:
    """Describe the first comparison that fails, or return ''; `compat` tries only one."""
    names = [name for name in References.comparisons() if getattr(contents, name) is not None]
    for name in names[:1] if scoring == "compat" else names:
        reference = getattr(contents, name)
        if name == "exact_match" and scoring == "mended":
            selected = str(selected).strip()
        if not compare(name, reference, str(selected), scoring=scoring, meaning=meaning):
            return describe(name, reference)
    return ""
