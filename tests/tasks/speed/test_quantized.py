"""transformers' QuantizedCache as a contender: its entries are what it says, or it is left out."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import cache_utils

from agentkv_tasks.bench.contenders import others as others_module
from agentkv_tasks.bench.contenders.contender import Transformers
from agentkv_tasks.bench.contenders.judge import CacheJudge
from agentkv_tasks.bench.contenders.others import others
from agentkv_tasks.bench.contenders.prepare import random_ids
from agentkv_tasks.bench.contenders.verify import QUANTISED, WrongError, check_path
from agentkv_tasks.bench.errors import BenchError

LAYERS, HEADS, DIM, FLOAT = 2, 2, 16, 4
"""The tiny shape."""

Entries = list[dict[str, Any]]
Measure = Callable[..., tuple[Entries, str]]


@pytest.fixture
def quantized(plain: Any) -> dict[str, Transformers]:
    """The contenders that this machine has, by label."""
    with torch.inference_mode():
        found, _ = others(("quantized",), plain, chunk=64, budget=None)
    return {each.label: each for each in found[1:] if isinstance(each, Transformers)}


def _need(quantized: dict[str, Transformers], label: str) -> Transformers:
    if label not in quantized:
        pytest.skip(f"{label} is left out on this machine")
    return quantized[label]


@pytest.mark.parametrize("label", ["quanto int4", "hqq int4", "hqq int8"])
@torch.inference_mode()
def test_its_logits_are_those_of_the_entries_that_it_decodes(
    label: str, plain: Any, quantized: dict[str, Transformers]
) -> None:
    contender = _need(quantized, label)
    for batch in (1, 2):
        found = check_path(contender, plain, random_ids(plain, batch, 264), 64)
        assert found["logits"] < 1e-4 and 0 < found["quantised"] < QUANTISED[label]


@torch.inference_mode()
def test_fp8_quantizes_new_tokens_before_they_are_read(
    plain: Any, quantized: dict[str, Transformers]
) -> None:
    contender = _need(quantized, "transformers fp8")
    found = check_path(contender, plain, random_ids(plain, 1, 136), 64)
    assert found["logits"] > 1e-4 and 0 < found["quantised"] < QUANTISED["transformers fp8"]


@torch.inference_mode()
def test_nothing_is_timed_where_entries_are_decoded_wrongly(
    plain: Any, quantized: dict[str, Transformers], monkeypatch: pytest.MonkeyPatch
) -> None:
    contender = _need(quantized, "transformers fp8")
    layer: Any = cache_utils.Fp8QuantizedLayer
    inner = layer._dequantize
    monkeypatch.setattr(layer, "_dequantize", lambda own, x: 1.2 * inner(own, x))
    with pytest.raises(WrongError, match="entries in transformers fp8 are 0.2 of their norm"):
        check_path(contender, plain, random_ids(plain, 1, 136), 64)


@torch.inference_mode()
def test_entries_take_their_bytes(plain: Any, quantized: dict[str, Transformers]) -> None:
    numbers = LAYERS * 2 * HEADS * DIM * 64
    # a scale and a zero point of 4 bytes for every 64 numbers; a scale for every tensor
    expected = {
        "transformers fp8": numbers + LAYERS * 2 * FLOAT,
        "quanto int4": numbers // 2 + numbers // 64 * 2 * FLOAT,
        "hqq int4": numbers // 2 + numbers // 64 * 2 * FLOAT,
        "hqq int8": numbers + numbers // 64 * 2 * FLOAT,
    }
    for label, contender in quantized.items():
        contender.begin(80)
        contender.feed(random_ids(plain, 1, 64))
        assert contender.live_bytes == expected[label]
        contender.feed(random_ids(plain, 1, 80)[:, 64:])
        # the newest tokens are not quantized yet
        newest = LAYERS * 2 * HEADS * DIM * 16 * (1 if label.endswith("fp8") else FLOAT)
        assert contender.live_bytes == expected[label] + newest
        contender.end()


@torch.inference_mode()
def test_what_came_after_a_saved_state_leaves_no_trace(
    plain: Any, quantized: dict[str, Transformers]
) -> None:
    ids = random_ids(plain, 1, 264)
    for contender in quantized.values():
        contender.begin(264)
        contender.feed(ids[:, :64])
        held = contender.live_bytes
        contender.hold()
        after = []
        for _ in range(2):
            contender.resume()
            assert contender.live_bytes == held
            # enough that everything is quantized anew
            after.append(contender.feed(ids[:, 64:]))
            contender.release()
        contender.end()
        assert torch.equal(*after)


@torch.inference_mode()
def test_a_judge_reads_on_from_decoded_entries(plain: Any) -> None:
    ids = random_ids(plain, 1, 12)
    judge, other = CacheJudge(plain), CacheJudge(plain)
    expected = judge.feed(ids[:, :10], None)
    assert torch.equal(other.feed(ids[:, :10], None), expected)
    layers: Any = judge._cache.layers
    same = [(layer.keys[:, :, :6].clone(), layer.values[:, :, :6].clone()) for layer in layers]
    assert judge.take_decoded(same) == 0.0
    louder = [(keys, 1.25 * values) for keys, values in same]
    assert judge.take_decoded(louder) == pytest.approx(0.25)
    after, before = judge.feed(ids[:, 10:], None), other.feed(ids[:, 10:], None)
    assert not torch.allclose(after, before, atol=1e-2)


def test_without_its_packages_each_is_left_out_in_one_line(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_here = others_module._is_here
    gone = ("optimum.quanto", "hqq", "kvpress")
    monkeypatch.setattr(others_module, "_is_here", lambda name: name not in gone and is_here(name))
    against = ("quantized", "kvpress")
    _, said = measure("window", against=against, num_split_rounds=0, num_rounds=1)
    lines = said.splitlines()
    for label, module, package in (
        ("quanto int4", "optimum.quanto", "optimum-quanto"),
        ("quanto int8", "optimum.quanto", "optimum-quanto"),
        ("hqq int4", "hqq", "hqq"),
        ("hqq int8", "hqq", "hqq"),
    ):
        assert f"{label}: left out, {module} is not installed; pip install {package}" in lines
    assert "kvpress-snapkv: left out, it is not installed; pip install kvpress" in lines


def test_a_single_contender_is_asked_for_by_its_label(plain: Any) -> None:
    against = ("transformers fp8", "llama.cpp f16")
    found, missing = others(against, plain, chunk=64, budget=None)
    lines = " ".join([*(each.label for each in found), *missing])
    assert "transformers fp8" in lines and "llama.cpp" in lines
    assert "hqq" not in lines and "q8_0" not in lines and "static" not in lines


def test_what_a_library_refuses_is_said_in_its_words(plain: Any) -> None:
    pytest.importorskip("optimum.quanto", reason="optimum-quanto is not installed")
    _, missing = others(("quantized",), plain, chunk=64, budget=None)
    assert any("quanto int8: left out" in line and "`2`, `4`" in line for line in missing)


@pytest.mark.parametrize("label", ["static", "hqq int4", "llama.cpp q4_0"])
def test_a_policy_cannot_have_the_name_of_another_contender(label: str, measure: Measure) -> None:
    with pytest.raises(BenchError, match=f"{label} names another contender"):
        measure({"name": "window", "label": label})
