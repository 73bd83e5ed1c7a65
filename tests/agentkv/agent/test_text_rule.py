"""Replies in text end where they must, and their text is decoded as they are written."""

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from agentkv.models.rules import TextRule
from tests.agentkv.agent.conftest import train_tokenizer

TOKENIZER: Tokenizer = train_tokenizer(["<end>"])
END = TOKENIZER.token_to_id("<end>")


def decode(ids: list[int]) -> str:
    return TOKENIZER.decode(list(ids), skip_special_tokens=False)


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


@given(text=st.text(max_size=40))
def test_text_grows_to_what_its_ids_decode_to(text: str) -> None:
    rule = TextRule(decode, end_ids={END}, max_tokens=1000)
    shown = ""
    for id in encode(text):
        rule.accept(id)
        assert rule.text.startswith(shown)
        shown = rule.text
    rule.accept(END)
    assert rule.is_complete and rule.ended_by == "stop" and not rule.pending
    assert rule.text == decode(rule.ids) == decode(encode(text))
    assert rule.ends == sorted(rule.ends) and len(rule.ends) == len(rule.ids)


@given(ids=st.lists(st.integers(1, 250), max_size=40))
def test_bytes_that_are_no_text_hold_nothing_back_for_long(ids: list[int]) -> None:
    rule = TextRule(decode, end_ids={END}, max_tokens=1000)
    for id in ids:
        rule.accept(id)
    assert len(decode(ids)) - len(rule.text) <= 16
    rule.accept(END)
    assert len(rule.text) >= len(decode(ids)) - 4


@given(
    before=st.text(alphabet="abc\u00e9", max_size=20),
    stop=st.text(alphabet="abc\u00e9", min_size=1, max_size=4),
    after=st.text(alphabet="abc", max_size=5),
)
def test_a_stop_text_ends_the_reply_before_it_and_was_never_shown(
    before: str, stop: str, after: str
) -> None:
    rule = TextRule(decode, end_ids={END}, max_tokens=1000, stops=[stop])
    text = before + stop + after
    expected = text[: text.index(stop)]
    for id in encode(text):
        assert expected.startswith(rule.text)
        rule.accept(id)
        if rule.is_complete:
            break
    assert rule.is_complete and rule.ended_by == "stop"
    assert rule.text == expected
    assert rule.pending == rule.ids[-1:]


def test_the_maximum_length_ends_a_reply_whose_last_id_is_still_unread() -> None:
    rule = TextRule(decode, end_ids={END}, max_tokens=2)
    rule.accept(encode("a")[0])
    rule.accept(encode("b")[0])
    assert rule.is_complete and rule.ended_by == "length"
    assert rule.text == "ab" and rule.pending == encode("b")


def test_a_reply_of_no_tokens_is_complete_at_once() -> None:
    rule = TextRule(decode, end_ids={END}, max_tokens=0)
    assert rule.is_complete and rule.ended_by == "length" and rule.ids == []
