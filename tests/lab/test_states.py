"""`agentkv_lab states`: nano along short streams, its numbers against arithmetic and against a
model that never heard of our cache."""

import io
import json
from collections.abc import Callable
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
from agentkv_lab.states.measure import StateBench, run_bench
from agentkv_tasks.bench.stream import of_world
from agentkv_tasks.settings import RunSettings

LAYERS = 6

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "bees.txt"
    lines = [f"link Bee number {i * i % 97} of hive {i} [{i}]" for i in range(80)]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def template() -> PlainTemplate:
    return PlainTemplate(AutoTokenizer.from_pretrained(NANO).backend_tokenizer)


Measure = Callable[..., tuple[Rows, str]]


@pytest.fixture
def measure(text: Path, tmp_path: Path) -> Measure:
    """Policies, and what differs from 100 tokens after 20 -> the file's rows, what was said."""

    def run(*policies: object, **changes: Any) -> tuple[Rows, str]:
        values: dict[str, Any] = {"num_tokens": 100, "num_prompt": 20, "num_parts": 3, **changes}
        settings = RunSettings.read(
            model="nano", policies=policies, budget=values.pop("budget", 64)
        )
        out = tmp_path / "rows" / "states.jsonl"
        console = Console(width=80, record=True, file=io.StringIO())
        run_bench(StateBench(settings=settings, text=text, out=out, **values), console)
        return [json.loads(line) for line in out.read_text().splitlines()], console.export_text()

    return run


def whole(rows: Rows) -> dict[str, Any]:
    return {row["label"]: row for row in rows if row["is_whole"]}


def test_shares_are_what_arithmetic_says(measure: Measure) -> None:
    rows, _ = measure("full", "window", {"name": "int8", "parameters": {"recent": 16}})
    found = whole(rows)
    seen = range(21, 121)
    assert found["full"]["original"] == 1 and found["full"]["evicted"] == 0
    kept = sum(min(64, count) / count for count in seen) / 100
    assert found["window"]["original"] == pytest.approx(kept, abs=1e-12)
    assert found["window"]["evicted"] == pytest.approx(1 - kept, abs=1e-12)
    # a block of 64 is quantised as soon as 16 + 64 rows are there
    quantised = sum(64 / count for count in seen if count >= 80) / 100
    assert found["int8 recent=16"]["quantised"] == pytest.approx(quantised, abs=1e-12)
    assert [layer["layer"] for layer in found["int8 recent=16"]["layers"]] == list(range(LAYERS))
    assert found["window"]["evictions"] == 120 - 64
    assert found["full"]["entries"] == list(seen)
    assert found["window"]["entries"] == [min(64, count) for count in seen]


def test_quantised_rows_are_followed_until_they_go(measure: Measure) -> None:
    rows, _ = measure(
        {"name": "int8", "parameters": {"recent": 16}},
        {"name": "arkv", "parameters": {"window": 8}},
        num_tokens=130,
    )
    found = whole(rows)
    # at 80 and at 144 tokens a block goes over; nothing is evicted
    assert found["int8 recent=16"]["lives"] == {
        "gone": 0,
        "median_age": None,
        "shortest_age": None,
        "alive": 2 * 64 * LAYERS,
        "longest_alive": 150 - 80,
    }
    lives = found["arkv window=8"]["lives"]
    assert lives["gone"] > 0 and lives["alive"] > 0
    # a trim leaves three quarters of 64 - 8 past rows, so the next one is 14 or 15 tokens away
    assert lives["shortest_age"] in (14, 15)
    assert lives["median_age"] >= lives["shortest_age"]
    assert found["arkv window=8"]["evictions"] == pytest.approx((150 - 64) / 14.5, abs=1.5)


def test_a_full_cache_is_at_no_distance_from_itself(measure: Measure) -> None:
    rows, _ = measure("full")
    distance = whole(rows)["full"]["distance"]
    assert abs(distance["divergence"]) < 1e-8 and distance["logit_distance"] < 1e-4
    assert distance["agreement"] == 1
    assert distance["nll"] == pytest.approx(distance["full_nll"], abs=1e-6)


@torch.no_grad()
def test_distances_are_those_of_a_model_whose_mask_hides_the_same_rows(
    measure: Measure, text: Path, template: PlainTemplate
) -> None:
    rows, _ = measure("window", budget=24, num_prompt=1, num_tokens=90)
    ids = template.encode(text.read_text())[:92]
    plain = AutoModelForCausalLM.from_pretrained(NANO, dtype=torch.float32)
    behind = torch.arange(91)[:, None] - torch.arange(91)
    logits = []
    for reach in (91, 24):  # a token sees itself and the rows that were left before it
        hidden = (behind < 0) | (behind > reach)
        mask = torch.zeros(91, 91).masked_fill(hidden, -torch.inf)[None, None]
        logits.append(plain(torch.tensor([ids[:91]]), attention_mask=mask).logits[0, 1:].double())
    full, narrow = (x.log_softmax(dim=-1) for x in logits)
    found = whole(rows)["window"]["distance"]
    divergences = (full.exp() * (full - narrow)).sum(dim=-1)
    assert divergences.mean() > 1e-3  # else there is nothing to be seen
    assert found["divergence"] == pytest.approx(float(divergences.mean()), rel=1e-3)
    assert found["worst_divergence"] == pytest.approx(float(divergences.max()), rel=1e-3)
    apart = (logits[0] - logits[1]).abs().mean()
    assert found["logit_distance"] == pytest.approx(float(apart), rel=1e-3)
    agree = (full.argmax(dim=-1) == narrow.argmax(dim=-1)).double().mean()
    assert found["agreement"] == pytest.approx(float(agree))
    for name, log_odds in (("nll", narrow), ("full_nll", full)):
        nll = -log_odds[torch.arange(90), torch.tensor(ids[2:])].mean()
        assert found[name] == pytest.approx(float(nll), rel=1e-5)


def test_parts_are_rows_of_their_own_and_make_up_the_whole(measure: Measure) -> None:
    rows, _ = measure("window", "fp8")
    for label, total in whole(rows).items():
        parts = [row for row in rows if row["label"] == label and not row["is_whole"]]
        assert [part["first"] for part in parts] == [20, 53, 86]
        assert sum(part["num_steps"] for part in parts) == total["num_steps"] == 100
        for name in ("original", "quantised", "evicted", "mean_bytes"):
            mean = sum(part[name] * part["num_steps"] for part in parts) / 100
            assert total[name] == pytest.approx(mean, rel=1e-3, abs=1e-9)
        assert all(part["lives"] is None for part in parts)
        assert total["stream_sha256"] == parts[0]["stream_sha256"]


def test_equal_runs_give_equal_rows(measure: Measure) -> None:
    first, _ = measure("snapkv", "conf-kv-int8", num_tokens=40)
    again, _ = measure("snapkv", "conf-kv-int8", num_tokens=40, fresh=True)
    apart = {"seconds", "finished_at"}
    for before, after in zip(first, again, strict=True):
        assert {k: v for k, v in before.items() if k not in apart} == {
            k: v for k, v in after.items() if k not in apart
        }


def test_rows_carry_all_parameters_and_tables_fit_80_columns(
    measure: Measure, tmp_path: Path
) -> None:
    composed = tmp_path / "arkv-evict.toml"
    composed.write_text('name = "arkv-evict"\nbase = "arkv"\nprecision = "snapkv"\n')
    rows, said = measure("arkv", str(composed), "conf-kv-int8", budget=96, num_tokens=110)
    found = whole(rows)
    assert found["arkv"]["policy_parameters"]["gamma"] == 263.81
    assert found["arkv"]["policy_parameters"]["budget"] == 96
    assert found["arkv-evict"]["policy_parameters"]["precision"]["of"] == "snapkv"
    assert found["arkv-evict"]["quantised"] == 0 < found["arkv"]["quantised"]
    # precision drops no rows
    assert found["arkv"]["evicted"] == pytest.approx(found["arkv-evict"]["evicted"], abs=1e-12)
    lines = said.splitlines()
    assert lines[-2].startswith("page: ") and max(map(len, lines[:-3])) <= 80
    assert "…" not in said and "arkv-evict" in said and "bees.txt, nano" in said


def call(*arguments: str) -> Result:
    return CliRunner().invoke(lab, ["states", *arguments])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policies", "full,gatd"], "unknown policy 'gatd'; known: "),
        (["--policies", "full,full"], "named twice"),
        (["--policies", "mine.toml"], "cannot read mine.toml"),
        (
            ["--model", "solution"],
            "is a script; give nano, smollm2, smollm2-web, a folder, a GGUF file or a hub id",
        ),
        (["--model", "nowhere"], "unknown model 'nowhere'"),
        (["--budget", "16", "--policies", "snapkv"], "16"),
        (["--tokens", "40000"], "32768 positions of nano"),
        (["--tokens", "9000"], "9513 are needed; give a longer file or lower --tokens"),
        (["--tokens", "8", "--parts", "9"], "--parts 9: expected 1 to 8"),
        (["--text", "nowhere.txt"], "--text nowhere.txt is not a file"),
        (["--out", "there.jsonl"], "there.jsonl exists already"),
        (["--out", "/proc/agentkv/rows.jsonl"], "/proc/agentkv"),
    ],
)
def test_a_mistake_is_answered_before_anything_is_read(
    arguments: list[str], message: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.jsonl").write_text("mine\n")
    if "--text" not in arguments:
        arguments = [*arguments, "--text", str(text)]
    result = call(*arguments)
    assert result.exit_code == 2, result.output
    assert message in result.output and "Traceback" not in result.output
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine\n"]


def test_help_fits_80_columns() -> None:
    assert all(len(line) <= 80 for line in call("--help").output.splitlines())


@pytest.mark.slow
@pytest.mark.browser
def test_the_world_is_read_as_an_agent_would_and_alike_each_time(
    template: PlainTemplate,
) -> None:
    grown: list[int] = []
    stream = of_world(7, template, 1500, on_page=grown.append)
    assert grown == sorted(grown) and grown[-1] >= 1500
    assert of_world(7, template, 1500, on_page=grown.append) == stream
    assert len(stream.ids) == len(stream.of_replies) == 1500
    written = [id for id, is_reply in zip(stream.ids, stream.of_replies, strict=True) if is_reply]
    assert template.decode(written).count("```") >= 4
    read = [id for id, is_reply in zip(stream.ids, stream.of_replies, strict=True) if not is_reply]
    assert "url http://" in template.decode(read)
