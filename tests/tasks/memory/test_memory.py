"""`agentkv bench memory` with real processes and a tiny shape."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from rich.console import Console
from torch import Tensor
from typer.testing import CliRunner

from agentkv.cache.layer import CacheLayer
from agentkv_tasks.bench.contenders.prepare import ContenderBenchSettings
from agentkv_tasks.bench.contenders.verify import WrongError
from agentkv_tasks.bench.memory.episode import MemoryEpisode, measured
from agentkv_tasks.bench.memory.measure import MemoryBench, run_bench
from agentkv_tasks.bench.memory.process import EpisodeError, in_a_process
from agentkv_tasks.bench.memory.rows import MemoryRow
from agentkv_tasks.bench.memory.table import table
from agentkv_tasks.cli.app import cli
from agentkv_tasks.settings import RunSettings

ROW_BYTES = 2 * 2 * 2 * 16 * 4
"""Keys and values of a token in all layers and heads of the tiny shape, float32."""

Entries = list[dict[str, Any]]
Measure = Callable[..., tuple[Entries, str]]


@pytest.fixture
def measure(tmp_path: Path) -> Measure:
    """Policies, and what differs from two lengths -> the file's rows, the output."""

    def run(*policies: str, **changes: Any) -> tuple[Entries, str]:
        settings = RunSettings.read(
            policies=policies, budget=64, chunk=512, device="cpu", cache_dtype="model"
        )
        out = tmp_path / "rows" / "memory.jsonl"
        values = {"shape": "tiny", "lengths": (12_000, 300), "num_decoded": 3, **changes}
        console = Console(width=80, record=True, file=io.StringIO())
        try:
            run_bench(MemoryBench(settings=settings, out=out, command="agentkv", **values), console)
        finally:
            said = console.export_text()
            lines = out.read_text().splitlines() if out.exists() else []
            run.last = [json.loads(line) for line in lines], said  # type: ignore[attr-defined]
        found: tuple[Entries, str] = run.last  # type: ignore[attr-defined]
        return found

    return run


@pytest.fixture
def call() -> Callable[..., Result]:
    """`agentkv bench memory` with these arguments."""
    return lambda *arguments: CliRunner().invoke(cli, ["bench", "memory", *arguments])


def _episode(label: str, *, against: tuple[str, ...] = (), **changes: Any) -> MemoryEpisode:
    settings = RunSettings.read(
        policies=("window",), budget=64, chunk=96, device="cpu", cache_dtype="model"
    )
    bench = ContenderBenchSettings(
        settings=settings, shape="tiny", lengths=(200,), against=against, out=Path("rows.jsonl")
    )
    values: dict[str, Any] = {"num_positions": 400, "label": label, "seen": 200, "num_decoded": 5}
    return MemoryEpisode(bench=bench, **{**values, **changes})


@pytest.mark.exhaustive
def test_a_process_that_keeps_all_takes_more_the_longer_it_reads(measure: Measure) -> None:
    rows, said = measure("window")
    found = {(row["label"], row["seen"]): row for row in rows}
    # the shortest first, all caches at a length before the next
    assert list(found) == [
        ("transformers", 300),
        ("window", 300),
        ("transformers", 12_000),
        ("window", 12_000),
    ]
    for (label, _), row in found.items():
        assert row["growth_bytes"] == row["peak_bytes"] - row["loaded_bytes"] > 0
        short = found[label, 300]
        assert row["ratio"] == row["peak_bytes"] / short["peak_bytes"]
        assert row["growth_ratio"] == row["growth_bytes"] / short["growth_bytes"]
        assert row["checked"]["logits"] < 1e-4 and row["num_decoded"] == 3
        assert row["command"] and row["device"] and row["versions"]["torch"]
    for seen in (300, 12_000):
        row = found["transformers", seen]
        assert row["live_bytes"] == (seen + 3) * ROW_BYTES and row["kept_rows"] == seen + 3
        assert row["cache_peak_bytes"] is None
        row = found["window", seen]
        assert row["kept_rows"] == 64 and row["cache_peak_bytes"] >= row["live_bytes"]
    more = (
        found["transformers", 12_000]["growth_bytes"] - found["transformers", 300]["growth_bytes"]
    )
    assert more > 11_700 * ROW_BYTES
    assert found["window", 12_000]["live_bytes"] == found["window", 300]["live_bytes"]
    less = found["transformers", 12_000]["growth_ratio"] / found["window", 12_000]["growth_ratio"]
    assert less > 1
    lines = said.rstrip().splitlines()
    assert max(map(len, lines[:-3])) <= 80 and "…" not in "".join(lines)
    short_rows = json.loads(lines[-1])["rows"]
    assert [(each["label"], each["seen"]) for each in short_rows] == list(found)


def test_nothing_is_measured_where_a_cache_is_wrong(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = CacheLayer.attend

    def louder(store: CacheLayer, *args: Any, **how: Any) -> Tensor:
        return 1.05 * inner(store, *args, **how)

    monkeypatch.setattr(CacheLayer, "attend", louder)
    with pytest.raises(WrongError, match="window is wrong"):
        measure("window")
    assert measure.last[0] == [] and "peak" not in measure.last[1]  # type: ignore[attr-defined]


@pytest.mark.parametrize("label", ["transformers", "static", "window"])
def test_an_episode_is_a_prompt_and_what_is_decoded_after_it(label: str) -> None:
    taken = measured(_episode(label, against=("static",)))
    assert taken.measured == "process" and taken.resident_bytes > 0
    assert taken.kept_rows == (64 if label == "window" else 205)
    assert taken.peak_bytes > 0 and taken.loaded_bytes > 0
    if label == "transformers":
        assert taken.live_bytes == 205 * ROW_BYTES


@pytest.mark.slow
def test_the_table_says_what_was_measured(measure: Measure) -> None:
    rows, said = measure("window", lengths=(300,))
    assert "peak: resident memory while" in " ".join(said.split())
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table([replace(MemoryRow(**row), measured="device") for row in rows]))
    assert "peak: memory of the CUDA allocator while" in " ".join(console.export_text().split())


class _Kills:
    """Ends the process that reads it, as a machine without memory left does."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (9,)


@pytest.mark.slow
def test_a_process_that_was_killed_is_named() -> None:
    with pytest.raises(EpisodeError, match="window, 200 tokens: the process was killed"):
        in_a_process(measured, _episode("window", num_decoded=_Kills()))


@pytest.mark.slow
def test_a_process_of_llama_cpp_holds_its_own_weights_alone(measure: Measure) -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    pytest.importorskip("gguf", reason="gguf is not installed")
    rows, said = measure("window", against=("llama.cpp",))
    found = {(row["label"], row["seen"]): row for row in rows}
    # the heads of the tiny shape have 16 numbers
    assert "llama.cpp q8_0: left out" in said and "llama.cpp q4_0: left out" in said
    for label in ("llama.cpp f16", "llama.cpp no-fa"):
        for seen in (300, 12_000):
            row = found[label, seen]
            assert row["kind"] == "llama.cpp" and row["kept_rows"] == seen + 3
            assert row["live_bytes"] == (seen + 3) * ROW_BYTES // 2  # 16 bits
            assert row["growth_bytes"] == row["peak_bytes"] - row["loaded_bytes"] > 0
            # torch alone is larger
            assert row["loaded_bytes"] < found["transformers", seen]["loaded_bytes"] / 2
        more = found[label, 12_000]["peak_bytes"] - found[label, 300]["peak_bytes"]
        assert more > 11_000 * ROW_BYTES // 2


def test_what_measures_llama_cpp_imports_neither_torch_nor_transformers() -> None:
    names = "agentkv_tasks.cli.app, agentkv_tasks.bench.memory.llama_episode"
    code = f"import sys, {names}; print({{'torch', 'transformers'}} & set(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_sizes_that_are_asked_for_stand_before_quick_ones(
    tmp_path: Path, call: Callable[..., Result]
) -> None:
    out = tmp_path / "memory.jsonl"
    arguments = ["--shape", "tiny", "--policies", "window", "--quick", "--seen", "0"]
    result = call(*arguments, "--out", str(out))
    assert "--seen must be 1 or more; found 0" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shape", "gpt5"], "unknown shape 'gpt5'; known: tiny, gpt2"),
        (["--model", "nowhere"], "unknown model 'nowhere'"),
        (["--policies", "gatd"], "unknown policy 'gatd'"),
        (["--against", "vllm"], "'vllm' is unknown"),
        (["--seen", "0"], "--seen must be 1 or more; found 0"),
        (["--tokens", "0"], "--tokens"),
        (["--shape", "tiny", "--seen", "900000000"], "need about"),
    ],
)
def test_a_mistake_is_answered_before_anything_is_measured(
    arguments: list[str], message: str, tmp_path: Path, call: Callable[..., Result]
) -> None:
    out = tmp_path / "memory.jsonl"
    result = call(*arguments, "--out", str(out))
    assert result.exit_code == 2, result.output
    assert message in result.output and "Traceback" not in result.output
    assert not out.exists()


def test_rows_that_are_there_are_not_overwritten_unasked(
    tmp_path: Path, call: Callable[..., Result]
) -> None:
    out = tmp_path / "memory.jsonl"
    out.write_text("mine\n")
    result = call("--shape", "tiny", "--out", str(out))
    assert result.exit_code == 2 and "--fresh" in result.output
    assert out.read_text() == "mine\n"


def test_help_fits_80_columns(call: Callable[..., Result]) -> None:
    said = call("--help").output
    assert "--seen" in said and all(len(line) <= 80 for line in said.splitlines())
