"""Entries for tests: complete, and different where a test says so."""

from collections.abc import Callable
from typing import Any

import pytest

from agentkv_tasks.results import Row


@pytest.fixture(scope="session")
def row() -> Callable[..., Row]:
    """Makes a successful episode of task 0 under `full`, with the changes it is given."""

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
