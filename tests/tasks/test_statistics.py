"""Statistics against values computed by hand."""

import math

import pytest

from agentkv_tasks.report.statistics import (
    Rate,
    bootstrap_interval,
    macro_average,
    mcnemar_exact,
    paired,
    rate,
    wilson_interval,
)


def test_pairs_are_counted_over_common_units() -> None:
    first = {1: True, 2: True, 3: False, 4: False, 5: True}
    second = {1: True, 2: False, 3: True, 4: False, 6: True}
    counts = paired(first, second)
    assert (counts.both, counts.only_first, counts.only_second, counts.neither) == (1, 1, 1, 1)
    assert counts.num_units == 4


@pytest.mark.parametrize(
    ("only_first", "only_second", "expected"),
    [
        (0, 0, 1.0),
        (1, 0, 1.0),  # 2 * 1/2
        (5, 0, 0.0625),  # 2 * 1/32
        (0, 5, 0.0625),
        (6, 1, 0.125),  # 2 * (1 + 7) / 128
        (3, 3, 1.0),  # the doubled tail exceeds 1
        (8, 2, 112 / 1024),  # 2 * (1 + 10 + 45) / 1024
    ],
)
def test_the_exact_test_doubles_the_smaller_binomial_tail(
    only_first: int, only_second: int, expected: float
) -> None:
    assert mcnemar_exact(only_first, only_second) == pytest.approx(expected, abs=1e-12)


def test_an_interval_of_equal_values_is_that_value() -> None:
    assert bootstrap_interval([1.0] * 20) == (1.0, 1.0)
    assert bootstrap_interval([0.25]) == (0.25, 0.25)


def test_an_interval_agrees_with_the_normal_approximation_for_many_values() -> None:
    values = [1.0] * 40 + [0.0] * 60
    low, high = bootstrap_interval(values)
    margin = 1.96 * math.sqrt(0.4 * 0.6 / 100)
    assert low == pytest.approx(0.4 - margin, abs=0.015)
    assert high == pytest.approx(0.4 + margin, abs=0.015)


def test_intervals_are_reproducible_and_narrow_with_the_level() -> None:
    values = [1.0, 0.0, 1.0, 1.0, 0.0, 0.5]
    assert bootstrap_interval(values, seed=3) == bootstrap_interval(values, seed=3)
    low, high = bootstrap_interval(values, level=0.5)
    wide_low, wide_high = bootstrap_interval(values, level=0.95)
    assert wide_low < low < high < wide_high


def test_micro_and_macro_averages_differ_where_groups_differ_in_size() -> None:
    groups = {"small": rate([True]), "large": rate([False] * 9), "empty": rate([])}
    assert macro_average(groups) == 0.5
    assert rate([True] + [False] * 9).value == 0.1
    assert math.isnan(groups["empty"].value)


def test_a_wilson_interval_is_valid_at_zero_and_one() -> None:
    # examples of Newcombe (1998), whose figures have four digits
    assert wilson_interval(Rate(0, 20)) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert wilson_interval(Rate(20, 20)) == pytest.approx((0.8389, 1.0), abs=1e-4)
    assert wilson_interval(Rate(81, 263)) == pytest.approx((0.2553, 0.3662), abs=1e-4)
