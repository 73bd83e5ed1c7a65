"""Settings of the whole suite."""

import gc
import os
from collections.abc import Generator
from importlib.util import find_spec
from typing import Any

import pytest

from tests.sampling import mark_rest_of_grids

# Models here are tiny: a second thread costs more than it brings, and on a shared machine far more
# (a cache test took 2.5 s with two threads beside other work, 0.1 s with one).
os.environ.setdefault("OMP_NUM_THREADS", "1")

if find_spec("hypothesis"):  # not in every environment
    from hypothesis import settings

    # a busy machine has no deadlines
    settings.register_profile("sample", deadline=None, max_examples=40)
    settings.register_profile("exhaustive", deadline=None, max_examples=500)
    settings.load_profile("sample")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the cases out that no sample needs."""
    mark_rest_of_grids(items)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Let Python look for garbage only in what tests make: what is imported and collected stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked `gpu` where there is no CUDA device."""
    if item.get_closest_marker("gpu") is not None:
        import torch  # only here: many tests need no torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
