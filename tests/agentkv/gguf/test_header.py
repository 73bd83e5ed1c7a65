"""Headers of GGUF files, whole and damaged."""

import struct
from pathlib import Path

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.models.gguf.header import read_header
from agentkv.models.refused import ModelError
from tests.agentkv.gguf.files import tiny, vocabulary, write


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("gguf") / "tiny.gguf", tiny("llama"))


def test_a_header_says_what_the_writers_own_reader_says(whole: Path) -> None:
    header, reader = read_header(whole), gguf.GGUFReader(whole)
    assert header.architecture == "llama"
    assert header.metadata["tokenizer.ggml.tokens"] == vocabulary()[0]
    assert header.metadata["llama.attention.head_count_kv"] == 2
    found = {each.name: (each.start, each.shape, each.num_bytes) for each in header.tensors}
    assert found == {
        each.name: (each.data_offset, tuple(each.shape[::-1].tolist()), each.n_bytes)
        for each in reader.tensors
    }
    assert header.num_values == sum(int(each.n_elements) for each in reader.tensors)


@given(share=st.floats(0, 1, exclude_max=True))
def test_a_file_that_ends_anywhere_is_refused_in_one_line(
    whole: Path, tmp_path_factory: pytest.TempPathFactory, share: float
) -> None:
    content = whole.read_bytes()
    path = tmp_path_factory.mktemp("cut") / "cut.gguf"
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ModelError, match=r"^cut\.gguf is (cut short|empty)") as raised:
        read_header(path)
    assert "\n" not in str(raised.value)


@given(place=st.integers(0, 400), byte=st.integers(0, 255))
def test_a_header_with_any_byte_changed_is_read_or_refused(
    whole: Path, tmp_path_factory: pytest.TempPathFactory, place: int, byte: int
) -> None:
    content = bytearray(whole.read_bytes())
    content[place] = byte
    path = tmp_path_factory.mktemp("changed") / "changed.gguf"
    path.write_bytes(content)
    try:
        read_header(path)
    except ModelError as error:
        assert str(error).startswith("changed.gguf") and "\n" not in str(error)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "mine.gguf is empty"),
        (b"PK\x03\x04" + bytes(40), r"mine.gguf is no GGUF file: it begins with b'PK"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1 of the format; agentkv reads 2 and 3"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version 50331648 of the format"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "mine.gguf holds no weights"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q1sIQIQ", 1, b"x", 1, 32, 99, 0),
            "x has the quantization number 99, which gguf does not know",
        ),
    ],
)
def test_what_is_no_model_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        read_header(path)


def test_all_parts_of_a_split_file_are_read_from_any_of_them(tmp_path: Path) -> None:
    model = tiny("llama")
    first = write(tmp_path / "split.gguf", model, split=9)
    parts = sorted(tmp_path.glob("split-*.gguf"))
    assert len(parts) == 3 and first == parts[0]
    header = read_header(parts[1])
    assert header.paths == tuple(parts)
    whole = read_header(write(tmp_path / "whole.gguf", model))
    assert {each.name for each in header.tensors} == {each.name for each in whole.tensors}
    assert header.num_values == whole.num_values
    parts[2].unlink()
    with pytest.raises(ModelError, match=r"one of 3 parts; missing beside it: split-00003-of-"):
        read_header(first)
    renamed = parts[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(ModelError, match="renamed.gguf is one of 3 parts, and its name should end"):
        read_header(renamed)
