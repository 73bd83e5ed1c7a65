"""Several runs are pooled, or rejected with a reason."""

from collections.abc import Callable
from pathlib import Path

import pytest

from agentkv_tasks.report.pool import read_runs
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


def test_runs_with_a_common_episode_are_rejected(write: Callable[..., Path], row: MakeRow) -> None:
    a, b = write("a", row(task_id=3)), write("b", row(task_id=3, status="crash", success=False))
    with pytest.raises(ResultsError, match="both hold task 3 of small in world 75 under full"):
        read_runs([a, b])
    with pytest.raises(ResultsError, match="given twice"):
        read_runs([a, a])


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
