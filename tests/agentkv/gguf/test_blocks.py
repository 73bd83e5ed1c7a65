"""Models whose matrices stay in the blocks of their GGUF file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import agentkv
from agentkv.cache.checkpoint.identity import fingerprint
from agentkv.models.find import (
    ModelError,
    find_model,
    gguf_in_blocks,
    model_folder,
    open_gguf_model,
    weights_digest,
)
from agentkv.models.gguf.blocks import load_blocks, nbytes_in_blocks, why_float
from agentkv.plan import plan_model
from agentkv.settings import PoliciesSettings
from agentkv.weights.linear import QuantizedEmbedding, QuantizedLinear
from agentkv_tasks.cli.app import cli
from tests.agentkv.gguf.tiny_files import MODELS, make_model, write
from tests.sampling import sampled

IDS = torch.arange(40)[None] * 7 % 290
Written = Callable[..., Path]
FLOAT = {
    "gpt2": "weights of gpt2 have another order in files",
    "llama:experts": "is not the matrix of a linear layer",
}
"""Why some models become float."""


def read_plain(path: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model_folder(path), dtype=torch.float32).eval()


@pytest.mark.parametrize("form", ["Q8_0", "Q4_1"])
@pytest.mark.parametrize("name", sampled(MODELS, every=2))
@torch.no_grad()
def test_the_weights_are_those_of_a_converted_copy(name: str, form: str, tmp_path: Path) -> None:
    path = write(make_model(name), name, tmp_path / "tiny.gguf", form=form)
    found = open_gguf_model(path)
    if why_float(found):
        assert gguf_in_blocks(path) is None
        return
    read, plain = load_blocks(found), read_plain(path)
    expected = dict(plain.named_parameters(remove_duplicate=False)) | dict(plain.named_buffers())
    num_packed = 0
    for key, module in read.named_modules():
        if isinstance(module, QuantizedLinear | QuantizedEmbedding):
            num_packed += 1
            assert torch.equal(module.weight, expected.pop(f"{key}.weight")), key
    for key, values in [*read.named_parameters(), *read.named_buffers()]:
        if key in expected:
            torch.testing.assert_close(values, expected.pop(key), rtol=0, atol=0)
    assert not expected and num_packed
    logits = plain(IDS).logits
    assert (read(IDS).logits - logits).abs().max() < 0.1 * logits.abs().max()


@pytest.mark.parametrize("name", FLOAT)
def test_what_cannot_stay_in_blocks_becomes_float_for_a_reason(name: str, tmp_path: Path) -> None:
    path = write(make_model(name), name, tmp_path / "tiny.gguf", form="Q8_0")
    assert FLOAT[name] in why_float(open_gguf_model(path))
    assert agentkv.load_model(path).model.dtype == torch.float32


def test_a_file_with_numbers_of_16_bits_becomes_float(tmp_path: Path) -> None:
    path = write(make_model("llama"), "llama", tmp_path / "tiny.gguf", form="F16")
    assert why_float(open_gguf_model(path)) == "none of its matrices is quantized"


@pytest.fixture
def quantized(tmp_path: Path) -> Path:
    return write(make_model("llama"), "llama", tmp_path / "tiny.gguf", form="Q4_1")


def test_a_quantized_file_is_served_without_a_copy(quantized: Path, cache_home: Path) -> None:
    loaded = agentkv.load_model(quantized)
    assert isinstance(loaded.model.lm_head, QuantizedLinear)
    assert loaded.template.end_ids == {0, 2} and loaded.cache_dtype == "bfloat16"
    assert not cache_home.exists()


def test_a_tied_head_shares_the_blocks_of_the_embedding(tmp_path: Path) -> None:
    path = write(make_model("llama:rope"), "llama:rope", tmp_path / "tiny.gguf", form="Q8_0")
    model = agentkv.load_model(path).model
    assert model.lm_head.codes is model.model.embed_tokens.codes


def test_rows_are_packed_in_pieces_as_at_once(
    quantized: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = load_blocks(open_gguf_model(quantized))
    monkeypatch.setattr("agentkv.models.gguf.blocks._ROWS", 32)
    for mine, theirs in zip(
        load_blocks(open_gguf_model(quantized)).buffers(), at_once.buffers(), strict=True
    ):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("weights", ["auto", "float", "int8", "int4"])
def test_a_plan_counts_the_bytes_of_the_form_that_is_loaded(quantized: Path, weights: Any) -> None:
    settings = PoliciesSettings(model=str(quantized), weights=weights, device="cpu")
    model = agentkv.load_model(quantized, weights=weights, device="cpu").model
    held = [module.packed.nbytes for module in model.modules() if hasattr(module, "packed")]
    held += [4 * parameter.numel() for parameter in model.parameters()]
    assert plan_model(settings).weights_nbytes == sum(held)
    if weights == "auto":
        assert nbytes_in_blocks(open_gguf_model(quantized)) == sum(held)


def test_caches_of_other_forms_of_the_weights_are_told_apart(quantized: Path) -> None:
    forms: list[Any] = ["auto", "float", "int8", "int4"]
    models = [agentkv.load_model(quantized, weights=form, device="cpu").model for form in forms]
    assert len({fingerprint(model) for model in models}) == len(forms)
    assert len({weights_digest(quantized, form) for form in forms}) == len(forms)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "mps"}, "is for CPUs, and the device is mps"),
        ({"dtype": "bfloat16"}, "are two forms of the weights; leave dtype at auto"),
        ({"device_map": "cpu"}, "say otherwise what becomes of them"),
    ],
)
def test_options_that_contradict_quantized_weights_are_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        agentkv.load_model("nano", weights="int8", **options)


def test_a_dtype_asks_for_numbers_instead_of_blocks(quantized: Path) -> None:
    model = agentkv.load_model(quantized, dtype="float32").model
    assert type(model.lm_head) is torch.nn.Linear
    assert gguf_in_blocks(find_model(quantized), weights="float") is None


def test_the_doctor_names_the_formats_and_how_they_are_served(quantized: Path) -> None:
    done = CliRunner().invoke(cli, ["doctor", "--model", str(quantized)])
    assert "Q4_1, as they are in the file" in done.output
