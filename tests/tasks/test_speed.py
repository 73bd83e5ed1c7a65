"""`agentkv bench speed`: real runs of a tiny shape, and contenders that were broken on purpose.

Nothing here says how long anything takes.
"""

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from rich.console import Console
from rich.progress import Progress
from torch import Tensor
from transformers import Cache as TransformersCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from typer.testing import CliRunner

import agentkv
import agentkv.cache.keeper as keeper_module
import agentkv.cache.layer as layer_module
import agentkv.cache.step as step_module
from agentkv.cache.cache import Cache
from agentkv.cache.coded import CodedRows
from agentkv.cache.families import describe
from agentkv.cache.forward import ForwardCache
from agentkv.cache.keeper import Keeper
from agentkv.cache.lanes import Lanes
from agentkv.cache.layer import LayerStore
from agentkv.cli import cli
from agentkv.config import read_settings
from agentkv_kernels import ops
from agentkv_tasks.bench.speed import measure as measure_module
from agentkv_tasks.bench.speed import shapes as shapes_module
from agentkv_tasks.bench.speed.cell import Cell, Timed, measure_cell
from agentkv_tasks.bench.speed.clock import percentile
from agentkv_tasks.bench.speed.contenders import Ours, Transformers
from agentkv_tasks.bench.speed.judge import Judge
from agentkv_tasks.bench.speed.measure import Bench, conduct
from agentkv_tasks.bench.speed.shapes import MOST_BYTES, SHAPES, build, twin
from agentkv_tasks.bench.speed.split import Stopwatch
from agentkv_tasks.bench.speed.verify import WrongError, check_path

LAYERS, HEADS, DIM, FLOAT = 2, 2, 16, 4
"""Of the tiny shape."""

Rows = list[dict[str, Any]]
Measure = Callable[..., tuple[Rows, str]]


@pytest.fixture
def measure(tmp_path: Path) -> Measure:
    """Policies, and what differs from two rounds of three steps -> the file's rows, the output."""

    def run(*policies: object, **changes: Any) -> tuple[Rows, str]:
        values: dict[str, Any] = {
            "shape": "tiny",
            "batches": (1,),
            "lengths": (150,),
            "num_tokens": 3,
            "num_rounds": 2,
            "command": "agentkv bench speed",
            **changes,
        }
        settings = read_settings(
            policies=policies, budget=values.pop("budget", 64), chunk=96, device="cpu"
        )
        out = tmp_path / "rows" / "speed.jsonl"
        console = Console(width=80, record=True, file=io.StringIO())
        try:
            conduct(Bench(settings=settings, out=out, **values), console)
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


def test_every_cache_has_a_row_at_every_length_and_batch(measure: Measure) -> None:
    rows, said = measure("full", "conf-kv-int8", "ada-snapkv", lengths=(40, 150), batches=(1, 3))
    labels = ["transformers", "full", "conf-kv-int8", "ada-snapkv"]
    expected = [(batch, seen, label) for batch in (1, 3) for seen in (40, 150) for label in labels]
    assert [(row["batch"], row["seen"], row["label"]) for row in rows] == expected
    for row in rows:
        kept = 64 if row["label"] in labels[2:] and row["seen"] == 150 else row["seen"]
        assert row["kept_rows"] == kept
        assert row["num_tokens"] == 3 and len(row["round_p50_ms"]) == row["num_rounds"] == 2
        assert 0 < row["p20_ms"] <= row["p50_ms"] <= row["p80_ms"]
        assert set(row["split_ms"]) == {"attention", "bookkeeping", "compaction", "model"}
        # something was charged to the kernels, wherever the cache calls them
        assert row["split_parts_ms"]["attention"] > 0 and row["split_parts_ms"]["append"] > 0
        assert row["checked"]["logits"] < 1e-4
        assert row["command"] and row["device"] and row["versions"]["torch"] == torch.__version__
        if row["label"] == "transformers":
            full = 2 * LAYERS * HEADS * DIM * FLOAT * row["seen"] * row["batch"]
            assert row["live_bytes"] == full and row["peak_bytes"] is None
            assert (row["attention"], row["ratio"]) == ("sdpa", 1.0)
        else:
            assert row["checked"]["attention"] < 1e-5
            assert row["attention"] in ("numba", "reference")
            assert row["peak_bytes"] >= row["live_bytes"] > 0
    lines = said.rstrip().splitlines()
    assert max(map(len, lines[:-2])) <= 80 and "…" not in "".join(lines)
    short = json.loads(lines[-1])
    assert [each["label"] for each in short["rows"]] == [row["label"] for row in rows]
    assert all(f"batch {batch}" in said for batch in (1, 3)) and "tiny (random weights)" in said


def test_a_model_with_sinks_windows_and_experts_is_timed_against_eager_attention(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = {**SHAPES["tiny"][1], "num_local_experts": 4, "sliding_window": 24}
    shapes = {**SHAPES, "tiny-oss": (SHAPES["gpt-oss-20b"][0], tiny)}
    for module in (shapes_module, measure_module):
        monkeypatch.setattr(module, "SHAPES", shapes)
    rows, said = measure("full", "conf-kv", "ada-snapkv", shape="tiny-oss", against=("quantized",))
    found = {row["label"]: row for row in rows}
    assert found["transformers"]["attention"] == "eager" and "DynamicCache, eager" in said
    assert found["transformers"]["split_parts_ms"]["attention"] > 0
    assert all(row["checked"]["logits"] < 1e-4 for row in rows)
    assert "quantized-fp8: left out" in said  # it knows no windows


def test_ratios_are_those_of_the_same_rounds(measure: Measure) -> None:
    rows, _ = measure("window", num_rounds=3)
    base, ours = (row["round_p50_ms"] for row in rows)
    ratios = sorted(b / a for a, b in zip(base, ours, strict=True))
    assert rows[1]["ratio"] == pytest.approx(ratios[1])
    assert (rows[1]["ratio_least"], rows[1]["ratio_most"]) == pytest.approx((ratios[0], ratios[2]))


def test_rows_of_quantised_caches_say_how_far_they_were_from_the_original(
    measure: Measure,
) -> None:
    rows, said = measure("int8", "nf4", against=("quantized", "kvpress"), num_split_rounds=0)
    found = {row["label"]: row for row in rows}
    assert 0 < found["int8"]["checked"]["quantised"] < 0.03
    assert 0.03 < found["nf4"]["checked"]["quantised"] < 0.25
    assert not found["int8"]["split_ms"]
    for name in ("quantized-fp8", "quantized-quanto", "quantized-hqq", "kvpress"):
        assert any(label.startswith(name) for label in found) or f"{name}: left out" in said


def test_a_cache_is_asked_for_its_parts_and_left_as_it_was(measure: Measure) -> None:
    def watched() -> list[Any]:
        names = {
            layer_module: ("attend",),
            step_module: ("attend_lanes",),
            keeper_module: ("_scores",),
            ops: ("chosen",),
            LayerStore: ("attend",),
            ForwardCache: ("update", "attend", "finish", "check_input", "note_ids"),
            Cache: ("settle",),
            Keeper: ("evict", "store_by_rank"),
            Lanes: ("append", "apply", "drop", "drop_before", "quantise", "quantise_to"),
            TransformersCache: ("update",),
        }
        return [vars(owner)[name] for owner, some in names.items() for name in some]

    before, sdpa = watched(), ALL_ATTENTION_FUNCTIONS["sdpa"]
    rows, _ = measure("h2o", "conf-kv")
    assert all(a is b for a, b in zip(before, watched(), strict=True))
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa
    parts = {row["label"]: set(row["split_parts_ms"]) for row in rows}
    assert parts["transformers"] == {"attention", "append", "model"}
    assert {"tracking", "scores", "gate", "entry", "keep"} <= parts["h2o"]
    assert "gate" in parts["conf-kv"]


def _refused(measure: Measure, *policies: object, message: str, **changes: Any) -> None:
    with pytest.raises(WrongError, match=message):
        measure(*policies, **changes)
    rows, said = measure.last  # type: ignore[attr-defined]
    assert rows == [] and "p50" not in said and "{" not in said


def test_nothing_is_timed_where_attention_is_wrong(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = LayerStore.attend

    def louder(store: LayerStore, *args: Any) -> Tensor:
        return 1.05 * inner(store, *args)

    monkeypatch.setattr(LayerStore, "attend", louder)
    _refused(measure, "full", message="full is wrong: .* logits .* Nothing was timed")


def test_nothing_is_timed_where_a_kernel_goes_wrong_with_many_rows(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = LayerStore.attend

    def forgets(store: LayerStore, q: Tensor, *args: Any) -> Tensor:
        is_long = store.lanes is not None and max(store.lanes.counts) > 300
        return inner(store, q, *args) * (0.9 if is_long and q.shape[2] == 1 else 1.0)

    monkeypatch.setattr(LayerStore, "attend", forgets)
    _refused(measure, "full", lengths=(400,), message="after 40[01] tokens its attention is 0.1 ")


def test_nothing_is_timed_where_other_rows_stay_than_the_cache_says(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = Lanes.apply

    def one_off(lanes: Lanes, verdicts: Any) -> None:
        inner(lanes, verdicts)
        if any(verdict is not None for verdict in verdicts):
            values = lanes._dense.rows(1, 0)
            values.copy_(values.roll(1, dims=1))

    monkeypatch.setattr(Lanes, "apply", one_off)
    _refused(measure, "full", "window", message="window is wrong: .* hides the same rows")


def test_nothing_is_timed_where_quantised_rows_are_not_what_they_were(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = CodedRows.append

    def larger(coded: CodedRows, rows: Any) -> None:
        inner(coded, [(1.1 * keys, values) for keys, values in rows])

    monkeypatch.setattr(CodedRows, "append", larger)
    _refused(measure, "int8", message="rows in int8 are 0.1 of their norm .* at most 0.03")


def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = LayerStore.attend
    monkeypatch.setattr(LayerStore, "attend", lambda store, *args: -inner(store, *args))
    out = tmp_path / "speed.jsonl"
    result = call("--shape", "tiny", "--seen", "30", "--policies", "full", "--out", str(out))
    assert result.exit_code == 1 and not out.exists()
    assert "agentkv: full is wrong" in result.output and "Traceback" not in result.output


@torch.inference_mode()
def test_the_judge_agrees_with_a_model_that_has_a_mask(plain: Any) -> None:
    ids = torch.randint(256, (1, 12), generator=torch.Generator().manual_seed(3))
    judge = Judge(plain)
    found = judge.feed(ids[:, :9], None)
    torch.testing.assert_close(found, plain(ids[:, :9]).logits[:, -1], atol=1e-5, rtol=0)
    kept = [[[torch.tensor([0, 4, 8])] * HEADS]] * LAYERS
    found = judge.feed(ids[:, 9:], kept)
    visible = torch.ones(12, 12).tril().bool()
    visible[9:, :9] = torch.zeros(9).index_fill(0, torch.tensor([0, 4, 8]), 1).bool()
    mask = torch.zeros(1, 1, 12, 12).masked_fill(~visible, -torch.inf)
    expected = plain(ids, attention_mask=mask).logits[:, -1]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    with pytest.raises(AssertionError):  # hiding changes something
        torch.testing.assert_close(found, plain(ids).logits[:, -1], atol=1e-2, rtol=0)


@torch.inference_mode()
def test_a_policy_of_ones_own_is_checked_like_any(plain: Any) -> None:
    ours = twin(plain, "sdpa")
    agentkv.attach(ours)
    ids = torch.randint(256, (2, 120), generator=torch.Generator().manual_seed(4))
    policy = agentkv.scored("oldest", lambda rows: -rows.positions.float().expand(HEADS, -1))
    found = check_path(Ours("oldest", {}, policy, ours, 32, 48), plain, ids, 48)
    assert 0 < found["logits"] < 1e-4 and found["quantised"] == 0


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
    cell = Cell(ids=ids, seen=20, num_warm_up=2, num_rounds=3, num_split_rounds=1)
    return measure_cell(cell, contenders, Progress(disable=True))


@torch.inference_mode()
def test_an_interrupted_measurement_keeps_whole_rounds(plain: Any) -> None:
    # scored twice per token, once for each layer: prompt and check 4, a round 12
    found = []
    with pytest.raises(KeyboardInterrupt):
        for timed in _interrupted(plain, 4 + 2 * 12 + 5):
            found.append((timed.label, len(timed.rounds), len(timed.ratios), timed.num_split))
    assert found == [("transformers", 2, 2, 0), ("stops", 2, 2, 0)]
    with pytest.raises(KeyboardInterrupt):
        assert not list(_interrupted(plain, 4 + 5))


def test_interrupted_what_was_measured_is_shown_and_kept(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = measure_module.measure_cell

    def only_the_first(cell: Cell, *args: Any) -> Iterator[Timed]:
        if cell.seen != 40:
            raise KeyboardInterrupt
        yield from inner(cell, *args)

    monkeypatch.setattr(measure_module, "measure_cell", only_the_first)
    with pytest.raises(KeyboardInterrupt, match="2 rows measured so far: .*speed.jsonl"):
        measure("window", lengths=(40, 150))
    rows, said = measure.last  # type: ignore[attr-defined]
    assert [row["seen"] for row in rows] == [40, 40]
    assert "p50" in said and "150" not in said.split()


@pytest.mark.parametrize("name", sorted(SHAPES))
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
    watch = Stopwatch(lambda: None)
    inner = watch.wrapped(lambda: sum(range(1000)), "inner")
    outer = watch.wrapped(lambda: [inner() for _ in range(3)], "outer")
    before = watch.wrapped(lambda: None, "before")
    before()
    outer()
    assert set(watch.seconds) == {"before", "outer", "inner"}
    assert all(seconds >= 0 for seconds in watch.seconds.values())
    assert not watch._names


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["bench", "speed", *arguments])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shape", "gpt5"], "unknown shape 'gpt5'; known: tiny, gpt2"),
        (["--shape", "tiny", "--layers", "9"], "the shape has 2, so 1 to 2 fit"),
        (["--layers", "2"], "--layers is for a --shape"),
        (["--model", "stop"], "stop is a script"),
        (["--model", "nowhere"], "unknown model 'nowhere'"),
        (["--policies", "gatd"], "unknown policy 'gatd'"),
        (["--policies", "mine.toml"], "cannot read mine.toml"),
        (["--against", "vllm"], "'vllm' is unknown; known: transformers, quantized, kvpress"),
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
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    out = tmp_path / "speed.jsonl"
    result = call(*arguments, "--out", str(out))
    assert result.exit_code == 2, result.output
    assert message in result.output and "Traceback" not in result.output
    assert not out.exists()


def test_rows_that_are_there_are_not_overwritten_unasked(tmp_path: Path) -> None:
    out = tmp_path / "speed.jsonl"
    out.write_text("mine\n")
    result = call("--shape", "tiny", "--out", str(out))
    assert result.exit_code == 2 and "--fresh" in result.output
    assert out.read_text() == "mine\n"


def test_help_fits_80_columns() -> None:
    said = call("--help").output
    assert "--shape" in said and all(len(line) <= 80 for line in said.splitlines())
