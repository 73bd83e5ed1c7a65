"""Statistics against values computed by hand."""

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv_tasks.report.statistics import (
    Rate,
    bootstrap_interval,
    cluster_interval,
    holm,
    macro_average,
    paired,
    rank_correlation,
    ranks,
    rate,
    separation,
    sign_flip_exact,
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
def test_independent_units_are_compared_by_the_exact_mcnemar_test(
    only_first: int, only_second: int, expected: float
) -> None:
    differences = [-1] * only_first + [0] * 4 + [1] * only_second
    assert sign_flip_exact(differences) == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.integers(-3, 3), max_size=9))
def test_the_sign_flip_test_counts_the_signs_that_reach_as_far(differences: list[int]) -> None:
    signs = itertools.product((-1, 1), repeat=len(differences))
    sums = [sum(s * d for s, d in zip(each, differences, strict=True)) for each in signs]
    extreme = sum(abs(total) >= abs(sum(differences)) for total in sums)
    assert sign_flip_exact(differences) == pytest.approx(extreme / len(sums), abs=1e-12)


def test_many_worlds_of_one_task_are_no_evidence() -> None:
    units = [(world, task) for world in range(10) for task in range(2)]
    first = dict.fromkeys(units, False)
    second = {unit: unit[1] == 0 for unit in units}
    alone, clustered = paired(first, second), paired(first, second, cluster=lambda unit: unit[1])
    assert alone.p_value == 2 / 2**10
    assert clustered.p_value == 1.0
    assert clustered.clusters == ((10, 10), (0, 10))
    assert alone.difference == clustered.difference == 0.5
    assert alone.is_as_good and not clustered.is_as_good
    low, high = clustered.interval
    assert (low, high) == (0.0, 1.0) and low < alone.interval[0] < alone.interval[1] < high


def test_a_policy_is_as_good_only_if_enough_units_show_it() -> None:
    for count in (5, 71, 72):  # without a lost unit, the bootstrap alone would call five enough
        equal = dict.fromkeys(range(count), True)
        assert paired(equal, equal).is_as_good is (count == 72)
    first = dict.fromkeys(range(40), True)
    assert not paired(first, {unit: unit > 1 for unit in first}).is_as_good
    many = dict.fromkeys(range(400), True)
    assert paired(many, {unit: unit > 1 for unit in many}).is_as_good
    assert not paired({}, {}).is_as_good


def test_holm_multiplies_the_smallest_p_value_by_the_number_of_tests() -> None:
    # 0.01 * 4, 0.02 * 3, 0.03 * 2, then no less than the one before
    assert holm([0.02, 0.01, 0.03, 0.05]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([0.3]) == [0.3] and holm([]) == []


def test_a_weighted_interval_is_that_of_repeated_values() -> None:
    low, high = bootstrap_interval([0.0, 1.0], weights=[1, 3])
    assert (low, high) == (0.0, 1.0)
    assert bootstrap_interval([0.5, 0.5], weights=[1, 3]) == (0.5, 0.5)
    values = [0.0, 1.0, 0.5, 0.25]
    assert bootstrap_interval(values) == bootstrap_interval(values, weights=[2] * 4)


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


def test_equal_values_share_their_mean_rank() -> None:
    assert ranks([3.0, 1.0, 3.0, 2.0]).tolist() == [3.5, 1.0, 3.5, 2.0]


def test_a_rank_correlation_sees_order_alone() -> None:
    assert rank_correlation([1, 2, 3], [1, 10, 100]) == 1
    assert rank_correlation([1, 2, 3], [9, 8, -1]) == -1
    assert math.isnan(rank_correlation([1, 1], [1, 2]))


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=30))
def test_separation_counts_the_pairs_in_which_the_positive_is_larger(
    units: list[tuple[int, bool]],
) -> None:
    pairs = [
        1.0 if a > b else 0.5 if a == b else 0.0
        for a, is_positive in units
        for b, is_other in units
        if is_positive and not is_other
    ]
    found = separation([score for score, _ in units], [positive for _, positive in units])
    assert math.isnan(found) if not pairs else found == pytest.approx(sum(pairs) / len(pairs))


def test_the_interval_of_clusters_is_wider_than_that_of_their_units() -> None:
    values = [0.0] * 10 + [1.0] * 10

    def mean(units: Sequence[int]) -> float:
        return sum(values[i] for i in units) / len(units)

    of_units = cluster_interval(mean, [[i] for i in range(20)])
    of_clusters = cluster_interval(mean, [range(5 * k, 5 * k + 5) for k in range(4)])
    assert of_clusters == (0, 1) and 0 < of_units[0] < 0.5 < of_units[1] < 1
    assert math.isnan(cluster_interval(lambda units: math.nan, [[0]])[0])
