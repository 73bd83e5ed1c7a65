"""Sessions at once are measured beside one session."""

import json
import sys
from pathlib import Path

import pytest

from agentkv_lab import at_once


def test_sessions_at_once_are_measured_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.jsonl"
    given = "--model nano --policy full --sessions 1,2 --tokens 6 --rounds 2 --threads 1"
    monkeypatch.setattr(sys, "argv", ["at_once", *given.split(), "--out", str(out)])
    at_once.main()
    head, *rows = map(json.loads, out.read_text().splitlines())
    assert head["model"] == "nano" and head["versions"]
    assert [(row["sessions"], row["round"]) for row in rows] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    for row in rows:
        assert 0 < row["tokens"] <= 6 * row["sessions"]
        assert 0 < row["first_token_s"] <= row["seconds"]
    one, two = capsys.readouterr().out.splitlines()[-2:]
    assert "1 at once" in one and "1.00 times (1.00 to 1.00)" in one and "2 at once" in two


def test_a_server_that_does_not_start_is_named_with_what_it_said() -> None:
    with pytest.raises(RuntimeError, match="did not start:\n(?s:.*)no-such-model"):
        with at_once.serving("no-such-model", "full", 1):
            pass
