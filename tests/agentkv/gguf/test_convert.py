"""GGUF files become folders that load like any other, once."""

import shutil
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from typer.testing import CliRunner

import agentkv
from agentkv.models.find import find_model, weights_digest
from agentkv.models.gguf.convert import converted, described
from agentkv.models.refused import ModelError
from agentkv_tasks.cli.app import cli
from tests.agentkv.gguf.files import tiny, write

Q8 = gguf.GGMLQuantizationType.Q8_0
PROMPT = "the 12 cats\n  and the dog"


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of converted copies."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "agentkv" / "models"


def logits(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True}),
        (
            "llama",
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0,
                                 "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                 "original_max_position_embeddings": 64}},
        ),
        ("qwen2", {}),
        ("qwen3", {}),
    ],
)  # fmt: skip
def test_a_file_gives_the_logits_of_the_model_it_was_written_from(
    kind: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    model = tiny(kind, **changes)
    loaded = agentkv.load_model(write(tmp_path / "tiny.gguf", model))
    ids = loaded.tokenizer.encode(PROMPT).ids
    assert loaded.tokenizer.decode(ids, skip_special_tokens=False) == PROMPT
    # matrices of the copy have 16 bits
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data = parameter.data.half().float()
    found = agentkv.Cache.for_model(loaded.model, policy="full").feed(
        loaded.model, torch.tensor([ids])
    )
    torch.testing.assert_close(found, logits(model, ids)[:, -1], atol=1e-5, rtol=1e-4)
    assert loaded.max_positions == 512 and loaded.cache_dtype == "bfloat16"


def test_quantized_weights_are_those_that_the_package_decodes(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf", tiny("llama"), kind=Q8)
    loaded = agentkv.load_model(path)
    stored = {each.name: each for each in gguf.GGUFReader(path).tensors}["blk.1.ffn_up.weight"]
    expected = torch.from_numpy(gguf.dequantize(stored.data, stored.tensor_type))
    found = loaded.model.model.layers[1].mlp.up_proj.weight
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-3)


def test_a_file_is_converted_once_and_again_when_it_changes(tmp_path: Path, kept: Path) -> None:
    path = write(tmp_path / "tiny.gguf", tiny("llama"))
    first = converted(path)
    stamp = (first / "config.json").stat().st_mtime_ns
    assert converted(path) == first and (first / "config.json").stat().st_mtime_ns == stamp
    write(path, tiny("llama"), kind=Q8)
    second = converted(path)
    assert second != first and second.is_dir()
    assert all(not each.name.startswith(".") for each in kept.iterdir())


def test_a_folder_with_one_model_and_each_part_of_a_split_one_name_it(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    first = write(folder / "tiny.gguf", tiny("llama"), split=9)
    assert find_model(folder) == first
    digest = weights_digest(folder)
    assert digest == weights_digest(sorted(folder.glob("*.gguf"))[2])
    agentkv.load_model(folder)
    other = write(folder / "other.gguf", tiny("llama"))
    with pytest.raises(ModelError, match=r"has several models; give the path of one of other\.gg"):
        find_model(folder)
    assert weights_digest(other) != digest


def test_plan_and_doctor_know_a_file_without_reading_its_weights(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "tiny.gguf", tiny("llama"), kind=Q8)
    result = CliRunner().invoke(cli, ["plan", str(path), "--tokens", "200"])
    assert result.exit_code == 0, result.output
    assert "512 positions" in result.output
    assert [each.name.endswith("-config") for each in kept.iterdir()] == [True]


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"tokenizer.ggml.pre": "gopher"}, "splits text by the rule 'gopher'"),
        ({"tokenizer.ggml.pre": None}, None),
        ({"tokenizer.chat_template": "{{ raise_exception('no') }}"},
         "template .default. does not render a message: no"),
        ({"tokenizer.chat_template": "{% for"}, "chat template .default. does not render"),
    ],
)  # fmt: skip
def test_a_tokenizer_or_template_that_cannot_serve_is_named_before_weights_are_read(
    metadata: dict[str, Any], message: str | None, tmp_path: Path, kept: Path
) -> None:
    path = write(tmp_path / "tiny.gguf", tiny("llama"), metadata=metadata)
    if message is None:
        agentkv.load_model(path)  # llama.cpp has a rule for files that name none
        return
    with pytest.raises(ModelError, match=message) as raised:
        agentkv.load_model(path)
    assert str(raised.value).startswith("tiny.gguf") and "\n" not in str(raised.value)
    assert list(kept.iterdir()) == []


def test_an_architecture_that_transformers_does_not_read_is_named(
    tmp_path: Path, kept: Path
) -> None:
    path = tmp_path / "tiny.gguf"
    write(path, tiny("llama"))
    path.write_bytes(path.read_bytes().replace(b"llama", b"lhama"))
    with pytest.raises(ModelError, match="tiny.gguf holds a model of the architecture 'lhama'"):
        agentkv.load_model(path)
    assert list(kept.iterdir()) == []


def test_a_vocabulary_larger_than_the_embedding_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf", tiny("llama", vocab_size=200))
    with pytest.raises(ModelError, match="has 265 tokens, but the model has only 200 embeddings"):
        described(path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("blk.1.ffn_up.weight", "lacks 1 weights of the model: model.layers.1.mlp.up_proj.weight"),
        ("blk.1.ffn_xx.weight", "holds blk.1.ffn_xx.weight, for which transformers' llama has no"),
    ],
)
def test_weights_that_are_missing_or_left_over_are_named_and_nothing_is_kept(
    name: str, message: str, tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny("llama")
    stored = gguf.GGUFWriter.add_tensor

    def add(self: Any, each: str, *given: Any, **options: Any) -> None:
        if "lacks" in message and each == name:
            return
        stored(self, each, *given, **options)
        if "lacks" not in message and each == "blk.1.ffn_up.weight":
            stored(self, name, *given, **options)

    monkeypatch.setattr(gguf.GGUFWriter, "add_tensor", add)
    path = write(tmp_path / "tiny.gguf", model)
    with pytest.raises(ModelError, match=message):
        converted(path)
    assert [each.name.endswith("-config") for each in kept.iterdir()] == [True]


def test_without_room_for_the_copy_nothing_is_written(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "tiny.gguf", tiny("llama"))
    described(path)
    full = shutil._ntuple_diskusage(10**9, 10**9, 0)  # type: ignore[attr-defined]
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: full)
    with pytest.raises(ModelError, match=r"needs up to 0\.0 GB for a converted copy in .*0\.0 GB"):
        converted(path)
    assert len(list(kept.iterdir())) == 1


def test_a_cache_folder_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "tiny.gguf", tiny("llama"))
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="tiny.gguf cannot be converted into .*Not a directory"):
        described(path)
