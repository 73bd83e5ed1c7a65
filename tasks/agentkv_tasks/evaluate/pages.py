"""Page checks: what a page holds when the episode is over (program_html).

Checks of the page the agent ended on run on that page; every other one opens a tab of its own, so
that no check moves what the next one looks at. Upstream drives the agent's own tab instead.
"""

from collections.abc import Sequence

from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import Page

from agentkv_tasks.addresses import Addresses
from agentkv_tasks.evaluate.calls import parse_call
from agentkv_tasks.evaluate.strings import Scoring, compare, wording
from agentkv_tasks.task import PageCheck, References, Task, TaskError

_CHECK_TIMEOUT_MS = 20_000
_SHORT = 80  # characters that a reason may quote of what was found


def program_html(
    targets: Sequence[PageCheck],
    *,
    page: Page,
    url: str,
    html: str,
    addresses: Addresses,
    scoring: Scoring,
) -> tuple[float, str]:
    """The score of all targets, 1.0 or 0.0, and why it is 0.

    Args:
        page: the tab the agent ended on; it is read, never navigated.
        url: its address in public form.
        html: its whole content, taken before any check ran.

    Raises:
        Unjudged: a target needs a judge model or an interface that is not here.
        playwright.sync_api.Error: the browser is gone.
    """
    for number, target in enumerate(targets):
        where = f"program_html[{number}]"
        place = target.url
        if place.startswith("func:"):
            place = str(parse_call(place.removeprefix("func:")).on(page, last_url=url))
        if place == "last":
            selected = _select(target, page, addresses, html=html)
        else:
            tab = page.context.new_page()
            try:
                selected = _visit(tab, target, place, addresses)
            finally:
                tab.close()
        place = f"the last page, {url}," if place == "last" else place
        meant = f"{target.locator} at {place}" if target.locator else place
        if selected is None:
            return 0.0, f"{where}: {meant} gave nothing"
        failed = _failed(target.required_contents, selected, scoring)
        if failed:
            found = f'; it is "{selected}"' if len(str(selected)) <= _SHORT else ""
            return 0.0, f"{where}: {meant} {failed}{found}"
    return 1.0, ""


def check_calls(task: Task) -> None:
    """Refuse a task whose `func:` strings cannot be run, before any episode is.

    Raises:
        TaskError: naming the task and the field.
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
                f"task {task.task_id}: eval.program_html.{number}.locator: cannot read '{locator}';"
                " expected nothing, document..., lambda:... or func:..."
            )


def _visit(
    tab: Page, target: PageCheck, place: str, addresses: Addresses
) -> str | int | float | None:
    try:
        tab.goto(addresses.real(place), wait_until="load", timeout=_CHECK_TIMEOUT_MS)
    except PlaywrightError:
        if tab.is_closed():
            raise
        return None  # there is no such page
    tab.wait_for_timeout(addresses.settle_s * 1000)
    return _select(target, tab, addresses, html=None)


def _select(
    target: PageCheck, page: Page, addresses: Addresses, *, html: str | None
) -> str | int | float | None:
    """The part of `page` that the locator names; None where nothing could be meant."""
    locator = addresses.fill(target.locator.strip())
    if not locator:
        return addresses.public(page.content()) if html is None else html
    if locator.startswith("func:"):
        return parse_call(locator.removeprefix("func:")).on(page)
    for action in target.prep_actions or ():
        _run(page, f"() => {action}")
    if locator.startswith("lambda:"):
        found = _run(page, locator.removeprefix("lambda:"))
        return str(found) if found else None
    found = _run(page, f"() => {locator}")
    return "" if found is None else str(found)


def _run(page: Page, script: str) -> object:
    """What `script` gives on `page`; None if it throws, because the page is then another one."""
    try:
        return page.evaluate(script)
    except PlaywrightError:
        if page.is_closed():
            raise
        return None


def _failed(contents: References, selected: str | int | float, scoring: Scoring) -> str:
    """What should hold and does not, or nothing; `compat` looks at the first one only."""
    ways = [way for way in References.ways() if getattr(contents, way) is not None]
    for way in ways[:1] if scoring == "compat" else ways:
        reference = getattr(contents, way)
        if way == "exact_match" and scoring == "mended":
            selected = str(selected).strip()
        if not compare(way, reference, str(selected), scoring=scoring):
            return wording(way, reference)
    return ""
