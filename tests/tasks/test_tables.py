"""The table of policies: paired counts per world, task and seed, and shares of the full cache."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from agentkv.settings import PolicySettings
from agentkv_tasks.report.summary import stored_baseline, summarize
from agentkv_tasks.report.tables import (
    Cost,
    distance_bands,
    length_bands,
    markdown,
    policy_lines,
    references,
)
from agentkv_tasks.results import ResultsError, Row
from agentkv_tasks.run.episode_runner import blank_row
from agentkv_tasks.run.plan import make_plan
from agentkv_tasks.settings import RunSettings
from agentkv_tasks.suites import load_suite

MakeRow = Callable[..., Row]


@pytest.fixture
def rows(row: MakeRow) -> list[Row]:
    """Two tasks in two worlds under three policies; `window` fails at long distances."""
    rows = []
    for world in (75, 76):
        for task, distance in ((0, 0), (1, 9)):
            for policy, success, peak in (
                ("full", (world, task) != (76, 0), 8192 * (task + 1)),
                ("window", distance == 0, 1024),
                ("conf-kv", True, 2048),
            ):
                rows.append(
                    row(
                        world_seed=world,
                        task_id=task,
                        category="form" if task else "shopping",
                        memory_distance_pages=distance,
                        policy=policy,
                        success=success,
                        kv_peak_bytes=peak,
                        kv_mean_bytes=peak // 2,
                    )
                )
    return rows


def test_a_task_in_two_worlds_counts_as_two_pairs(rows: list[Row]) -> None:
    full, window, conf = policy_lines(summarize(rows))
    assert full.against["full"] is None and window.against["window"] is None
    pairs = window.against["full"]
    assert pairs is not None
    assert (pairs.both, pairs.only_first, pairs.only_second, pairs.neither) == (1, 2, 1, 0)
    assert pairs.p_value == 1.0
    beside = conf.against["window"]
    assert beside is not None and (beside.only_first, beside.only_second) == (0, 2)
    assert beside.p_value == 1.0  # both are of one task


def test_p_values_are_corrected_for_the_number_of_policies(row: MakeRow) -> None:
    rows = [
        row(task_id=task, policy=policy, success=task >= failures)
        for task in range(20)
        for policy, failures in (("full", 0), ("window", 6), ("snapkv", 7), ("h2o", 0))
    ]
    summaries = summarize(rows)
    expected = [None, 2 * 2 / 2**6, 3 * 2 / 2**7, 1.0]
    assert [each.p_value for each in summaries] == expected
    lines = policy_lines(summaries, ["full"])
    assert [line.p_values["full"] for line in lines] == expected
    table = markdown(lines)
    assert "| 0 won, 6 lost, -30.0 (-50.0 to -10.0) points, p 0.062 |" in table
    assert "| 0 won, 0 lost, +0.0 (+0.0 to +0.0) points, p 1.000 |" in table


@pytest.mark.parametrize(("num_tasks", "is_shown"), [(71, False), (72, True)])
def test_few_tasks_show_of_no_policy_that_it_is_as_good(
    row: MakeRow, num_tasks: int, is_shown: bool
) -> None:
    rows = [row(task_id=n, policy=name) for n in range(num_tasks) for name in ("full", "window")]
    assert ("p 1.000, as good |" in markdown(policy_lines(summarize(rows)))) is is_shown


def test_success_is_split_by_memory_distance(rows: list[Row]) -> None:
    lines = policy_lines(summarize(rows))
    assert distance_bands(lines) == ["0", "8 to 15"]
    window = lines[1].by_distance
    assert (window["0"].num_successes, window["0"].num_episodes) == (2, 2)
    assert (window["8 to 15"].num_successes, window["8 to 15"].num_episodes) == (0, 2)


def test_one_band_or_older_rows_are_not_split_by_distance(row: MakeRow) -> None:
    assert distance_bands(policy_lines(summarize([row(memory_distance_pages=3)]))) == []
    old = policy_lines(summarize([row()]))
    assert old[0].by_distance == {} and distance_bands(old) == []


def test_success_is_split_by_the_tokens_that_the_baseline_had_seen(rows: list[Row]) -> None:
    assert length_bands(policy_lines(summarize(rows))) == []  # no row records its tokens
    # of a window that gives up early, task 1 is as long as the full cache found it
    seen = {"full": {0: 2047, 1: 9000}, "window": {0: 4000, 1: 300}, "conf-kv": {0: 1, 1: 1}}
    measured = [replace(row, kv_seen_tokens=seen[row.policy][row.task_id]) for row in rows]
    lines = policy_lines(summarize(measured))
    assert length_bands(lines) == ["up to 2,047", "8,192 to 16,383"]
    rates = lines[1].by_length
    assert {name: (each.num_successes, each.num_episodes) for name, each in rates.items()} == {
        "up to 2,047": (2, 2),
        "8,192 to 16,383": (0, 2),
    }
    main, by_length, *_ = markdown(lines).split("\n\n")
    assert "2,047" not in main
    assert by_length.splitlines()[0] == "| policy | up to 2,047 tokens | 8,192 to 16,383 tokens |"
    assert by_length.splitlines()[3] == "| window | 2/2 | 0/2 |"


def test_episodes_that_the_baseline_did_not_run_have_no_length(row: MakeRow) -> None:
    full = [row(task_id=i, kv_seen_tokens=tokens) for i, tokens in enumerate((100, 5000))]
    window = [row(task_id=i, policy="window", kv_seen_tokens=70) for i in range(3)]
    lines = policy_lines(summarize([*full, *window]))
    assert sum(each.num_episodes for each in lines[1].by_length.values()) == 2


def test_shares_compare_bytes_with_the_full_cache_on_common_episodes(rows: list[Row]) -> None:
    alone = [row for row in rows if (row.policy, row.task_id) != ("full", 1)]
    full, window, _ = policy_lines(summarize(rows))
    assert full.hot == full.whole == Cost(12288, None)
    assert window.hot == window.whole == Cost(1024, 1 / 12)
    assert window.worst == window.worst_hot == Cost(1024, 1 / 16)
    assert window.mean == Cost(512, 1 / 12)
    assert policy_lines(summarize(alone))[1].worst == Cost(1024, 1 / 8)


def test_without_a_cache_there_are_no_bytes(row: MakeRow) -> None:
    (line,) = policy_lines(summarize([row()]))
    assert line.hot == line.cold == line.whole == line.worst == line.mean == Cost(None, None)


def test_bytes_in_all_are_those_of_hot_and_of_cold_entries(row: MakeRow) -> None:
    rows = [
        row(kv_peak_bytes=1000),
        row(policy="lookback", kv_peak_bytes=300, kv_cold_bytes=350, kv_index_bytes=50),
    ]
    full, lookback = policy_lines(summarize(rows))
    assert lookback.hot == Cost(300, 0.3)
    assert lookback.cold == Cost(400, 0.4)
    assert lookback.whole == lookback.worst == Cost(700, 0.7)
    assert lookback.summary.hot_ratio == pytest.approx(1000 / 300)
    assert lookback.summary.all_ratio == pytest.approx(1000 / 700)
    assert full.cold == Cost(0, None) and full.whole == Cost(1000, None)
    text = markdown([full, lookback])
    assert "On a CPU cold entries lie in the same memory" in text
    assert "int4 is the better choice" in text
    assert "int4" not in markdown(policy_lines(summarize(rows[:1])))


def test_an_interval_without_0_beside_a_large_p_is_explained(row: MakeRow) -> None:
    def table(num_lost: int) -> str:
        rows = [
            row(task_id=task, policy=policy, success=policy == "full" or task >= num_lost)
            for task in range(75)
            for policy in ("full", "window")
        ]
        return markdown(policy_lines(summarize(rows)))

    explained = "The two answer different questions"
    assert "(-12.0 to -1.3) points, p 0.062" in table(5) and explained in table(5)
    assert "p < 0.001" in table(15) and explained not in table(15)
    assert explained not in table(1)


def test_references_are_chosen_by_name_and_must_exist(rows: list[Row]) -> None:
    summaries = summarize(rows)
    assert references(policy_lines(summaries)) == ["full", "window"]
    assert references(policy_lines(summaries, ["conf-kv"])) == ["conf-kv"]
    without = summarize([row for row in rows if row.policy == "conf-kv"])
    assert references(policy_lines(without)) == ["conf-kv"]
    with pytest.raises(ResultsError, match="no policy 'h2o' .* full, window, conf-kv"):
        policy_lines(summaries, ["full", "h2o"])


def test_policies_are_compared_on_the_same_model(rows: list[Row], row: MakeRow) -> None:
    lines = policy_lines(summarize([*rows, row(model="other", policy="window", success=False)]))
    other = next(line for line in lines if line.summary.model == "other")
    assert other.against == {"full": None, "window": None}
    assert other.whole.share is None


def test_no_figure_mixes_suites(rows: list[Row]) -> None:
    reworded = [replace(row, suite="reworded", success=not row.success) for row in rows]
    lines = policy_lines(summarize([*rows, *reworded]))
    assert [line.summary.label for line in lines] == [
        *("full (small)", "window (small)", "conf-kv (small)"),
        *("full (reworded)", "window (reworded)", "conf-kv (reworded)"),
    ]
    alone = policy_lines(summarize(rows))
    for line, same in zip(lines[:3], alone, strict=True):
        assert replace(line, summary=replace(line.summary, label=same.summary.label)) == same
    window = lines[4].summary
    assert (window.success.num_successes, window.success.num_episodes) == (2, 4)
    assert lines[3].summary.success.num_successes == 1
    assert [line.against["full"] is None for line in lines] == [True, False, False] * 2
    table = markdown(lines)
    assert table.count("| full (small) |") == 1 and table.count("| full (reworded) |") == 1
    assert "(8.3 %)" in table


def test_a_reference_of_one_suite_is_not_compared_with_another_suite(rows: list[Row]) -> None:
    reworded = [replace(row, suite="reworded") for row in rows]
    lines = policy_lines(summarize([*rows, *reworded]), ["window (small)"])
    compared = [line.summary.label for line in lines if line.against["window (small)"]]
    assert compared == ["full (small)", "conf-kv (small)"]


def test_the_table_is_formatted_as_markdown(rows: list[Row]) -> None:
    measured = [replace(each, tokens_in=1000 * (each.task_id + 1)) for each in rows]
    table, legend, _ = markdown(policy_lines(summarize(measured))).split("\n\n")
    lines = table.splitlines()
    assert lines[0] == (
        "| policy | solved | form | shopping | 0 pages back | 8 to 15 pages back | against full "
        "| against window | hot (of full) | cold (of full) | all (of full) "
        "| largest all (of full) | mean hot (of full) | tokens read |"
    )
    assert lines[1].count("--:") == 13
    assert lines[2] == (
        "| full | 3/4, 75.0 % | 2/2 | 1/2 | 1/2 | 2/2 | - "
        "| 2 won, 1 lost, +25.0 (-50.0 to +100.0) points, p 1.000 "
        "| 12.0 KiB | - | 12.0 KiB | 16.0 KiB | 6.0 KiB | 1,500 |"
    )
    assert lines[3] == (
        "| window | 2/4, 50.0 % | 0/2 | 2/2 | 2/2 | 0/2 "
        "| 1 won, 2 lost, -25.0 (-100.0 to +50.0) points, p 1.000 | - "
        "| 1.0 KiB (8.3 %) | - | 1.0 KiB (8.3 %) | 1.0 KiB (6.2 %) | 512 B (8.3 %) | 1,500 |"
    )
    assert "above -5 points" in legend
    assert len({line.count("|") for line in lines}) == 1


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        (("bfloat16", "bfloat16"), "full in bfloat16"),
        (("bfloat16", "float32"), "full"),
        (("model", "model"), "full"),
        ((None, None), "full"),
    ],
)
def test_shares_say_in_which_dtype_the_baseline_stores_its_entries(
    row: MakeRow, dtypes: tuple[str | None, ...], expected: str
) -> None:
    rows = [
        row(task_id=i, settings={} if dtype is None else {"cache_dtype": dtype})
        for i, dtype in enumerate(dtypes)
    ]
    summaries = summarize([*rows, row(policy="window", settings={"cache_dtype": "float16"})])
    assert stored_baseline(summaries) == expected
    assert f"hot (of {expected})" in markdown(policy_lines(summaries))


def test_a_label_cannot_break_the_table(row: MakeRow) -> None:
    lines = markdown(policy_lines(summarize([row(policy="a|b")]))).splitlines()
    assert len({line.count("|") for line in lines}) == 1


def test_every_row_records_the_memory_distance_of_its_task() -> None:
    suite = load_suite("vwa-long", world_seed=75)
    settings = RunSettings(model="stop", policies=(PolicySettings(name="full"),))
    plan = make_plan(settings, suite, suite.tasks[:3], sites={}, threads=1)
    for job in plan.jobs:
        assert job.task.memory_distance_pages > 0
        assert blank_row(plan, job).memory_distance_pages == job.task.memory_distance_pages
