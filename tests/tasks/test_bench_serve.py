"""`agentkv bench serve` talks to a real server, and to a loop that reads everything again."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.bench.serve.measure import ServeBench, run_bench
from agentkv_tasks.bench.serve.rows import ServeRow
from agentkv_tasks.settings import RunSettings


def test_the_server_reads_what_is_new_and_the_loop_all(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(" ".join(f"Boat {number} lies at berth {number % 7}." for number in range(200)))
    bench = ServeBench(
        settings=RunSettings.read(policies=("full", "window"), budget=128),
        num_turns=4,
        num_new=64,
        num_reply=4,
        num_rounds=1,
        text=text,
        out=tmp_path / "rows.jsonl",
    )
    run_bench(bench, Console(quiet=True))
    lines = bench.out.read_text().splitlines()
    rows = {(row.label, row.turn): row for row in (ServeRow(**json.loads(line)) for line in lines)}
    assert len(rows) == 3 * 4
    for turn in range(1, 5):
        again, full, window = (rows[label, turn] for label in ("re-read", "full", "window"))
        assert again.num_read == again.num_prompt
        assert again.first_token_ratio == again.bytes_ratio == 1
        assert full.num_prompt == again.num_prompt  # the same ids, and greedily the same replies
        if turn > 1:
            assert full.num_read == window.num_read < again.num_read
    assert rows["window", 4].peak_bytes < rows["full", 4].peak_bytes
    with pytest.raises(BenchError, match="has rows; give another --out"):
        run_bench(bench, Console(quiet=True))
