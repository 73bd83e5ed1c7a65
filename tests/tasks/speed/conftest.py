"""Real runs of a tiny shape. Nothing here says how long anything takes."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from rich.console import Console
from typer.testing import CliRunner

from agentkv_tasks.bench.contenders.models import build
from agentkv_tasks.bench.speed.measure import SpeedBench, run_bench
from agentkv_tasks.cli.app import cli
from agentkv_tasks.settings import RunSettings

Entries = list[dict[str, Any]]
Measure = Callable[..., tuple[Entries, str]]


@pytest.fixture
def measure(tmp_path: Path) -> Measure:
    """Policies, and what differs from two rounds of three steps -> the file's rows, the output."""

    def run(*policies: object, **changes: Any) -> tuple[Entries, str]:
        values: dict[str, Any] = {
            "shape": "tiny",
            "batches": (1,),
            "lengths": (150,),
            "num_tokens": 3,
            "num_rounds": 2,
            "command": "agentkv bench speed",
            **changes,
        }
        settings = RunSettings.read(
            policies=policies,
            budget=values.pop("budget", 64),
            chunk=96,
            device="cpu",
            cache_dtype=values.pop("cache_dtype", "model"),
        )
        out = tmp_path / "rows" / "speed.jsonl"
        console = Console(width=80, record=True, file=io.StringIO())
        try:
            run_bench(SpeedBench(settings=settings, out=out, **values), console)
        finally:
            said = console.export_text()
            lines = out.read_text().splitlines() if out.exists() else []
            found = [json.loads(line) for line in lines]
            run.last = found, said  # type: ignore[attr-defined]
        return found, said

    return run


@pytest.fixture(scope="module")
def plain() -> Any:
    device = torch.device("cpu")
    return build("tiny", device, "auto", num_layers=None, num_positions=1024).model


@pytest.fixture
def call() -> Callable[..., Result]:
    """`agentkv bench speed` with these arguments."""
    return lambda *arguments: CliRunner().invoke(cli, ["bench", "speed", *arguments])
