"""The committed results: compressed rows, which the commands read as they stand."""

import json
import lzma
import shutil
from pathlib import Path

from typer.testing import CliRunner

from agentkv.files import read_stored
from agentkv_lab.injection.rows import InjectionRow
from agentkv_tasks.bench.row_file import RowFile
from agentkv_tasks.cli.app import cli

RESULTS = Path(__file__).parents[2] / "lab" / "results"


def test_every_folder_says_how_its_rows_were_made() -> None:
    folders = [path for path in RESULTS.iterdir() if path.is_dir()]
    assert folders and all((folder / "README.md").is_file() for folder in folders)


def test_all_rows_are_compressed_lines_of_json() -> None:
    assert list(RESULTS.rglob("*.jsonl")) == []
    for path in RESULTS.rglob("*.jsonl.xz"):
        lines = lzma.decompress(path.read_bytes()).splitlines()
        assert lines and all(isinstance(json.loads(line), dict) for line in (lines[0], lines[-1]))


def test_the_report_reads_committed_rows(tmp_path: Path) -> None:
    kept = RESULTS / "make-run_cpu-2-cores_2026-11-27" / "results.jsonl.xz"
    shutil.copy(kept, tmp_path)
    result = CliRunner().invoke(cli, ["report", str(tmp_path)])
    assert result.exit_code == 0 and "lookback-int8" in result.output, result.output
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["report.html", kept.name]


def test_a_benchmark_continues_committed_rows(tmp_path: Path) -> None:
    shutil.copy(RESULTS / "injection_cpu-2-cores_2026-11-27" / "injection.jsonl.xz", tmp_path)
    path = tmp_path / "injection.jsonl"
    before = read_stored(path)
    file = RowFile(path, InjectionRow, lambda row: row.finished_at + row.place, fresh=False)
    assert not path.exists()
    file.add(file.rows[0])
    assert path.read_bytes() == before + before.splitlines(keepends=True)[0]


def test_a_plain_file_wins_over_its_compressed_form(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b"plain")
    (tmp_path / "rows.jsonl.xz").write_bytes(lzma.compress(b"compressed"))
    assert read_stored(tmp_path / "rows.jsonl") == b"plain"
