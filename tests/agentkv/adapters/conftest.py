"""Small models, a small site, and BrowserGym's own functions from its wheel."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zipfile import ZipFile

import pytest
from playwright.sync_api import Browser, Page

from agentkv_env.browser import find_executable
from agentkv_env.driver import Driver
from tests.agentkv.agent.conftest import chat_tokenizer as chat_tokenizer
from tests.agentkv.agent.conftest import plain_tokenizer as plain_tokenizer
from tests.agentkv.agent.conftest import site as site
from tests.agentkv.agent.conftest import tiny_model as tiny_model


class Gym:
    """BrowserGym's observations of a page and its way to act on it, without its own browser.

    BrowserGym's environment launches a browser that comes with its Playwright; its functions work
    with ours.
    """

    def __init__(self, page: Page) -> None:
        from browsergym.core.action.base import execute_python_code
        from browsergym.core.env import BrowserEnv

        self.page, self.messages = page, list[str]()
        self._execute, self._observe = execute_python_code, BrowserEnv._get_obs
        self.goal = ""
        self.error = ""

    def observe(self) -> dict[str, Any]:
        goal = ({"type": "text", "text": self.goal},)
        environment = SimpleNamespace(
            **{"page": self.page, "context": self.page.context, "goal_object": goal},
            **{"use_raw_page_output": False, "tags_to_mark": "standard_html"},
            **{"chat": SimpleNamespace(messages=[]), "start_time": time.time()},
            **{"last_action": "", "last_action_error": self.error},
        )
        return self._observe(environment)

    def act(self, agent: Any, calls: str) -> None:
        code = agent.action_set.to_python_code(calls)
        try:
            self._execute(code, self.page, self.messages.append, self.messages.append)
            self.error = ""
        except Exception as error:  # as BrowserGym's environment does
            self.error = f"{type(error).__name__}: {error}"
        self.page = self.page.context.pages[-1]
        self.page.wait_for_load_state()


@pytest.fixture(scope="session")
def browsergym(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Make the wheel of browsergym-core importable; `make test` downloads it."""
    wheels = sorted((Path(sys.prefix) / "wheels").glob("browsergym_core-*.whl"))
    if not wheels:
        pytest.skip("the wheel of browsergym-core is missing")
    folder = tmp_path_factory.mktemp("browsergym")
    with ZipFile(wheels[-1]) as wheel:
        wheel.extractall(folder)
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def plain_browser() -> Iterator[Browser]:
    driver = Driver.acquire()  # a second one in this thread would refuse to start
    driver.playwright.selectors.set_test_id_attribute("bid")
    with driver.playwright.chromium.launch(executable_path=find_executable()) as running:
        yield running
    driver.release()


@pytest.fixture
def gym(browsergym: None, plain_browser: Browser) -> Iterator[Gym]:
    with plain_browser.new_context() as context:
        yield Gym(context.new_page())
