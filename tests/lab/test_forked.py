"""Forks are measured in bytes and milliseconds."""

import json
import sys
from pathlib import Path

import pytest

from agentkv_lab import forked


def test_forks_are_measured_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.jsonl"
    given = "--model nano --policies full,int8 --tokens 300 --forks 3 --decoded 3 --rounds 2"
    monkeypatch.setattr(sys, "argv", ["forked", *given.split(), "--out", str(out)])
    forked.main()
    head, *rows = map(json.loads, out.read_text().splitlines())
    assert head["model"] == "nano" and head["versions"]
    held = [row for row in rows if row["row"] == "bytes"]
    assert [row["policy"] for row in held] == ["full", "int8"]
    assert all(0.7 * row["alone"] < row["forked"] < 1.05 * row["alone"] for row in held)
    assert all(row["forked"] < row["after"] < 4 * row["alone"] for row in held)
    times = [row for row in rows if row["row"] == "speed"]
    assert [row["round"] for row in times] == [0, 1, 0, 1]
    assert all(min(row["unforked_ms"], row["copy_ms"], row["fork_ms"]) > 0 for row in times)
    assert "times; after 3 tokens of each" in capsys.readouterr().out
