"""Rows survive crashes, are never counted twice, and belong to one run."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkv_tasks.results import Results, ResultsError, Row, read_rows, refuse_other_settings

MakeRow = Callable[..., Row]


def test_rows_read_back_as_they_were_written(tmp_path: Path, row: MakeRow) -> None:
    path = tmp_path / "deep" / "results.jsonl"
    rows = [row(task_id=1, answer="ünï\n\u2028code"), row(task_id=2, policy_parameters={"a": [1]})]
    rows.append(row(task_id=3, answer="half \ud800 of a pair"))
    with Results(path) as results:
        for each in rows:
            results.append(each)
    assert read_rows(path) == rows


@settings(deadline=None, max_examples=30)  # fsync takes what it takes
@given(cut=st.integers(min_value=0, max_value=3000))
def test_a_file_cut_anywhere_keeps_its_complete_rows_and_can_be_continued(
    row: MakeRow, cut: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.jsonl"
        rows = [row(task_id=number) for number in range(4)]
        with Results(path) as results:
            for each in rows:
                results.append(each)
        whole = path.read_bytes()
        path.write_bytes(whole[:cut])
        num_complete = whole[:cut].count(b"\n")
        assert read_rows(path) == rows[:num_complete]
        with Results(path) as results:
            assert list(results.rows) == rows[:num_complete]
            for each in rows[num_complete:]:
                assert not results.has(each.key)
                results.append(each)
        assert path.read_bytes() == whole


def test_an_episode_is_done_once_it_has_a_row(tmp_path: Path, row: MakeRow) -> None:
    with Results(tmp_path / "results.jsonl") as results:
        results.append(row())
        assert results.has(row().key)
        assert not results.has(row(seed=1).key)
        assert not results.has(row(policy_parameters={"budget": 512}).key)
        with pytest.raises(AssertionError, match="counted already"):
            results.append(row())


def test_the_order_of_parameters_makes_no_other_key(row: MakeRow) -> None:
    assert (
        row(policy_parameters={"a": 1, "b": 2}).key == row(policy_parameters={"b": 2, "a": 1}).key
    )


def test_a_failure_of_the_harness_can_be_run_again_and_the_last_row_counts(
    tmp_path: Path, row: MakeRow
) -> None:
    path = tmp_path / "results.jsonl"
    failed = row(status="crash", success=False, score=0.0)
    with Results(path) as results:
        results.append(failed)
        assert results.has(failed.key)
        assert not results.has(failed.key, retry_failures=True)
        results.append(row())
    assert read_rows(path) == [row()]
    assert path.read_bytes().count(b"\n") == 2


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path, row: MakeRow) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(row().to_json() + "\nnonsense\n" + row(seed=1).to_json() + "\n")
    with pytest.raises(ResultsError, match=r"results\.jsonl: line 2: not JSON"):
        read_rows(path)


def test_rows_of_another_schema_are_refused(tmp_path: Path, row: MakeRow) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(row(schema=99).to_json() + "\n")
    with pytest.raises(ResultsError, match="line 1: not a row of schema 1"):
        read_rows(path)


def test_two_runs_cannot_write_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with Results(path), pytest.raises(ResultsError, match="another run is writing here"):
        Results(path)
    Results(path).close()  # and the lock goes with its holder


def test_a_fresh_start_forgets_what_was_there(tmp_path: Path, row: MakeRow) -> None:
    path = tmp_path / "results.jsonl"
    with Results(path) as results:
        results.append(row())
    with Results(path, fresh=True) as results:
        assert results.rows == ()
    assert path.read_bytes() == b""


def test_rows_of_other_settings_are_not_added_to(tmp_path: Path, row: MakeRow) -> None:
    rows: list[Row] = [row()]
    refuse_other_settings(rows, {"scoring": "compat"}, tmp_path)
    with pytest.raises(ResultsError, match="scoring was 'compat', now 'mended'.*--fresh"):
        refuse_other_settings(rows, {"scoring": "mended"}, tmp_path)
