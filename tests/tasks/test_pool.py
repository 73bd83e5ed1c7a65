"""Several runs are pooled, or rejected with a reason."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from agentkv_tasks.report.pool import pooled, read_runs
from agentkv_tasks.report.spread import spreads
from agentkv_tasks.report.summary import summarize
from agentkv_tasks.report.write import write_report
from agentkv_tasks.results import Results, ResultsError, Row

MakeRow = Callable[..., Row]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes rows to a folder of the given name."""

    def make(name: str, *rows: Row) -> Path:
        with Results(tmp_path / name / "results.jsonl") as results:
            for row in rows:
                results.append(row)
        return tmp_path / name

    return make


def settings(**changes: object) -> dict[str, object]:
    return {"scoring": "compat", "suite_digest": "a", "sites": {}, **changes}


def test_runs_of_other_worlds_and_policies_are_pooled(
    write: Callable[..., Path], row: MakeRow
) -> None:
    runs = read_runs([
        write("a", row(settings=settings())),
        write("b", row(world_seed=76, settings=settings(suite_digest="b"))),
        write("c", row(policy="window", settings=settings())),
    ])  # fmt: skip
    assert [len(rows) for rows in runs.values()] == [1, 1, 1]


def test_runs_with_different_settings_are_rejected_by_name(
    write: Callable[..., Path], row: MakeRow
) -> None:
    a = write("a", row(settings=settings()))
    with pytest.raises(ResultsError, match="scoring is 'mended' in one and 'compat' in the other"):
        read_runs([a, write("b", row(world_seed=76, settings=settings(scoring="mended")))])
    with pytest.raises(ResultsError, match="suite_digest is 'c' in one and 'a' in the other"):
        read_runs([a, write("c", row(policy="window", settings=settings(suite_digest="c")))])


def test_a_copy_of_a_row_is_rejected(write: Callable[..., Path], row: MakeRow) -> None:
    a, b = write("a", row(task_id=3)), write("b", row(task_id=3))
    with pytest.raises(ResultsError, match="both hold one row, of task 3 of small in world 75"):
        read_runs([a, b])
    with pytest.raises(ResultsError, match="given twice"):
        read_runs([a, a])


def repeats(row: MakeRow, solved: dict[str, int], *, seconds: float) -> list[Row]:
    """Rows of a run of eight tasks; each policy solves the first ones."""
    return [
        row(task_id=task, policy=policy, success=task < count, seconds=seconds)
        for policy, count in solved.items()
        for task in range(8)
    ]


def test_runs_of_equal_settings_are_repeats_that_show_their_spread(
    write: Callable[..., Path], row: MakeRow
) -> None:
    folders = [
        write("a", *repeats(row, {"full": 7, "window": 5}, seconds=1.0)),
        write("b", *repeats(row, {"full": 7, "window": 6}, seconds=2.0)),
    ]
    rows = [each for of in pooled(read_runs(folders)).values() for each in of]
    assert [each.repeat for each in rows] == [0] * 16 + [1] * 16
    assert len({each.key for each in rows}) == 32
    full, window = spreads(summarize(rows))
    assert (full.least, full.most, full.num_changed) == (7, 7, 0)
    assert (window.least, window.most, window.num_changed) == (5, 6, 1)
    assert window.p_values == (0.5, 1.0) and full.p_values == ()
    page = write_report(*folders).read_text()
    text = " ".join(re.sub(r"<[^>]+>", " ", page).split())
    assert "solved in each: full 7 each time; window 5 to 6." in text
    assert "5/8, 6/8 5 to 6 0.500, 1.000 1 of 8" in text
    alone = (folders[1] / "report.html").read_text()
    assert "<h2>Repeats" not in alone and "may give other figures" in alone


def test_repeats_are_compared_on_the_tasks_that_all_of_them_played(
    write: Callable[..., Path], row: MakeRow
) -> None:
    folders = [
        write("a", *repeats(row, {"full": 5}, seconds=1.0)),
        write("b", *repeats(row, {"full": 5}, seconds=2.0)[:4]),
    ]
    rows = [each for of in pooled(read_runs(folders)).values() for each in of]
    (full,) = spreads(summarize(rows))
    assert [(each.num_successes, each.num_episodes) for each in full.solved] == [(4, 4), (4, 4)]
    assert (full.num_tasks, full.num_changed) == (4, 0)
    assert "Repeats of the run solved the same tasks." in write_report(*folders).read_text()


def test_repeats_of_one_task_are_one_cluster(write: Callable[..., Path], row: MakeRow) -> None:
    folders = [
        write(str(number), *repeats(row, {"full": 8, "window": 7}, seconds=number))
        for number in range(6)
    ]
    rows = [each for of in pooled(read_runs(folders)).values() for each in of]
    window = summarize(rows)[1]
    assert window.against is not None and window.against.only_first == 6
    assert window.p_value == 1.0  # one task differs, however often it was played


def test_a_parameter_of_a_later_version_that_is_off_does_not_part_repeats(
    write: Callable[..., Path], row: MakeRow
) -> None:
    old = row(policy="int4", policy_parameters={"recent": 64})
    new = row(policy="int4", policy_parameters={"recent": 64, "sure": None, "budget": None})
    other = row(policy="int4", policy_parameters={"recent": 64, "sure": 0.9})
    runs = read_runs([write(str(n), each) for n, each in enumerate((old, new, other))])
    rows = [each for of in pooled(runs).values() for each in of]
    assert [each.repeat for each in rows] == [0, 1, 0]
    labels = [(each.label, len(each.rows)) for each in summarize(rows)]
    assert labels == [("int4 (sure=None)", 2), ("int4 (sure=0.9)", 1)]


def test_repeats_of_other_commits_are_said_to_be(write: Callable[..., Path], row: MakeRow) -> None:
    folders = [write(commit, row(commit=commit)) for commit in ("abc", "def")]
    caution = "Other code can give other figures: these rows come from several versions of commit"
    assert f"{caution}: abc, def." in write_report(*folders).read_text()
    assert caution not in (folders[0] / "report.html").read_text()


def test_a_deterministic_run_has_no_warning_of_repeats(
    write: Callable[..., Path], row: MakeRow
) -> None:
    rows = [row(policy=name, settings={"deterministic": True}) for name in ("full", "window")]
    assert "may give other figures" not in write_report(write("a", *rows)).read_text()


def test_the_error_names_a_folder_without_rows(write: Callable[..., Path], row: MakeRow) -> None:
    with pytest.raises(ResultsError, match=r"empty/results\.jsonl: no finished episode"):
        read_runs([write("a", row()), write("empty")])


def test_pooled_runs_get_a_common_report_and_one_each(
    write: Callable[..., Path], row: MakeRow, tmp_path: Path
) -> None:
    folders = [write(f"run-{seed}", row(world_seed=seed)) for seed in (75, 76)]
    path = write_report(*folders)
    assert path == tmp_path / "report.html"
    assert "2 episodes of 2 tasks" in path.read_text() and "run-75, run-76" in path.read_text()
    assert "1 episode of 1 task." in (folders[0] / "report.html").read_text()
    assert "By task of" not in path.read_text()
    assert write_report(*folders, out=tmp_path / "other") == tmp_path / "other" / "report.html"


def test_the_report_of_several_suites_names_the_suite_in_every_table(
    write: Callable[..., Path], row: MakeRow
) -> None:
    reworded = row(suite="small-reworded", success=False, status="crash", error="gone")
    path = write_report(write("a", row()), write("b", reworded))
    page = path.read_text()
    assert "<dd>small, small-reworded</dd>" in page
    assert "<th>full (small)</th><td>1/1</td>" in page
    assert "<th>full (small-reworded)</th><td>0/1</td>" in page
    assert "By task of small<" in page and "By task of small-reworded<" in page
    assert "<td>small-reworded 0</td>" in page
