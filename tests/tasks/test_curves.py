"""Cache bytes over steps: means of the episodes that get there, drawn within the frame."""

import re
from collections.abc import Callable, Sequence
from importlib import resources

from hypothesis import given
from hypothesis import strategies as st

from agentkv.trace import Step, Trace
from agentkv_tasks.report.curves import NUM_STYLES, Curve, curves, plots
from agentkv_tasks.report.summary import summarise
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


def test_a_step_is_the_mean_of_the_episodes_that_got_there(row: MakeRow) -> None:
    rows = [row(task_id=number) for number in range(3)]
    traces = {rows[0].key: trace([10, 20, 30]), rows[1].key: trace([20, 60])}
    (curve,) = curves(summarise(rows), traces)
    assert curve == Curve("full", (15.0, 40.0, 30.0), (2, 2, 1))


def test_a_curve_ends_where_hardly_any_episode_goes_on(row: MakeRow) -> None:
    rows = [row(task_id=number) for number in range(11)]
    traces = {each.key: trace([8] * (9 if each.task_id == 0 else 2)) for each in rows}
    (curve,) = curves(summarise(rows), traces)
    assert curve.num_episodes == (11, 11)


def test_scripts_and_lost_traces_draw_nothing(row: MakeRow) -> None:
    rows = [row()]
    assert plots(curves(summarise(rows), {})) == []
    assert curves(summarise(rows), {rows[0].key: trace([])}) == []


def test_where_one_curve_presses_the_others_flat_those_have_a_plot_of_their_own() -> None:
    full = Curve("full", (1e6, 9e6), (1, 1))
    low = [Curve(name, (1e5, 2e5), (1, 1)) for name in ("window", "h2o")]
    both = plots([full, *low])
    assert [plot.title for plot in both] == ["live cache, mean, MiB", "without full, KiB"]
    assert [line.style for line in both[1].lines] == [1, 2]  # as in the first
    assert len(plots([full, low[0]])) == 1
    assert len(plots([full, *low, Curve("int8", (1e6, 4e6), (1, 1))])) == 1


def test_no_two_of_as_many_curves_as_a_table_has_look_alike() -> None:
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
def test_everything_is_drawn_within_the_frame_and_labels_do_not_repeat(
    means: list[tuple[float, ...]],
) -> None:
    drawn = [Curve(f"policy {n}", each, (1,) * len(each)) for n, each in enumerate(means)]
    for plot in plots(drawn):
        for line in plot.lines:
            for point in line.points.split():
                x, y = map(float, point.split(","))
                assert plot.left - 0.1 <= x <= plot.right + 0.1
                assert plot.top - 0.1 <= y <= plot.bottom + 0.1
        for ticks in (plot.x_ticks, plot.y_ticks):
            assert len({tick.label for tick in ticks}) == len(ticks) <= 11
        assert plot.y_ticks[0].label in ("0", "0.0", "0.00", "0.000", "0.0000")
