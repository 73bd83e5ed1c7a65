"""A browser page to try an agent on, in the Chromium that `agentkv doctor` finds, and its sites."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from playwright.sync_api import Page, sync_playwright

from agentkv_env.browser import find_executable
from agentkv_env.sites.server import Server
from agentkv_env.sites.world import World


@contextmanager
def browser() -> Iterator[Page]:
    """Start Chromium and yield a page of Playwright's sync API; close both when the context exits.

    Runs the same Chromium as `agentkv run`: $AGENTKV_BROWSER, chromium-headless-shell or chromium,
    else Playwright's own. The page has no proxy; `agentkv_env.session.Session.on` describes what
    keeps an agent to its hosts on such a page.

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


@contextmanager
def sites(world_seed: int = 75) -> Iterator[Mapping[str, str]]:
    """Serve the embedded sites on this machine; yield their addresses by name, such as `wiki`.

    These are the sites of vwa75, on which nano was trained. They stop, and forget what was done on
    them, when the context exits. `agentkv sites` serves the same sites from the command line.

    Args:
        world_seed: names, texts and prices of the sites are drawn from this number.
    """
    with Server(World(world_seed)) as server:
        yield server.origins
