"""A page to try an agent on, in the browser that `agentkv doctor` finds."""

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Page, sync_playwright

from agentkv_env.browser import find_executable


@contextmanager
def browser() -> Iterator[Page]:
    """Open a page of Playwright's sync API in a new Chromium, which ends with the context.

    The Chromium is the one that `agentkv run` uses: $AGENTKV_BROWSER, chromium-headless-shell or
    chromium, else Playwright's own. The page is an ordinary one, without a proxy of ours: see
    `agentkv_env.session.Session.on` for what holds an agent to its hosts there.

    Raises:
        BrowserMissing: a RuntimeError; $AGENTKV_BROWSER names a file that does not exist.
        playwright.sync_api.Error: no Chromium was found, or it did not start.
    """
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=find_executable())
        try:
            yield running.new_page()
        finally:
            running.close()
