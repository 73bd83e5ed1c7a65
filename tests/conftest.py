"""Settings of the whole suite."""

import os

import pytest

# Models here are tiny: a second thread costs more than it brings, and on a shared machine far more
# (a cache test took 2.5 s with two threads beside other work, 0.1 s with one).
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked `gpu` where there is no CUDA device."""
    if item.get_closest_marker("gpu") is not None:
        import torch  # only here: many tests need no torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
