"""llama.cpp as a contender: the same logits from the same weights, and what it is left out for."""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from agentkv_tasks.bench.contenders import others as others_module
from agentkv_tasks.bench.contenders.gguf_file import require_writable
from agentkv_tasks.bench.contenders.llama_context import VARIANTS
from agentkv_tasks.bench.contenders.llama_format import stored
from agentkv_tasks.bench.contenders.models import load
from agentkv_tasks.bench.contenders.others import others
from agentkv_tasks.bench.contenders.prepare import random_ids
from agentkv_tasks.bench.contenders.verify import LOGITS, OTHERS, WrongError, check_path
from agentkv_tasks.bench.errors import BenchError

Entries = list[dict[str, Any]]
Measure = Callable[..., tuple[Entries, str]]

SHAPE: Mapping[str, Any] = {
    "vocab_size": 200,
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "initializer_range": 0.13,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 512,
}
FAMILIES: Mapping[str, tuple[Any, Mapping[str, Any]]] = {
    "llama": (LlamaConfig, {}),
    "llama with biases": (LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    "llama with large heads": (LlamaConfig, {"head_dim": 64}),
    "llama with yarn": (LlamaConfig, {"rope_parameters": YARN, "max_position_embeddings": 2048}),
    "mistral": (MistralConfig, {"sliding_window": None}),
    "qwen2": (Qwen2Config, {"tie_word_embeddings": True}),
    "qwen3": (Qwen3Config, {"head_dim": 64}),
}


def _model(family: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    kind, own = FAMILIES[family]
    torch.manual_seed(0)
    config = kind(**{**SHAPE, **own, **changes})
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def _contenders(model: Any) -> dict[str, Any]:
    found, missing = others(("llama.cpp",), model, chunk=64, budget=None)
    assert not missing
    return {each.label: each for each in found[1:]}


def _need_llama_cpp() -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    pytest.importorskip("gguf", reason="gguf is not installed")


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_it_computes_what_transformers_computes_from_the_same_weights(family: str) -> None:
    _need_llama_cpp()
    model = _model(family)
    contenders = _contenders(model)
    assert list(contenders) == list(VARIANTS)
    for label, contender in contenders.items():
        for batch in (1, 3):
            found = check_path(contender, model, random_ids(model, batch, 120), 64)
            assert 0 < found["logits"] < LOGITS[torch.float32] + OTHERS[label]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.inference_mode()
def test_weights_stay_in_16_bits(dtype: torch.dtype) -> None:
    _need_llama_cpp()
    model = _model("llama", dtype)
    for label, contender in _contenders(model).items():
        found = check_path(contender, model, random_ids(model, 1, 120), 64)
        assert 0 < found["logits"] < LOGITS[dtype] + OTHERS[label]


@torch.inference_mode()
def test_it_reads_nano_whose_rotation_is_scaled() -> None:
    _need_llama_cpp()
    model = load("nano", torch.device("cpu"), "auto").model
    contenders = _contenders(model)
    # four bits move the logits by more than half of the largest, unless the judge stores the same
    for label, most in (("llama.cpp no-fa", 0.01), ("llama.cpp q4_0", 0.2)):
        found = check_path(contenders[label], model, random_ids(model, 1, 300), 128)
        assert found["logits"] < most


@torch.inference_mode()
def test_a_wrong_file_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    _need_llama_cpp()
    name = "agentkv_tasks.bench.contenders.gguf_file._neighbours"
    monkeypatch.setattr(name, lambda tensor, head_dim: tensor)
    model = _model("llama")
    for label, contender in _contenders(model).items():
        with pytest.raises(WrongError, match=f"{label} is wrong: within 120 tokens its logits"):
            check_path(contender, model, random_ids(model, 1, 120), 64)


@pytest.mark.parametrize("batch", [1, 2])
@torch.inference_mode()
def test_what_came_after_a_saved_state_leaves_no_trace(batch: int) -> None:
    _need_llama_cpp()
    model = _model("qwen3")
    ids = random_ids(model, batch, 60)
    for contender in _contenders(model).values():
        contender.begin(60, batch)
        contender.feed(ids[:, :40])
        held = contender.live_bytes
        contender.hold()
        steps = []
        for _ in range(2):
            contender.resume()
            assert (contender.num_rows, contender.live_bytes) == (40, held)
            steps.append(torch.stack([contender.feed(ids[:, i, None]) for i in range(40, 60)]))
            contender.release()
        contender.resume()
        page = contender.feed(ids[:, 40:])
        assert contender.num_rows == 60
        contender.end()
        assert torch.equal(*steps) and page.shape == (batch, 200)
        assert (page - steps[0][-1]).abs().max() < 0.1 * page.abs().max()


@pytest.mark.parametrize("head_dim", [32, 64, 96, 128])
@pytest.mark.parametrize(("form", "most"), [("q8_0", 0.01), ("q4_0", 0.12)])
def test_entries_are_read_back_nearly_as_they_were(form: str, most: float, head_dim: int) -> None:
    generator = torch.Generator().manual_seed(head_dim)
    keys, values = torch.randn(2, 1, 2, 30, head_dim, generator=generator)
    for is_interleaved in (False, True):
        found = stored(keys, values, form, is_interleaved=is_interleaved)
        for before, after in zip((keys, values), found, strict=True):
            assert 0 < (after - before).norm() / before.norm() < most


def test_a_block_without_rotation_has_sixteen_numbers_in_4_bits() -> None:
    keys, values = torch.randn(2, 1, 1, 1, 32, generator=torch.Generator().manual_seed(1))
    for before, after in zip(
        (keys, values), stored(keys, values, "q4_0", is_interleaved=False), strict=True
    ):
        assert len(after.unique()) <= 16
        furthest = float(before.flatten()[before.abs().argmax()])
        assert float(after.flatten()[before.abs().argmax()]) == pytest.approx(furthest, rel=1e-3)


def test_halves_of_keys_are_interleaved_where_the_file_has_them_so() -> None:
    # the first half is large; a block with numbers of both halves rounds the small ones away
    keys = torch.cat([torch.full((1, 1, 1, 32), 8.0), torch.full((1, 1, 1, 32), 0.1)], dim=-1)
    flat = keys.repeat(1, 1, 1, 3)[..., :160]  # too few numbers for a rotation
    apart, _ = stored(flat, flat, "q4_0", is_interleaved=False)
    mixed, _ = stored(flat, flat, "q4_0", is_interleaved=True)
    assert (apart - flat).abs().max() < 0.05 < (mixed - flat).abs().max()


@torch.inference_mode()
def test_entries_take_their_bytes() -> None:
    _need_llama_cpp()
    numbers = 2 * 2 * 2 * 32 * 10
    for label, contender in _contenders(_model("llama")).items():
        contender.begin(10)
        contender.feed(random_ids(contender.model, 1, 10))
        size, of = {"q8_0": (34, 32), "q4_0": (18, 32)}.get(label.split()[-1], (2, 1))
        expected = numbers * size // of
        assert contender.live_bytes == expected and contender.parameters["n_ubatch"] == 512
        contender.end()


def test_the_file_of_the_weights_is_gone_once_they_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _need_llama_cpp()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert _contenders(_model("llama"))
    assert not list(tmp_path.iterdir())


def test_a_measurement_takes_turns_with_it(measure: Measure) -> None:
    _need_llama_cpp()
    rows, said = measure("window", against=("llama.cpp",), num_page=10, batches=(1, 2))
    labels = ["transformers", "llama.cpp f16", "llama.cpp no-fa", "window"]
    assert [row["label"] for row in rows] == 2 * labels
    # the heads of the tiny shape have 16 numbers
    for name in ("q8_0", "q4_0"):
        assert f"llama.cpp {name}: left out, heads must be a multiple of 32 numbers" in said
    for row in rows:
        assert row["p50_ms"] > 0 and row["page_ratio"] > 0
        if row["kind"] == "llama.cpp":
            assert row["decoding"] == "llama.cpp" and not row["split_ms"]
            assert row["kept_rows"] == 150 and row["parameters"]["llama-cpp-python"]
            assert 0 < row["checked"]["logits"] < 0.05


@pytest.mark.parametrize(
    ("family", "changes", "reason"),
    [
        ("llama", {"hidden_act": "gelu"}, "its activation must be silu; found gelu"),
        ("qwen3", {"rope_parameters": YARN}, "rope of qwen3 must be default; found yarn"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "rope of llama must be default or linear or llama3 or yarn; found dynamic",
        ),
        ("mistral", {"sliding_window": 16}, "all layers must attend to everything; found sliding"),
        ("qwen3", {"attention_bias": True}, "self_attn.q_proj of qwen3 must have no bias"),
    ],
)
def test_a_model_that_its_file_cannot_say_is_refused_with_the_reason(
    family: str, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(BenchError, match=reason):
        require_writable(_model(family, **changes))


def test_other_families_and_dtypes_are_refused_with_the_reason() -> None:
    other: Any = AutoModelForCausalLM.from_config(GPT2Config(n_layer=1, n_embd=12, n_head=1))
    with pytest.raises(BenchError, match="for llama, mistral, qwen2, qwen3, not for gpt2"):
        require_writable(other)
    with pytest.raises(BenchError, match="found torch.float64"):
        require_writable(_model("llama", torch.float64))


def test_a_model_that_is_refused_is_left_out_in_one_line() -> None:
    _need_llama_cpp()
    model = _model("llama", hidden_act="gelu")
    found, missing = others(("llama.cpp",), model, chunk=64, budget=None)
    assert [each.label for each in found] == ["transformers"]
    assert missing == ["llama.cpp: left out, its activation must be silu; found gelu"]


def test_without_the_extra_it_is_left_out_in_one_line(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_here = others_module._is_here
    monkeypatch.setattr(others_module, "_is_here", lambda name: name != "gguf" and is_here(name))
    rows, said = measure("window", against=("llama.cpp",), num_split_rounds=0)
    assert [row["label"] for row in rows] == ["transformers", "window"]
    assert (
        "llama.cpp: left out, llama-cpp-python and gguf are not installed; "
        "pip install 'agentkv-web[llama-cpp]'"
    ) in said.splitlines()
