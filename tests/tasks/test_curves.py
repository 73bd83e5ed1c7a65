"""Plots of cache bytes over steps."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import resources

from hypothesis import given
from hypothesis import strategies as st

from agentkv.trace import Step, Trace
from agentkv_tasks.report.curves import (
    Curve,
    all_bytes,
    byte_plots,
    curves,
    seconds,
    success_over_bytes,
    success_plot,
)
from agentkv_tasks.report.plot import (
    NUM_STYLES,
    Plot,
    Series,
    from_zero,
    line_plot,
    percentages,
)
from agentkv_tasks.report.summary import summarize
from agentkv_tasks.report.tables import policy_lines
from agentkv_tasks.results import Row

MakeRow = Callable[..., Row]


def trace(held: Sequence[int]) -> Trace:
    steps = tuple(
        Step(
            index=index,
            url="http://shop.localhost/",
            observation="",
            note="",
            reply="",
            action="click [1]",
            error="",
            num_tokens_in=1,
            num_tokens_out=1,
            seen_tokens=index + 1,
            cache_bytes=cache,
            cache_peak_bytes=cache,
            prefill_s=0.0,
            decode_s=0.0,
            seconds=0.0,
        )
        for index, cache in enumerate(held)
    )
    return Trace(head={}, steps=steps, end=None)


def test_a_point_is_the_mean_over_the_episodes_that_reached_the_step(row: MakeRow) -> None:
    rows = [row(task_id=number) for number in range(3)]
    traces = {rows[0].key: trace([10, 20, 30]), rows[1].key: trace([20, 60])}
    (curve,) = curves(summarize(rows), traces)
    assert curve == Curve("full", (15.0, 40.0, 30.0), (2, 2, 1))


def test_curves_can_show_all_bytes_and_seconds(row: MakeRow) -> None:
    kept = trace([10, 20])
    steps = tuple(replace(step, cold_bytes=5, seconds=0.5) for step in kept.steps)
    rows = [row()]
    traces = {rows[0].key: replace(kept, steps=steps)}
    assert curves(summarize(rows), traces, all_bytes)[0].means == (15.0, 25.0)
    assert curves(summarize(rows), traces, seconds)[0].means == (0.5, 0.5)


def test_success_is_drawn_over_all_bytes_and_over_hot_ones(row: MakeRow) -> None:
    rows = [
        row(kv_peak_bytes=8 * 2**20),
        row(policy="lookback", success=False, kv_peak_bytes=2 * 2**20, kv_cold_bytes=4 * 2**20),
    ]
    both, hot = success_over_bytes(summarize(rows))
    assert (both.x_title, hot.x_title) == ("hot and cold bytes, MiB", "hot bytes, MiB")

    def places(plot: Plot) -> list[tuple[float, float]]:
        across = {float(tick.label): tick.at for tick in plot.x_ticks}
        down = {float(tick.label): tick.at for tick in plot.y_ticks}
        return [
            (across[count], down[share]) for count, share in zip(expected, (100, 0), strict=True)
        ]

    expected = (8, 6)
    assert [line.end for line in both.lines] == places(both)
    expected = (8, 2)
    assert [line.end for line in hot.lines] == places(hot)
    assert "6.0 MiB, 2.0 MiB of them hot" in hot.lines[1].last
    assert success_over_bytes(summarize(rows[:1])) == []


@given(
    st.lists(
        st.tuples(st.floats(0, 100), st.floats(0, 1), st.text(min_size=1, max_size=30)),
        min_size=1,
        max_size=12,
    )
)
def test_labels_of_points_cover_neither_points_nor_each_other(
    points: list[tuple[float, float, str]],
) -> None:
    series = [Series(label, ((x, y),), n) for n, (x, y, label) in enumerate(points)]
    plot = line_plot("solved, %", series, x=from_zero(100), y=percentages(), x_title="bytes")
    boxes = []
    for line in plot.lines:
        if line.label_at is not None:
            x, y, anchor = line.label_at
            width = 11 * len(line.label)
            left = {"start": x, "middle": x - width / 2, "end": x - width}[anchor]
            boxes.append((left, y - 11.9, left + width, y + 11.9))
    marks = [(x - 3, y - 3, x + 3, y + 3) for x, y in (line.end for line in plot.lines)]
    for place, box in enumerate(boxes):
        assert plot.left - 1 <= box[0] and box[2] <= plot.width + 1 and box[3] <= plot.bottom
        for other in (*boxes[:place], *marks):
            is_apart = box[2] <= other[0] or other[2] <= box[0]
            assert is_apart or box[3] <= other[1] or other[3] <= box[1]


def test_a_curve_ends_where_few_episodes_continue(row: MakeRow) -> None:
    rows = [row(task_id=number) for number in range(11)]
    traces = {each.key: trace([8] * (9 if each.task_id == 0 else 2)) for each in rows}
    (curve,) = curves(summarize(rows), traces)
    assert curve.num_episodes == (11, 11)


def test_scripts_and_missing_traces_have_no_curve(row: MakeRow) -> None:
    rows = [row()]
    assert byte_plots("hot bytes", curves(summarize(rows), {})) == []
    assert curves(summarize(rows), {rows[0].key: trace([])}) == []


def test_curves_flattened_by_a_high_one_get_a_second_plot_without_it() -> None:
    full = Curve("full", (1e6, 9e6), (1, 1))
    low = [Curve(name, (1e5, 2e5), (1, 1), n) for n, name in enumerate(("window", "h2o"), start=1)]
    both = byte_plots("hot bytes", [full, *low])
    assert [plot.title for plot in both] == [
        "hot bytes, MiB",
        "hot bytes, without full, KiB",
    ]
    assert [line.style for line in both[1].lines] == [1, 2]  # the styles of the first plot
    assert len(byte_plots("hot bytes", [full, low[0]])) == 1
    assert len(byte_plots("hot bytes", [full, *low, Curve("int8", (1e6, 4e6), (1, 1))])) == 1


def test_success_is_drawn_over_the_bands_of_lengths(row: MakeRow) -> None:
    lengths = (100, 3000, 3001, 20000)
    full = [row(task_id=i, kv_seen_tokens=tokens) for i, tokens in enumerate(lengths)]
    window = [row(task_id=i, policy="window", success=i in (0, 1)) for i in range(4)]
    plot = success_plot(policy_lines(summarize([*full, *window])))
    assert plot is not None
    assert [tick.label for tick in plot.x_ticks] == [
        "up to 2,047",
        "2,048 to 4,095",
        "16,384 or more",
    ]
    at = {float(tick.label): tick.at for tick in plot.y_ticks}
    drawn = [float(point.split(",")[1]) for point in plot.lines[1].points.split()]
    assert drawn == [at[100], (at[0] + at[100]) / 2, at[0]]
    assert plot.lines[1].last == "0 of 1 of the longest tasks"


def test_one_band_is_no_plot(row: MakeRow) -> None:
    assert success_plot(policy_lines(summarize([row(kv_seen_tokens=100)]))) is None


def test_every_line_style_looks_different() -> None:
    sheet = (resources.files("agentkv_tasks.report") / "templates/style.css").read_text()
    colours = dict(re.findall(r"\.s(\d+) \{ color: ([^;]+);", sheet))
    dashed = r"((?:\.s\d+ polyline,? )+)\{ stroke-dasharray: ([^;]+);"
    dashes = {
        number: dash
        for names, dash in re.findall(dashed, sheet)
        for number in re.findall(r"\d+", names)
    }
    looks = {(colours[str(style)], dashes.get(str(style))) for style in range(NUM_STYLES)}
    assert len(looks) == NUM_STYLES
    assert dashes.keys() <= colours.keys()


@given(
    st.lists(
        st.lists(st.floats(0, 1e11), min_size=1, max_size=40).map(tuple), min_size=1, max_size=10
    )
)
def test_curves_stay_within_the_frame_and_tick_labels_are_distinct(
    means: list[tuple[float, ...]],
) -> None:
    drawn = [Curve(f"policy {n}", each, (1,) * len(each)) for n, each in enumerate(means)]
    for plot in byte_plots("hot bytes", drawn):
        for line in plot.lines:
            for point in line.points.split():
                x, y = map(float, point.split(","))
                assert plot.left - 0.1 <= x <= plot.right + 0.1
                assert plot.top - 0.1 <= y <= plot.bottom + 0.1
        for ticks in (plot.x_ticks, plot.y_ticks):
            assert len({tick.label for tick in ticks}) == len(ticks) <= 11
        assert plot.y_ticks[0].label in ("0", "0.0", "0.00", "0.000", "0.0000")
