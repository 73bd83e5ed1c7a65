"""Budgets at which caches have wanted bytes on average."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.bench.samples.match import TOLERANCE, matched_budget


@given(st.integers(10_000, 10**9), st.floats(0.2, 1.0), st.integers(1, 200))
def test_a_mean_that_grows_with_the_budget_is_reached(target: int, share: float, step: int) -> None:
    def mean(budget: int) -> float:
        return share * (budget // step * step)  # entries are whole

    found = matched_budget(mean, target, "mine")
    assert abs(mean(found) / target - 1) <= TOLERANCE


@pytest.mark.parametrize("mean", [lambda budget: 100.0, lambda budget: 1e9])
def test_a_mean_that_cannot_be_reached_is_said_with_the_nearest(
    mean: Callable[[int], float],
) -> None:
    with pytest.raises(BenchError, match="mine: no budget found with 5,000 bytes .* nearest has 1"):
        matched_budget(mean, 5000, "mine")
