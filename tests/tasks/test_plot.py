"""Line plots: axes and points."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv_tasks.report.plot import (
    Series,
    counting,
    doubling,
    from_zero,
    line_plot,
    naming,
    over_lengths,
    percentages,
    spanning,
)

finite = st.floats(-1e9, 1e9)


@given(finite, st.floats(1e-2, 1e9))
def test_a_spanning_axis_encloses_its_values_with_distinct_ticks(low: float, size: float) -> None:
    axis = spanning(low, low + size)
    slack = 1e-9 * max(1.0, abs(low), abs(low + size))
    assert axis.low <= low + slack and axis.high >= low + size - slack
    assert len({label for _, label in axis.ticks}) == len(axis.ticks) <= 12


def test_a_logarithmic_axis_sets_doublings_equally_far_apart() -> None:
    axis = doubling([512, 2048, 1024, 512])
    assert [axis.share(value) for value in (512, 1024, 2048)] == [0, 0.5, 1]
    assert [label for _, label in axis.ticks] == ["512", "1,024", "2,048"]


def test_names_stand_in_the_middle_of_equal_parts() -> None:
    axis = naming(["a", "b"])
    assert [axis.share(value) for value, _ in axis.ticks] == [0.25, 0.75]


def test_an_axis_of_one_value_sets_it_at_the_beginning() -> None:
    assert counting(1).share(1) == 0


def test_points_that_are_not_finite_are_left_out() -> None:
    series = [
        Series("some", ((0, 0.0), (1, math.nan), (2, 1.0)), 0),
        Series("none", ((0, math.nan),), 1),
    ]
    plot = line_plot("t", series, x=from_zero(2), y=percentages(), x_title="x")
    (line,) = plot.lines
    assert line.points == f"{plot.left:.1f},{plot.bottom:.1f} {plot.right:.1f},{plot.top:.1f}"
    assert line.end == (plot.right, pytest.approx(plot.top))


def test_values_over_lengths_end_with_what_their_legend_says() -> None:
    values = [("full", 4096, 8.0), ("full", 512, 1.0), ("window", 512, 1.0), ("window", 4096, None)]
    plot = over_lengths("token", "ms", values)
    assert plot.title == "token, ms"
    assert [tick.label for tick in plot.x_ticks] == ["512", "4,096"]
    full, window = plot.lines
    assert full.last == "8.00 ms" and window.last == "1.00 ms"
    assert full.end == (plot.right, pytest.approx(plot.top)) and window.end[0] == plot.left
