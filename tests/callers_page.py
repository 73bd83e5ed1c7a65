"""A fixture for tests of what happens on a page that belongs to the caller."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page as PlaywrightPage

from agentkv_env.browser import Browser, find_executable


@pytest.fixture
def callers_page(browser: Browser) -> Iterator[PlaywrightPage]:
    """A page of a Chromium that the caller owns."""
    with browser.session(hosts=[]) as session:
        assert session.page.context.browser is not None
        chromium = session.page.context.browser.browser_type
    with chromium.launch(executable_path=find_executable()) as plain:
        yield plain.new_context().new_page()
