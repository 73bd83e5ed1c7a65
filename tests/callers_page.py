"""Fixtures for tests of what happens on a page that belongs to the caller."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser as Chromium
from playwright.sync_api import Page as PlaywrightPage

from agentkv_env.browser import Browser, find_executable


@pytest.fixture(scope="module")
def callers_chromium(browser: Browser) -> Iterator[Chromium]:
    """A Chromium that the caller owns."""
    with browser.session(hosts=[]) as session:
        assert session.page.context.browser is not None
        chromium = session.page.context.browser.browser_type
    with chromium.launch(executable_path=find_executable()) as plain:
        yield plain


@pytest.fixture
def callers_page(callers_chromium: Chromium) -> Iterator[PlaywrightPage]:
    """A page of the caller's Chromium, in a context of its own."""
    with callers_chromium.new_context() as context:
        yield context.new_page()
