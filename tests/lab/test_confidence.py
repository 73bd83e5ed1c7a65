"""`agentkv_lab confidence`: nano on short texts, its numbers against a model that never heard of
our cache."""

import io
import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from agentkv.dialog.prompt import PlainTemplate
from agentkv.models.find import NANO
from agentkv_lab.__main__ import lab
from agentkv_lab.confidence.measure import run_bench
from agentkv_lab.confidence.rows import ConfidenceRow
from agentkv_lab.confidence.table import area, caught, correlation
from agentkv_tasks.bench.samples.measure import SampleBench
from agentkv_tasks.settings import RunSettings

Rows = dict[str, dict[str, Any]]
Measure = Callable[..., tuple[Rows, str]]
SEEN, ENTRIES = 300, 160


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "bees.txt"
    path.write_text(
        "\n".join(f"link Bee number {i * i % 97} of hive {i} [{i}]" for i in range(400))
    )
    return path


@pytest.fixture
def measure(text: Path, tmp_path: Path) -> Measure:
    def run(*policies: object, **changes: Any) -> tuple[Rows, str]:
        settings = RunSettings.read(
            model="nano",
            policies=policies,
            chunk=32,
            cache_dtype=changes.pop("cache_dtype", "auto"),
        )
        out = tmp_path / "confidence.jsonl"
        console = Console(width=80, record=True, file=io.StringIO())
        values: dict[str, Any] = {"lengths": (SEEN,), "num_tokens": 8, "num_samples": 3}
        run_bench(
            SampleBench(settings=settings, text=text, out=out, entries=ENTRIES, **values | changes),
            console,
        )
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        return {row["label"]: row for row in rows}, console.export_text()

    return run


@torch.no_grad()
def test_both_predictions_are_those_of_transformers(measure: Measure, text: Path) -> None:
    rows, said = measure("window", cache_dtype="float32", fresh=True)
    found = rows["window"]
    template = PlainTemplate(AutoTokenizer.from_pretrained(NANO).backend_tokenizer)
    ids = template.encode(text.read_text())[: SEEN + 8]
    plain = AutoModelForCausalLM.from_pretrained(NANO, dtype=torch.float32)
    logits = plain(torch.tensor([ids])).logits[0, SEEN - 1 : SEEN + 7].double()
    odds = logits.log_softmax(dim=-1)
    # the first sample begins at the first place that the longest context allows
    top = [each[2] for each in found["full_features"][:8]]
    assert top == pytest.approx(odds.exp().amax(-1).tolist(), abs=1e-4)
    entropy = -(odds.exp() * odds).sum(-1) / torch.tensor(float(logits.shape[-1])).log()
    assert [each[0] for each in found["full_features"][:8]] == pytest.approx(
        (1 - entropy).tolist(), abs=1e-4
    )
    assert any(found["changed"]) and not all(found["changed"])
    for divergence, is_changed in zip(found["divergence"], found["changed"], strict=True):
        assert divergence > -1e-6 and (not is_changed or divergence > 1e-4)
    assert found["changed_by_look"] == [None] * 24
    assert len(found["divergence"]) == sum(found["sample_tokens"]) == 24
    lines = said.splitlines()
    assert max(map(len, lines[:-3])) <= 80 and "bees.txt" in said and "…" not in said


def test_under_a_policy_that_looks_back_every_token_tells_what_its_look_changes(
    measure: Measure,
) -> None:
    rows, _ = measure("lookback-int8", fresh=True)
    (found,) = rows.values()
    assert found["label"] == "lookback-int8 when=always"
    assert None not in found["changed_by_look"] and None not in found["look_divergence"]
    before, after = sum(found["divergence"]), sum(found["look_divergence"])
    assert after < before, "a look brings the prediction nearer to the whole past"


def test_equal_runs_give_equal_rows_and_a_page(measure: Measure, tmp_path: Path) -> None:
    first, _ = measure("window", "lookback-int8", fresh=True)
    again, said = measure("window", "lookback-int8", fresh=True)
    apart = {"seconds", "finished_at"}
    for label, row in first.items():
        assert {k: v for k, v in row.items() if k not in apart} == {
            k: v for k, v in again[label].items() if k not in apart
        }
    page = (tmp_path / "confidence.html").read_text()
    assert page.count('<svg class="plot"') == 2 and "lookback-int8 when=always" in page
    assert "<script" not in page and "http:" not in page and "https:" not in page
    assert str(tmp_path / "confidence.html") in said


def row(**values: Any) -> ConfidenceRow:
    blank: dict[str, Any] = {field.name: 0 for field in fields(ConfidenceRow)}
    blank |= {"sample_tokens": [2, 2], "changed_by_look": [None] * 4}
    return ConfidenceRow(**blank | values)


def test_an_alarm_catches_the_missed_tokens_below_its_threshold() -> None:
    tops = [0.2, 0.6, 0.8, 0.995]
    features = [[0.0, 0.0, top] for top in tops]
    changed = [True, False, True, False]
    full = features[::-1]
    found = row(
        features=features, full_features=full, changed=changed, divergence=[4.0, 3.0, 2.0, 1.0]
    )
    assert caught(found, 0.5) == (0.5, 0.25)
    assert caught(found, 0.9) == (1.0, 0.75)
    assert area(found, of_full=False) == 0.75
    assert area(found, of_full=True) == 0.25
    assert correlation(found, of_full=False)[0] == -1
    looking = row(features=features, changed=changed, changed_by_look=[False, True, False, None])
    assert looking.missed == [False, True, False, False]
    assert caught(looking, 0.5) == (0.0, 0.25)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(lab, ["confidence", *arguments])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policies", "window,full"], "full: it evicts nothing"),
        (["--policies", "windw"], "unknown policy 'windw'"),
        (["--sweep", "threshold"], "expected a parameter and its values"),
        (["--sweep", "thresold=0.5"], "no policy has this parameter. There are window: "),
        (["--sweep", "threshold=2,high"], "threshold must be"),
        (["--seen", "512"], "--seen 512: a window of 512 entries forgets nothing"),
    ],
)
def test_a_mistake_is_answered_before_anything_is_read(
    arguments: list[str], message: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call(*arguments, "--text", str(text))
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.output.split()) and "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []
