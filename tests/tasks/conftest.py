"""Complete rows and a browser for tests."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agentkv_env.browser import Browser
from agentkv_tasks.results import Row


@pytest.fixture(scope="session")
def row() -> Callable[..., Row]:
    """A function that makes a row: task 0 solved under `full`, with the given changes."""

    def make(**changes: Any) -> Row:
        values: dict[str, Any] = {
            "suite": "small",
            "world_seed": 75,
            "task_id": 0,
            "category": "form",
            "policy": "full",
            "policy_parameters": {"budget": None},
            "model": "nano",
            "seed": 0,
            "status": "stopped",
            "success": True,
            "score": 1.0,
            "settings": {"scoring": "compat"},
        }
        return Row(**{**values, **changes})

    return make


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The browser of all tests, except those that launch their own."""
    with Browser.launch() as running:
        yield running
