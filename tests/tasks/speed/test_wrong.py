"""Contenders that were broken on purpose, and the judge of them."""

import copy
import gc
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from rich.progress import Progress
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.cache_utils import StaticLayer

import agentkv
from agentkv.cache.layer import CacheLayer
from agentkv.cache.look_back import Look
from agentkv.cache.storage.backend import Backend
from agentkv.cache.storage.evictions import Eviction
from agentkv.cache.storage.layer_storage import LayerStorage
from agentkv.cache.storage.numba_backend import NumbaBackend
from agentkv_kernels.formats import Int8
from agentkv_kernels.layout import VALUES
from agentkv_tasks.bench.contenders.contender import Ours
from agentkv_tasks.bench.contenders.judge import CacheJudge
from agentkv_tasks.bench.contenders.models import LoadedModel, twin
from agentkv_tasks.bench.contenders.prepare import (
    check_contenders,
    make_contenders,
    make_ours,
    random_ids,
)
from agentkv_tasks.bench.contenders.verify import QUANTISED, ROWS, WrongError, check_path
from agentkv_tasks.settings import RunSettings

LAYERS, HEADS, DIM, FLOAT = 2, 2, 16, 4
"""The tiny shape."""

Entries = list[dict[str, Any]]
Measure = Callable[..., tuple[Entries, str]]


def _refused(measure: Measure, *policies: object, message: str, **changes: Any) -> None:
    with pytest.raises(WrongError, match=message):
        measure(*policies, **changes)
    rows, said = measure.last  # type: ignore[attr-defined]
    assert rows == [] and "p50" not in said and "{" not in said


def test_nothing_is_timed_where_attention_is_wrong(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = CacheLayer.attend

    def louder(store: CacheLayer, *args: Any, **how: Any) -> Tensor:
        return 1.05 * inner(store, *args, **how)

    monkeypatch.setattr(CacheLayer, "attend", louder)
    _refused(measure, "full", message="full is wrong: .* logits .* Nothing was timed")


def test_nothing_is_timed_where_a_kernel_goes_wrong_with_many_rows(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = NumbaBackend.append_attend

    def forgets(backend: NumbaBackend, storage: LayerStorage, *args: Any, **how: Any) -> Tensor:
        is_long = max(storage.counts) > 300
        return inner(backend, storage, *args, **how) * (0.9 if is_long else 1.0)

    monkeypatch.setattr(NumbaBackend, "append_attend", forgets)
    _refused(measure, "full", lengths=(400,), message="after 40[01] tokens its attention is 0.1 ")


@pytest.mark.parametrize(
    ("least", "message"),
    [
        # the model's own first step, of two tokens, is right: else it would go the ordinary way
        (2, "full is wrong: within 264 tokens its logits are 0.1 "),
        # only the state of the measurement has so many
        (300, "full is wrong: after 40[01] tokens the logits of its compiled step are 0.1 "),
    ],
)
def test_nothing_is_timed_where_the_compiled_step_is_wrong(
    measure: Measure, monkeypatch: pytest.MonkeyPatch, least: int, message: str
) -> None:
    step = pytest.importorskip("agentkv.cache.step", reason="Numba is not installed")
    inner = step.CompiledStep.run

    def louder(own: Any, members: Sequence[Sequence[CacheLayer]], *args: Any) -> Tensor:
        logits: Tensor = inner(own, members, *args)
        return logits * (1.1 if members[0][0].seen > least else 1.0)

    monkeypatch.setattr(step.CompiledStep, "run", louder)
    _refused(measure, "full", lengths=(400,), message=f"{message}.*Nothing was timed")


def test_nothing_is_timed_where_a_look_in_one_pass_is_another_than_layer_by_layer(
    measure: Measure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    inner = Look.attend
    monkeypatch.setattr(Look, "attend", lambda *args, **how: 0.5 * inner(*args, **how))
    looking = tmp_path / "looking.toml"
    parameters = '{ when = "always", blocks = 2 }'
    looking.write_text(f'base = {{ of = "lookback", parameters = {parameters} }}\nname = "looking"')
    message = "looking is wrong: after 40[01] tokens the logits of its compiled step are "
    _refused(measure, str(looking), lengths=(400,), message=message)


def test_nothing_is_timed_where_other_rows_stay_than_the_cache_says(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = NumbaBackend.drop

    def one_off(backend: NumbaBackend, evictions: Sequence[Eviction], **how: Any) -> None:
        inner(backend, evictions, **how)
        for eviction in evictions:
            values = eviction.storages[0].dense.entries(VALUES, 0)
            values.copy_(values.roll(1, dims=1))

    monkeypatch.setattr(NumbaBackend, "drop", one_off)
    _refused(measure, "full", "window", message="window is wrong: .* hides the same entries")


def test_nothing_is_timed_where_quantised_rows_are_not_what_they_were(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = Int8.encode

    def larger(form: Int8, x: Tensor) -> tuple[Tensor, Tensor]:
        return inner(form, 1.1 * x)

    monkeypatch.setattr(Int8, "encode", larger)
    # the compiled kernel encodes without it
    monkeypatch.setattr(NumbaBackend, "quantize_oldest", Backend.quantize_oldest)
    _refused(measure, "int8", message="entries in int8 are 0.1 of their norm .* at most 0.03")


def test_nothing_is_timed_where_another_librarys_cache_is_wrong(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = StaticLayer.update

    def forgets(layer: StaticLayer, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        keys, values = inner(layer, *args, **kwargs)
        return keys, values * (torch.arange(values.shape[2]) > 5)[:, None]

    monkeypatch.setattr(StaticLayer, "update", forgets)
    _refused(measure, "full", against=("static",), message="static is wrong: .* logits")


def test_what_is_wrong_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., Result]
) -> None:
    inner = CacheLayer.attend
    monkeypatch.setattr(CacheLayer, "attend", lambda *args, **how: -inner(*args, **how))
    out = tmp_path / "speed.jsonl"
    result = call("--shape", "tiny", "--seen", "30", "--policies", "full", "--out", str(out))
    assert result.exit_code == 1 and not out.exists()
    assert "agentkv: full is wrong" in result.output and "Traceback" not in result.output


@torch.inference_mode()
def test_the_judge_agrees_with_a_model_that_has_a_mask(plain: Any) -> None:
    ids = torch.randint(256, (1, 12), generator=torch.Generator().manual_seed(3))
    judge = CacheJudge(plain)
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


def test_rounding_in_a_deep_model_of_16_bits_is_no_mistake() -> None:
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=10,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        initializer_range=1.5 * 64**-0.5,
    )
    torch.manual_seed(0)
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    settings = RunSettings.read(
        policies=("conf-kv-int8",), budget=128, chunk=64, device="cpu", cache_dtype="model"
    )
    with torch.inference_mode():
        (ours,) = make_ours(settings, settings.policies, plain)
        found = check_path(ours, plain, random_ids(plain, 1, 208), 64)
    # rows of the last layers are not what they were in the judge's, quantized or not
    assert QUANTISED["int8"] < found["quantised"] < QUANTISED["int8"] + ROWS[torch.bfloat16]


def test_a_check_keeps_nothing_of_a_model(plain: Any) -> None:
    model = copy.deepcopy(plain)
    settings = RunSettings.read(
        policies=("window",), budget=64, chunk=96, device="cpu", cache_dtype="model"
    )
    gone = weakref.ref(next(model.parameters()))
    with torch.inference_mode():
        loaded = LoadedModel("tiny", model, "", served=model)
        contenders, _ = make_contenders(settings, (), loaded)
        check_contenders(settings, contenders, model, [1], Progress(disable=True), print)
    del model, contenders, loaded
    gc.collect()
    assert gone() is None
