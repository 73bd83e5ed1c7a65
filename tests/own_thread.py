"""Run a function in a thread of its own.

Playwright's sync API leaves an event loop running in its thread, in which neither another browser
of the sync API nor `asyncio.run` can start.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def in_own_thread(function: Callable[..., T], *args: Any) -> T:
    """Return or raise what `function` returns or raises in a new thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args).result()
