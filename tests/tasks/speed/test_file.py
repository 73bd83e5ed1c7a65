"""A measurement goes on where its file stands."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.bench.speed.rows import speed_file

Entries = list[dict[str, Any]]
Measure = Callable[..., tuple[Entries, str]]


def _cells(rows: Entries) -> list[tuple[int, str, str]]:
    return [(row["seen"], row["label"], row["finished_at"]) for row in rows]


def test_what_is_there_is_not_measured_again(measure: Measure) -> None:
    before, _ = measure("window", lengths=(40,), num_split_rounds=0)
    after, said = measure("window", lengths=(60, 40), num_split_rounds=0)
    assert after[:2] == before
    assert [(row["seen"], row["label"]) for row in after[2:]] == [
        (60, "transformers"),
        (60, "window"),
    ]
    short = json.loads(said.rstrip().splitlines()[-1])
    assert sorted({row["seen"] for row in short["rows"]}) == [40, 60]


@pytest.mark.slow
def test_cells_without_all_their_rounds_are_measured_again(
    measure: Measure, tmp_path: Path
) -> None:
    before, _ = measure("window", lengths=(40, 60), num_split_rounds=0)
    path = tmp_path / "rows" / "speed.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    # the second length as if the run had been killed while its last row was written
    path.write_text("".join(lines[:3]) + lines[3][:50])
    after, _ = measure("window", lengths=(40, 60), num_split_rounds=0)
    assert [row["seen"] for row in after] == [40, 40, 60, 60, 60]
    assert after[:3] == before[:3]
    more, said = measure("window", lengths=(40,), num_rounds=3, num_split_rounds=0)
    assert [row["num_rounds"] for row in more] == [2] * 5 + [3] * 2
    assert len(json.loads(said.rstrip().splitlines()[-1])["rows"]) == 4


def test_rows_of_the_last_measurement_count(measure: Measure, tmp_path: Path) -> None:
    rows, _ = measure("window", lengths=(40,), num_split_rounds=0)
    path = tmp_path / "twice.jsonl"
    later = [{**row, "p50_ms": 77.0} for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *later]))
    assert [row.p50_ms for row in speed_file(path, fresh=False).rows] == [77.0, 77.0]
    assert speed_file(path, fresh=True).rows == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_tokens": 4}, "num_tokens were 3, now 4"),
        ({"budget": 48}, "parameters of window were"),
        ({"shape": None}, "model were 'tiny', now 'nano'"),
        ({"against": ("static",)}, None),
    ],
)
def test_rows_that_could_not_be_compared_are_not_mixed(
    measure: Measure, changes: dict[str, Any], message: str | None
) -> None:
    before, _ = measure("window", lengths=(40,), num_split_rounds=0)
    if message is None:  # one more contender: all take turns again
        after, _ = measure("window", lengths=(40,), num_split_rounds=0, **changes)
        assert after[:2] == before and len(after) == 5
        return
    with pytest.raises(BenchError, match=f"{message}.*--fresh"):
        measure("window", lengths=(40, 60), num_split_rounds=0, **changes)
    assert measure.last[0] == before  # type: ignore[attr-defined]


@pytest.mark.slow
def test_fresh_begins_anew(measure: Measure) -> None:
    before, _ = measure("window", lengths=(40,), num_split_rounds=0)
    after, _ = measure("full", lengths=(60,), num_split_rounds=0, fresh=True)
    assert [row["label"] for row in after] == ["transformers", "full"] and before


def test_rows_of_something_else_are_not_overwritten_unasked(
    tmp_path: Path, call: Callable[..., Result]
) -> None:
    out = tmp_path / "speed.jsonl"
    out.write_text("mine\n")
    result = call("--shape", "tiny", "--out", str(out))
    assert result.exit_code == 2 and "line 1" in result.output and "--fresh" in result.output
    assert out.read_text() == "mine\n"
