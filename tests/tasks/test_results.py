"""Rows survive crashes, are never counted twice, and belong to one run."""

import lzma
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.files import read_stored
from agentkv_tasks.results import (
    Attempt,
    Results,
    ResultsError,
    Row,
    mixed_versions,
    read_rows,
    refuse_other_settings,
    refuse_other_versions,
    unreset_warning,
)

MakeRow = Callable[..., Row]


def test_rows_are_read_back_as_written(tmp_path: Path, row: MakeRow) -> None:
    path = tmp_path / "deep" / "results.jsonl"
    rows = [row(task_id=1, answer="ünï\n\u2028code"), row(task_id=2, policy_parameters={"a": [1]})]
    with Results(path) as results:
        for each in rows:
            results.append(each)
    assert read_rows(path) == rows


def test_half_of_a_surrogate_pair_is_replaced(tmp_path: Path, row: MakeRow) -> None:
    with Results(tmp_path / "results.jsonl") as results:
        results.append(row(answer="half \ud800 of a pair"))
    assert read_rows(tmp_path / "results.jsonl") == [row(answer="half \ufffd of a pair")]


@given(cut=st.integers(min_value=0, max_value=3000))
def test_a_truncated_file_keeps_its_complete_rows_and_can_be_continued(
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


def test_the_order_of_parameters_does_not_change_the_key(row: MakeRow) -> None:
    assert (
        row(policy_parameters={"a": 1, "b": 2}).key == row(policy_parameters={"b": 2, "a": 1}).key
    )


def test_a_failed_episode_can_be_repeated_and_its_last_row_counts(
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


def test_the_error_names_a_broken_line(tmp_path: Path, row: MakeRow) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(row().to_json() + "\nnonsense\n" + row(seed=1).to_json() + "\n")
    with pytest.raises(ResultsError, match=r"results\.jsonl: line 2: not JSON"):
        read_rows(path)


def test_rows_that_were_compressed_are_read_and_continued(tmp_path: Path, row: MakeRow) -> None:
    path, compressed = tmp_path / "results.jsonl", tmp_path / "results.jsonl.xz"
    compressed.write_bytes(lzma.compress(row().to_json().encode() + b"\n"))
    assert read_rows(path) == [row()] and not path.exists()
    with Results(path) as results:
        results.append(row(seed=1))
    assert read_rows(path) == [row(), row(seed=1)]
    with Results(path, fresh=True) as results:
        assert results.rows == ()


@pytest.mark.parametrize("content", [b"nonsense", lzma.compress(b"{}\n")[:-8]])
def test_broken_compressed_rows_are_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "results.jsonl.xz").write_bytes(content)
    with pytest.raises(ResultsError, match=r"results\.jsonl: cannot be read: not a complete xz"):
        read_rows(tmp_path / "results.jsonl")


def test_a_row_is_read_back_with_its_earlier_attempts(tmp_path: Path, row: MakeRow) -> None:
    attempt = Attempt(status="crash", error="lost", steps=3, seconds=1.5, trace="traces/a.jsonl")
    path = tmp_path / "results.jsonl"
    path.write_text(row(attempts=(attempt,)).to_json() + "\n")
    assert read_rows(path) == [row(attempts=(attempt,))]


def test_rows_of_another_schema_are_rejected(tmp_path: Path, row: MakeRow) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(row(schema=99).to_json() + "\n")
    with pytest.raises(ResultsError, match="line 1: not a row of schema 1"):
        read_rows(path)


def test_two_runs_cannot_write_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with Results(path), pytest.raises(ResultsError, match="another run is writing here"):
        Results(path)
    Results(path).close()  # closing releases the lock


def test_a_fresh_start_discards_existing_rows(tmp_path: Path, row: MakeRow) -> None:
    path = tmp_path / "results.jsonl"
    with Results(path) as results:
        results.append(row())
    with Results(path, fresh=True) as results:
        assert results.rows == ()
    assert path.read_bytes() == b""


def test_a_run_with_other_settings_cannot_be_continued(tmp_path: Path, row: MakeRow) -> None:
    rows: list[Row] = [row()]
    refuse_other_settings(rows, {"scoring": "compat"}, tmp_path)
    with pytest.raises(ResultsError, match="scoring was 'compat', now 'mended'.*--fresh"):
        refuse_other_settings(rows, {"scoring": "mended"}, tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("steps", "many", "steps: Input should be a valid integer; found 'many'"),
        ("steps", 3.5, "steps: Input should be a valid integer"),
        ("settings", ["compat"], "settings: Input should be an object"),
        ("success", "yes", "success: Input should be a valid boolean"),
        ("policy_parameters", None, "policy_parameters: Input should be an object"),
        ("versions", {"torch": 2}, "versions.torch: Input should be a valid string"),
        ("seconds", float("nan"), "NaN is not a finite number"),
        ("task_id", 10**30, "a number of 31 digits"),
    ],
)
def test_the_error_for_a_wrong_type_names_file_line_and_field(
    tmp_path: Path, row: MakeRow, name: str, value: Any, message: str
) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(row().to_json() + "\n" + row(seed=1, **{name: value}).to_json() + "\n")
    with pytest.raises(ResultsError) as error:
        read_rows(path)
    assert f"results.jsonl: line 2: {message}" in str(error.value)


@pytest.mark.parametrize(
    "line",
    ["[" * 100_000, '{"schema": 1, "answer": "\\ud800"}', "[1]", "7"],
    ids=lambda line: line[:12],
)
def test_a_line_that_is_not_a_row_is_rejected(tmp_path: Path, line: str) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ResultsError, match="line 1: "):
        read_rows(path)


def test_committed_rows_of_older_runs_can_be_read() -> None:
    folder = Path(__file__).parents[2] / "lab" / "results" / "world_cpu-2-cores_2026-11-23"
    runs = sorted(folder.glob("world-75*/"))
    assert runs
    for path in (run / "results.jsonl" for run in runs):
        assert len(read_rows(path)) == len(read_stored(path).splitlines())


def test_a_setting_missing_from_older_rows_has_its_former_value(
    tmp_path: Path, row: MakeRow
) -> None:
    refuse_other_settings([row()], {"observations": "whole", "deterministic": False}, tmp_path)
    for name, value in (
        ("observations", "changes"),
        ("deterministic", True),
        ("weights", "0123456789abcdef"),
        ("chunk", 32),
    ):
        with pytest.raises(ResultsError, match=f"{name} was .*, now {value!r}"):
            refuse_other_settings([row()], {name: value}, tmp_path)


def test_a_run_of_other_versions_cannot_be_continued(tmp_path: Path, row: MakeRow) -> None:
    now = {"python": "3.12.1", "agentkv": "0.2.0", "torch": "2.13.0"}
    rows = [row(versions=now), row(versions={**now, "python": "3.11.9"})]
    refuse_other_versions(rows, now, tmp_path)
    for name, before in (("agentkv", "0.1.0"), ("torch", "2.12.0")):
        with pytest.raises(ResultsError, match=f"{name} was {before}, now .*--fresh"):
            refuse_other_versions([row(versions={**now, name: before})], now, tmp_path)
    with pytest.raises(ResultsError, match=r"agentkv was unknown, now 0\.2\.0"):
        refuse_other_versions([row()], now, tmp_path)


def test_rows_of_several_versions_or_commits_are_reported(row: MakeRow) -> None:
    same = [row(versions={"torch": "2.13.0"}, commit="abc"), row(versions={"torch": "2.13.0"})]
    assert mixed_versions(same[:1]) == []
    assert mixed_versions(same) == ["these rows come from several versions of commit: abc, unknown"]
    mixed = mixed_versions([*same[:1], row(versions={"torch": "2.12.0"}, commit="abc")])
    assert mixed == ["these rows come from several versions of torch: 2.12.0, 2.13.0"]


def test_rows_warn_if_a_task_ran_again_on_sites_that_nothing_resets(row: MakeRow) -> None:
    settings = {"unreset": ["wiki"]}
    first = row(settings=settings)
    assert unreset_warning([first, row(task_id=1, settings=settings)]) == ""
    assert unreset_warning([row(), row(policy="int4")]) == ""
    assert unreset_warning([row(), row(policy="int4"), row(task_id=1, settings=settings)]) == ""
    for again in (row(policy="int4", settings=settings), row(seed=1), row(model="other")):
        assert unreset_warning([first, again]).startswith("warning: nothing reset wiki between")
