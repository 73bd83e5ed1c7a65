"""Interrupted, asked for what cannot be, scaled to fit."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from rich.progress import Progress
from torch import Tensor
from transformers import AutoModelForCausalLM, GPT2Config

import agentkv
from agentkv.cache.hf.families import describe
from agentkv.models.find import find_model
from agentkv_tasks.bench.contenders.contender import Ours, Transformers
from agentkv_tasks.bench.contenders.models import (
    MOST_BYTES,
    MOST_OF_GPU,
    SHAPES,
    build,
    scale,
    twin,
)
from agentkv_tasks.bench.speed import measure as measure_module
from agentkv_tasks.bench.speed.cell import SpeedCell, Timed, measure_cell
from agentkv_tasks.bench.speed.clock import percentile
from agentkv_tasks.bench.speed.split import FrameCost, SplitStopwatch
from tests.sampling import sampled

LAYERS, HEADS, DIM, FLOAT = 2, 2, 16, 4
"""The tiny shape."""

Entries = list[dict[str, Any]]
Measure = Callable[..., tuple[Entries, str]]


class _Stops:
    """Scores by age, and is interrupted like by Ctrl-C when it has scored so often."""

    def __init__(self, often: int) -> None:
        self.left = often

    def __call__(self, rows: Any) -> Tensor:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt
        scores: Tensor = rows.positions.float().expand(HEADS, -1)
        return scores


def _interrupted(plain: Any, often: int) -> Iterator[Timed]:
    ours = twin(plain, "sdpa")
    agentkv.attach(ours)
    policy = agentkv.scored("stops", _Stops(often))
    contenders = [Transformers("transformers", plain, 64), Ours("stops", {}, policy, ours, 16, 64)]
    ids = torch.randint(256, (1, 26), generator=torch.Generator().manual_seed(5))
    cell = SpeedCell(
        ids=ids, seen=20, num_warm_up=2, num_tokens=4, num_rounds=3, num_split_rounds=1
    )
    return measure_cell(cell, contenders, Progress(disable=True), print)


@pytest.mark.slow
@torch.inference_mode()
def test_an_interrupted_measurement_keeps_whole_rounds(plain: Any) -> None:
    # scored twice per token, once for each layer: prompt and check 4, a round 12
    found = []
    with pytest.raises(KeyboardInterrupt):
        for timed in _interrupted(plain, 4 + 2 * 12 + 5):
            found.append((timed.label, len(timed.rounds), len(timed.ratios), len(timed.splits)))
    assert found == [("transformers", 2, 2, 0), ("stops", 2, 2, 0)]
    with pytest.raises(KeyboardInterrupt):
        assert not list(_interrupted(plain, 4 + 5))


@pytest.mark.slow
def test_interrupted_what_was_measured_is_shown_and_kept(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = measure_module.measure_cell

    def only_the_first(cell: SpeedCell, *args: Any) -> Iterator[Timed]:
        if cell.seen != 40:
            raise KeyboardInterrupt
        yield from inner(cell, *args)

    monkeypatch.setattr(measure_module, "measure_cell", only_the_first)
    with pytest.raises(KeyboardInterrupt, match="2 rows measured so far: .*speed.jsonl"):
        measure("window", lengths=(40, 150))
    rows, said = measure.last  # type: ignore[attr-defined]
    assert [row["seen"] for row in rows] == [40, 40]
    assert "p50" in said and "150" not in said.split()


@pytest.mark.parametrize("name", sampled(sorted(SHAPES), every=4))
def test_shapes_are_scaled_to_what_fits_anywhere_and_say_so(name: str) -> None:
    meta = torch.device("meta")
    loaded = build(name, meta, "float32", num_layers=None, num_positions=9000)
    held = sum(x.numel() * x.element_size() for x in loaded.model.parameters())
    assert held <= MOST_BYTES
    config, published = loaded.model.config, SHAPES[name][0](**SHAPES[name][1])
    assert config.max_position_embeddings >= 9000
    assert len(describe(loaded.model).layers) == config.num_hidden_layers
    for key, what in (("num_hidden_layers", "layers"), ("vocab_size", "vocabulary")):
        assert (getattr(config, key) < getattr(published, key)) == (what in loaded.scaled)
    for key in ("hidden_size", "num_attention_heads"):
        assert getattr(config, key) == getattr(published, key)


def test_a_twin_has_the_same_weights_and_an_attention_of_its_own(plain: Any) -> None:
    other = twin(plain, "eager")
    pairs = zip(plain.parameters(), other.parameters(), strict=True)
    assert all(a.data_ptr() == b.data_ptr() for a, b in pairs)
    assert plain.config._attn_implementation == "sdpa"
    assert other.config._attn_implementation == "eager"


def test_percentiles_are_those_of_torch() -> None:
    values = [5.0, 1.0, 2.5, 9.0, 4.0, 4.0]
    for share in (0.0, 0.2, 0.5, 0.8, 1.0):
        expected = torch.tensor(values, dtype=torch.float64).quantile(share)
        assert percentile(values, share) == pytest.approx(float(expected))


def test_time_is_charged_to_the_innermost_and_sums_to_the_whole() -> None:
    watch = SplitStopwatch(lambda: None)
    inner = watch.wrapped(lambda: sum(range(1000)), "inner")
    outer = watch.wrapped(lambda: [inner() for _ in range(3)], "outer")
    before = watch.wrapped(lambda: None, "before")
    before()
    outer()
    assert set(watch.seconds) == {"before", "outer", "inner"}
    assert all(seconds >= 0 for seconds in watch.seconds.values())
    assert not watch._names


def test_the_cost_of_a_frame_is_subtracted_once_per_frame() -> None:
    cost = FrameCost(inside=1000.0, outside=100.0)
    plain, mended = SplitStopwatch(lambda: None), SplitStopwatch(lambda: None, cost)
    for watch in (plain, mended):
        inner = watch.wrapped(lambda: None, "inner")
        watch.wrapped(lambda inner=inner: [inner() for _ in range(3)], "outer")()  # type: ignore[misc]
    assert min(plain.seconds.values()) >= 0.0
    # nothing is ever less than nothing
    assert mended.seconds == {"outer": 0.0, "inner": 0.0}
    assert mended._costs == {"outer": 1300.0, "inner": 3000.0}


def test_a_frame_costs_something() -> None:
    cost = FrameCost.measure(lambda: None)
    assert 0.0 < cost.inside and 0.0 < cost.outside


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shape", "gpt5"], "unknown shape 'gpt5'; known: tiny, gpt2"),
        (["--shape", "tiny", "--layers", "9"], "the shape has 2, so 1 to 2 fit"),
        (["--layers", "2"], "--layers needs a --shape"),
        (["--model", "stop"], "stop is a script"),
        (["--model", "nowhere"], "unknown model 'nowhere'"),
        (["--policies", "gatd"], "unknown policy 'gatd'"),
        (["--policies", "mine.toml"], "cannot read mine.toml"),
        (["--against", "vllm"], "'vllm' is unknown; known: transformers, static, quantized"),
        (["--seen", "0"], "--seen must be 1 or more; found 0"),
        (["--seen", "many"], "--seen 'many': expected whole numbers"),
        (["--batches", "-1"], "--batches must be 1 or more"),
        (["--tokens", "0"], "--tokens"),
        (["--dtype", "int8"], "dtype"),
        (["--device", "cuda:7"], "cuda:7"),
        (["--shape", "tiny", "--budget", "8", "--policies", "snapkv"], "budget"),
        (["--shape", "tiny", "--seen", "900000000"], "need about"),
    ],
)
def test_a_mistake_is_answered_before_anything_is_timed(
    arguments: list[str], message: str, tmp_path: Path, call: Callable[..., Result]
) -> None:
    out = tmp_path / "speed.jsonl"
    result = call(*arguments, "--out", str(out))
    assert result.exit_code == 2, result.output
    assert message in result.output and "Traceback" not in result.output
    assert not out.exists()


def test_more_tokens_than_a_model_has_positions_are_refused(
    tmp_path: Path, call: Callable[..., Result]
) -> None:
    config = GPT2Config(
        n_positions=64, n_layer=1, n_embd=12, n_head=1, bos_token_id=None, eos_token_id=None
    )
    model: Any = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path / "short")
    shutil.copy(Path(find_model("nano")) / "tokenizer.json", tmp_path / "short")
    out = tmp_path / "speed.jsonl"
    result = call("--model", str(tmp_path / "short"), "--seen", "100", "--out", str(out))
    assert result.exit_code == 2 and "Traceback" not in result.output
    assert "has 64 positions, and up to" in " ".join(result.output.split())
    assert not out.exists()


def test_sizes_that_are_asked_for_stand_before_quick_ones(
    tmp_path: Path, call: Callable[..., Result]
) -> None:
    out = tmp_path / "speed.jsonl"
    sizes = ["--quick", "--seen", "20", "--tokens", "2", "--split-rounds", "0"]
    result = call(*sizes, "--shape", "tiny", "--policies", "window", "--out", str(out))
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert {(row["seen"], row["num_tokens"]) for row in rows} == {(20, 2)}
    assert {row["num_rounds"] for row in rows} == {3}


def test_help_fits_80_columns(call: Callable[..., Result]) -> None:
    said = call("--help").output
    assert "--shape" in said and all(len(line) <= 80 for line in said.splitlines())


def test_a_card_of_24_gb_takes_eight_billion_weights_in_16_bits() -> None:
    kind, values = SHAPES["llama-3.1-8b"]
    # what an A10G of 24 GB says it has, less than other such cards
    assert scale(kind(**values), MOST_OF_GPU * 22_731 * 2**20, torch.bfloat16, None) == []
    assert scale(kind(**values), MOST_OF_GPU * 16 * 2**30, torch.bfloat16, None) != []
