"""Models from GGUF files: what they compute, where copies are, and which files are refused."""

import fcntl
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import agentkv
from agentkv.build import convert_model
from agentkv.models.find import ModelError, find_model, model_folder, open_gguf_model
from agentkv.models.gguf.architectures import ARCHITECTURES
from agentkv.models.gguf.header import GgufError, read_header
from agentkv.models.gguf.tensors import read_tensor
from agentkv.progress import Progress
from agentkv.settings import ModelSettings
from agentkv_tasks.cli.app import cli
from tests.agentkv.gguf.tiny_files import MODELS, TEMPLATE, make_model, write
from tests.sampling import sampled

IDS = torch.arange(40)[None] * 7 % 290
Written = Callable[..., Path]


@pytest.mark.parametrize("name", sampled(MODELS, every=2))
def test_a_converted_model_computes_what_the_written_one_does(name: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = make_model(name)
    folder = model_folder(write(model, name, tmp_path / "tiny.gguf"))
    read = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        torch.testing.assert_close(read(IDS).logits, model(IDS).logits, rtol=1e-4, atol=1e-4)


def test_layers_that_predict_further_tokens_are_left_out(tmp_path: Path) -> None:
    values = {"glm4moe.nextn_predict_layers": 1}
    path = write(make_model("glm4moe"), "glm4moe", tmp_path / "tiny.gguf", **values)
    assert open_gguf_model(path).config.num_hidden_layers == 1


def test_the_documentation_names_every_architecture() -> None:
    named = Path("docs/models.md").read_text(encoding="utf-8")
    assert [name for name in ARCHITECTURES if f"`{name.split()[0]}`" not in named] == []


def test_a_file_is_loaded_with_its_template_ends_and_positions(written: Written) -> None:
    loaded = agentkv.load_model(written(eot_token_id=4))
    assert loaded.template.end_ids == {0, 2, 4}
    assert loaded.max_positions == 128
    assert loaded.cache_dtype == "bfloat16"


@pytest.mark.parametrize(("form", "dtype"), [("F16", torch.float16), ("BF16", torch.bfloat16)])
def test_a_16_bit_file_gets_a_16_bit_copy_without_rounding(
    form: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    path = write(make_model("gemma"), "gemma", tmp_path / "tiny.gguf", form=form)
    copied = load_file(model_folder(path) / "model.safetensors")
    assert copied["model.embed_tokens.weight"].dtype == dtype
    assert copied["model.norm.weight"].dtype == torch.float32
    stored = read_tensor(read_header(path), "blk.1.ffn_down.weight")
    torch.testing.assert_close(
        copied["model.layers.1.mlp.down_proj.weight"].float(),
        torch.from_numpy(stored),
        rtol=0,
        atol=0,
    )


def test_a_conversion_is_told_weight_by_weight(written: Written) -> None:
    told: list[Progress] = []
    path = written()
    agentkv.load_model(path, on_progress=told.append)
    assert told[0] == Progress("converting", 0, told[0].total, "tiny.gguf")
    assert [each.done for each in told[:-1]] == sorted({each.done for each in told[:-1]})
    assert told[-1] == Progress("loading", name=str(path))


def test_a_run_converts_a_file_before_its_workers_start(written: Written) -> None:
    told: list[Progress] = []
    wanted = ModelSettings(model=str(written()))
    convert_model(wanted, told.append)
    assert {each.phase for each in told} == {"converting"}
    told.clear()
    convert_model(wanted, told.append)
    convert_model(ModelSettings(model="solution"), told.append)
    assert not told


def test_an_interrupted_conversion_leaves_nothing(written: Written, cache_home: Path) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model_folder(written(), interrupt)
    assert not list((cache_home / "agentkv" / "gguf").iterdir())


def test_what_killed_conversions_left_is_removed(written: Written, cache_home: Path) -> None:
    parts = [cache_home / "agentkv" / "gguf" / f".part-{name}" for name in ("killed", "going-on")]
    for part in parts:
        part.mkdir(parents=True)
        (part / "lock").touch()
    with (parts[1] / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        model_folder(written())
    assert [part.exists() for part in parts] == [False, True]


def test_a_template_for_functions_renders_messages_with_functions(written: Written) -> None:
    functions = "{% for tool in tools %}{{ tool.function.name }}{% endfor %}" + TEMPLATE
    other = "{{ documents.nothing.at.all }}"
    templates = {
        "chat_template": [
            {"name": "default", "template": TEMPLATE},
            {"name": "tool_use", "template": functions},
            {"name": "rag", "template": other},
        ]
    }
    tokenizer = agentkv.load_model(written(**templates)).source_tokenizer
    assert tokenizer.chat_template == {"default": TEMPLATE, "tool_use": functions}


def test_a_second_start_reads_the_copy(written: Written) -> None:
    path = written()
    folder = model_folder(path)
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert model_folder(path) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def test_a_changed_file_gets_another_copy(written: Written) -> None:
    first = model_folder(written())
    assert model_folder(written(chat_template=None)) != first


def test_a_split_file_is_read_from_any_part_and_from_its_folder(tmp_path: Path) -> None:
    model = make_model("llama")
    write(model, "llama", tmp_path / "tiny.gguf", split=8)
    parts = sorted(tmp_path.glob("tiny-*.gguf"))
    assert len(parts) > 2
    assert find_model(tmp_path) == parts[0]
    whole = read_header(parts[0])
    assert read_header(parts[1]).tensors == whole.tensors
    assert model_folder(parts[1]) == model_folder(parts[0])


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    write(make_model("llama"), "llama", tmp_path / "tiny.gguf", split=8)
    last = sorted(tmp_path.glob("tiny-*.gguf"))[-1]
    last.unlink()
    with pytest.raises(ModelError, match=f"is split into 3 files, and .*{last.name} is missing"):
        model_folder(find_model(tmp_path))


def test_a_folder_with_several_files_is_refused(written: Written, tmp_path: Path) -> None:
    shutil.copy(written(), tmp_path / "other.gguf")
    with pytest.raises(ModelError, match="several GGUF files: other.gguf, tiny.gguf"):
        find_model(tmp_path)


def test_a_plan_reads_no_weights(written: Written, cache_home: Path) -> None:
    path = written()
    size = path.stat().st_size
    with path.open("r+b") as file:  # numbers that would be an error to read
        file.seek(size - 4000)
        file.write(b"\xff" * 4000)
    done = CliRunner().invoke(cli, ["plan", str(path), "--policies", "full,window"])
    assert done.exit_code == 0, done.output
    assert not cache_home.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre": "martian"}, r"the pre-tokenizer 'martian' \(tokenizer.ggml.pre\) is not known"),
        ({"kind": "t5"}, "the tokenizer 't5' is not known; known: gpt2 and llama"),
        ({"tokens": ["a", "b"]}, "the vocabulary has 2 tokens, but the embedding has 300 rows"),
        ({"token_type": [1]}, "token_type does not fit the tokens"),
        ({"llama.block_count": 4000}, "says that it has 4000 layers, but has 21 tensors"),
        ({"llama.block_count": "two"}, "is no llama: "),
        ({"llama.attention.head_count": 0}, "is no llama: "),
        ({"llama.attention.head_count_kv": [2, 1]}, "different attention.head_count_kv cannot"),
        ({"llama.attn_logit_softcapping": 30.0}, "with attn_logit_softcapping 30.0 cannot be read"),
        (
            {"llama.embedding_length": 96},
            r"embd.weight has the shape \(300, 64\); expected \(300, 96",
        ),
        ({"llama.rope.dimension_count": 8}, "rotation of 8 numbers of a head cannot be read"),
        ({"llama.rope.scaling.type": "warped"}, "the rotation 'warped' .* is not known"),
        ({"merges": ["abc"]}, "has no merges of two tokens"),
        ({"bos_token_id": 4000}, "bos_token_id is 4000, but there are 300 tokens"),
        (
            {"chat_template": "{{ nothing.at.all }}"},
            "the model's chat template refuses these messages: ",
        ),
        (
            {"chat_template": [{"name": "tool_use", "template": "a"}]},
            "the chat templates are named tool_use, and none is named default",
        ),
        ({"chat_template": "{% for %}"}, "the model's chat template refuses these messages: "),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_a_file_that_cannot_be_served_is_refused_before_its_weights_are_read(
    changes: dict[str, Any], message: str, written: Written, cache_home: Path
) -> None:
    path = written(**changes)
    with pytest.raises(ModelError, match=message) as refused:
        model_folder(path)
    assert "\n" not in str(refused.value)
    with pytest.raises(ModelError, match=message):
        open_gguf_model(path)
    assert not list(cache_home.rglob("*.*"))


def test_an_unknown_architecture_is_named(written: Written) -> None:
    path = written()
    path.write_bytes(path.read_bytes().replace(b"llama", b"lamma"))
    with pytest.raises(ModelError, match="the architecture 'lamma' cannot be read from GGUF"):
        open_gguf_model(path)


def test_an_unknown_quantization_is_named(written: Written) -> None:
    path = written()
    name = b"token_embd.weight"
    content = bytearray(path.read_bytes())
    kind = content.index(name) + len(name) + 4 + 16
    content[kind : kind + 4] = struct.pack("<I", 999)
    path.write_bytes(content)
    with pytest.raises(ModelError, match="token_embd.weight has the quantization type 999"):
        open_gguf_model(path)


def test_a_missing_tensor_is_named(written: Written) -> None:
    path = written()
    path.write_bytes(path.read_bytes().replace(b"blk.1.attn_k.weight", b"blk.1.attn_x.weight"))
    with pytest.raises(ModelError, match="has no tensor blk.1.attn_k.weight"):
        open_gguf_model(path)


def test_a_copy_that_does_not_fit_the_disk_is_refused(
    written: Written, cache_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ModelError, match="free some, or let XDG_CACHE_HOME name a folder"):
        model_folder(written())
    assert not list(cache_home.rglob("*.*"))


def test_a_cache_folder_that_cannot_be_written_is_named(
    written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(
        ModelError, match="cannot be written to .*file/agentkv/gguf: Not a directory"
    ):
        model_folder(written())


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("small") / "tiny.gguf"
    return write(make_model("llama"), "llama", path).read_bytes()


@given(share=st.floats(0, 1, exclude_max=True), is_header=st.booleans())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_cut_anywhere_is_refused_in_a_line(
    share: float, is_header: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    small = request.getfixturevalue("small")  # as an argument it would be in every message
    path = tmp_path / "cut.gguf"
    path.write_bytes(small[: int(share * (20_000 if is_header else len(small)))])
    with pytest.raises(GgufError, match="cut.gguf is (truncated|not a GGUF file)") as refused:
        read_header(path)
    assert "\n" not in str(refused.value)


@given(at=st.integers(0, 20_000), byte=st.integers(0, 255))
@example(at=5904, byte=4)  # a name as long as the rest of the file
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_header_with_a_wrong_byte_is_read_or_refused(
    at: int, byte: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    small = request.getfixturevalue("small")
    path = tmp_path / "wrong.gguf"
    path.write_bytes(small[:at] + bytes([byte]) + small[at + 1 :])
    try:
        read_header(path)
    except GgufError as refused:
        assert "\n" not in str(refused)
