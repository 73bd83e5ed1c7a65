"""`agentkv bench ppl`: nano on short texts, its numbers against a model that never heard of our
cache."""

import io
import json
import re
from collections.abc import Callable
from dataclasses import fields
from itertools import pairwise
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
from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.bench.ppl.measure import run_bench
from agentkv_tasks.bench.ppl.rows import PerplexityRow
from agentkv_tasks.bench.ppl.table import closed_share, nll_interval
from agentkv_tasks.bench.samples.measure import SampleBench
from agentkv_tasks.bench.stream import of_file
from agentkv_tasks.cli.app import cli
from agentkv_tasks.settings import RunSettings

Rows = dict[tuple[int, str], dict[str, Any]]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "bees.txt"
    path.write_text(
        "\n".join(f"link Bee number {i * i % 97} of hive {i} [{i}]" for i in range(400))
    )
    return path


Measure = Callable[..., tuple[Rows, str]]


@pytest.fixture
def measure(text: Path, tmp_path: Path) -> Measure:
    def run(*policies: object, **changes: Any) -> tuple[Rows, str]:
        values: dict[str, Any] = {"lengths": (300,), "num_tokens": 6, "num_samples": 2}
        settings = RunSettings.read(model="nano", policies=policies, chunk=32)
        out = tmp_path / "ppl.jsonl"
        console = Console(width=80, record=True, file=io.StringIO())
        bench = SampleBench(settings=settings, text=text, out=out, entries=160, **values | changes)
        run_bench(bench, console)
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        return {(row["seen"], row["label"]): row for row in rows}, console.export_text()

    return run


def test_likelihoods_are_those_of_transformers_and_of_a_mask_that_hides_the_past(
    measure: Measure, text: Path
) -> None:
    rows, said = measure("full", "window", "lookback-int8", fresh=True)
    template = PlainTemplate(AutoTokenizer.from_pretrained(NANO).backend_tokenizer)
    whole = text.read_text()
    plain = AutoModelForCausalLM.from_pretrained(NANO, dtype=torch.float32)
    halves = (whole, whole[len(whole) // 2 :])
    for sample, half in enumerate(halves):
        context = torch.tensor([template.encode(half)[:306]])
        with torch.no_grad():
            log_odds = plain(context).logits[0].double().log_softmax(dim=-1)
        found = -log_odds[torch.arange(299, 305), context[0, 300:]].mean()
        assert rows[300, "full"]["sample_nll"][sample] == pytest.approx(float(found), rel=0.01)
    nll = {label: row["nll"] for (_, label), row in rows.items()}
    assert nll["window"] != pytest.approx(nll["full"], rel=1e-3)
    window, look = rows[300, "window"], rows[300, "lookback-int8"]
    # the bytes are those of 160 entries of bfloat16 in every layer, with room for a block more
    assert window["parameters"]["budget"] == look["parameters"]["budget"]
    assert window["mean_bytes"] <= window["budget_bytes"] >= look["mean_bytes"]
    assert rows[300, "full"]["parameters"]["budget"] is None
    assert 0 < look["look_share"] <= 1 and look["cold_bytes"] > 0 == window["cold_bytes"]
    lines = said.splitlines()
    assert max(map(len, lines[:-3])) <= 80 and "bees.txt" in said and "…" not in said


def test_a_run_goes_on_where_it_ended_and_equal_runs_give_equal_rows(measure: Measure) -> None:
    few = {"lengths": (200,), "num_samples": 1}
    first, _ = measure("full", "window", **few)
    again, _ = measure("full", "window", "int4", **few)
    assert first.items() <= again.items() and (200, "int4") in again
    other, _ = measure("full", "window", "int4", fresh=True, **few)
    for place, row in again.items():
        for name in ("sample_nll", "mean_bytes", "stream_sha256"):
            assert other[place][name] == row[name]


def test_rows_say_that_samples_share_nothing_and_older_rows_are_refused(
    measure: Measure, tmp_path: Path
) -> None:
    few: dict[str, Any] = {"lengths": (200,), "num_samples": 1}
    rows, _ = measure("full", "window", **few)
    settings = [row["settings"] for row in rows.values()]
    assert [each["overlap"] for each in settings] == [False, False]
    out = tmp_path / "ppl.jsonl"
    out.write_text(out.read_text().replace(', "overlap": false', ""))
    with pytest.raises(BenchError, match="settings were .* now .*'overlap': False.*--fresh"):
        measure("full", "window", **few)


def test_policies_can_have_the_bytes_of_a_window_in_the_mean(measure: Measure) -> None:
    rows, _ = measure("full", "window", "conf-kv", match="mean", num_samples=1)
    full, window, conf = (rows[300, label] for label in ("full", "window", "conf-kv"))
    assert conf["mean_bytes"] == pytest.approx(window["mean_bytes"], rel=0.1)
    assert full["parameters"]["budget"] is None
    assert int(conf["parameters"]["budget"][:-1]) > int(window["parameters"]["budget"][:-1])
    again, _ = measure("full", "window", "conf-kv", match="mean", num_samples=1)
    assert again == rows, "finished rows are not measured again"


def test_a_model_is_measured_with_the_full_cache_alone(measure: Measure) -> None:
    alone, printed = measure("full", lengths=(200,), num_samples=1)
    assert list(alone) == [(200, "full")]
    assert "95 %" in printed and "closed" not in printed
    with pytest.raises(BenchError, match="full,int8 lacks window; the shares say where"):
        measure("full", "int8", lengths=(200,), num_samples=1)


def row(*sample_nll: float, sizes: tuple[int, ...] = (1, 3)) -> PerplexityRow:
    values: dict[str, Any] = {field.name: 0 for field in fields(PerplexityRow)}
    values |= {"sample_nll": list(sample_nll), "sample_tokens": list(sizes)}
    return PerplexityRow(**values)


def test_the_share_closed_is_of_the_nats_of_all_tokens() -> None:
    full, window = row(1.0, 2.0), row(3.0, 4.0)
    share, low, high = closed_share(row(3.0, 3.0), full=full, window=window)
    # 9 + 3 of 15 nats are left, where full has 7
    assert share == pytest.approx((15 - 12) / (15 - 7))
    assert low == pytest.approx(0) and high == pytest.approx(0.5)
    assert closed_share(full, full=full, window=window)[0] == 1
    assert closed_share(window, full=full, window=window) == (0, 0, 0)
    nothing, *_ = closed_share(full, full=window, window=full)
    assert nothing != nothing, "a window that is better leaves no gap"


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["bench", "ppl", *arguments])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policies", "full,int8"], "lacks window; the shares say where"),
        (["--policies", "full,window,gatd"], "unknown policy 'gatd'; known: "),
        (
            ["--model", "solution"],
            "is a script; give nano, smollm2, smollm2-web, a folder, a GGUF file or a hub id",
        ),
        (["--seen", "512"], "--seen 512: a window of 512 entries forgets nothing"),
        (["--seen", "40000"], "32768 positions of nano"),
        (["--seen", "9000"], "tokens for this model"),
        (["--entries", "8", "--policies", "full,window,snapkv"], "too small"),
        (["--sweep", "interval=3"], "window interval=3: a budget in bytes needs"),
        (["--text", "nowhere.txt"], "--text nowhere.txt is not a file"),
        (["--seen", "1000", "--samples", "40"], "do not overlap; 4 fit. Give --samples 4,"),
        (["--offset", "1000000"], "--offset 1000000: --text"),
    ],
)
def test_a_mistake_is_answered_before_anything_is_read(
    arguments: list[str], message: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if "--text" not in arguments:
        arguments = [*arguments, "--text", str(text)]
    result = call(*arguments)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.output.split()) and "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def template() -> PlainTemplate:
    return PlainTemplate(AutoTokenizer.from_pretrained(NANO).backend_tokenizer)


def test_parts_of_a_text_are_spread_over_all_of_it_and_share_nothing(
    template: PlainTemplate, tmp_path: Path
) -> None:
    path = tmp_path / "numbers.txt"
    lines = [f"line {number} of many" for number in range(2000)]
    path.write_text("\n".join(lines))
    stream = of_file(path, template, 5, 60)
    parts = [template.decode(stream.ids[i : i + 60]).splitlines() for i in range(0, 300, 60)]
    # the first and the last line of a part may be cut
    numbers = [[int(line.split()[1]) for line in part[1:-1]] for part in parts]
    firsts = [of_part[0] for of_part in numbers]
    assert firsts[0] == 1 and all(380 < b - a < 440 for a, b in pairwise(firsts))
    every = [number for of_part in numbers for number in of_part]
    assert every == sorted(set(every))
    skipped = of_file(path, template, 5, 60, offset=template.count("\n".join(lines[:1000])))
    assert "line 1000 of many" in template.decode(skipped.ids[:20])
    with pytest.raises(BenchError, match=r"too short for 5000 parts of 60 .*; (\d+) fit") as error:
        of_file(path, template, 5000, 60)
    fit = int(re.findall(r"--samples (\d+)", str(error.value))[0])
    assert len(of_file(path, template, fit, 60).ids) == 60 * fit
    assert fit > template.count(path.read_text()) // 60 * 0.9


def test_only_what_is_needed_of_a_long_text_is_encoded(
    template: PlainTemplate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, encoded = tmp_path / "long.txt", 0
    path.write_text("a line of a text\n" * 200_000)
    inner = PlainTemplate.encode

    def counting(self: PlainTemplate, text: str) -> list[int]:
        nonlocal encoded
        encoded += len(text)
        return inner(self, text)

    monkeypatch.setattr(PlainTemplate, "encode", counting)
    assert len(of_file(path, template, 8, 100).ids) == 800
    assert encoded < 20_000


def test_the_interval_of_a_perplexity_is_that_of_whole_samples() -> None:
    assert nll_interval(row(2.0, 2.0)) == (2, 2)
    assert nll_interval(row(1.0, 3.0, sizes=(1, 1))) == (1, 3)
    low, high = nll_interval(row(*[1.0, 3.0] * 20, sizes=(4,) * 40))
    assert 1.5 < low < 2 < high < 2.5
