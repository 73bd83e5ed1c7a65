"""Tests for the shipped tokenizer and its recipe."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

import agentkv
from agentkv.dialog.prompt import PlainTemplate
from train_nano import tokenizer as recipe

SHIPPED = Path(agentkv.__file__).parent / "models" / "nano" / "tokenizer.json"


TEMPLATE = PlainTemplate(Tokenizer.from_file(str(SHIPPED)))


@pytest.fixture
def template() -> PlainTemplate:
    return TEMPLATE


def test_a_number_in_brackets_and_the_space_before_it_are_one_token(
    template: PlainTemplate,
) -> None:
    assert all(len(template.encode(f" [{number}]")) == 1 for number in range(recipe.NUM_IDS))
    page, reply = template.encode("link Blue kayak [12]"), template.encode("```click [12]```")
    assert template.encode(" [12]")[0] in page
    assert template.encode(" [12]")[0] in reply


def test_words_of_the_format_are_one_token_anywhere_in_a_line(template: PlainTemplate) -> None:
    for word in recipe.WORDS:
        assert len(template.encode(word)) == 1, word
        assert len(template.encode(f" {word}")) == 1, word


def test_a_number_is_split_into_three_digit_tokens_from_the_left(template: PlainTemplate) -> None:
    for text, pieces in {
        "2048": ["204", "8"],
        "18967": ["189", "67"],
        "$46.00": ["$", "46", ".", "00"],
        "KH-793": ["K", "H", "-", "793"],
    }.items():
        assert [template.decode([token]) for token in template.encode(text)] == pieces


def test_every_number_up_to_three_digits_is_one_token(template: PlainTemplate) -> None:
    for size in (1, 2, 3):
        for number in range(10**size):
            assert len(template.encode(str(number).zfill(size))) == 1, (size, number)


def test_text_never_encodes_to_special_tokens(template: PlainTemplate) -> None:
    special = {*template.end_ids, template.opening("")[0], *template.turn("")}
    assert not special & set(template.encode("<|goal|> <|page|> <|act|> <|end|>"))


@given(st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=60))
def test_any_text_survives_encoding_and_decoding(text: str) -> None:
    assert TEMPLATE.decode(TEMPLATE.encode(text)) == text


@pytest.mark.slow
def test_the_recipe_is_deterministic_and_needs_no_particular_corpus() -> None:
    corpus = ["the quick brown fox", "jumps over [12] the lazy dog"] * 3
    first, second = (recipe.train(corpus, vocab_size=2100) for _ in range(2))
    assert first.to_str() == second.to_str()
    assert len(PlainTemplate(first).encode("textbox [7]")) == 2
    assert len(PlainTemplate(first).encode("1241")) == 2
