"""Log-probabilities: the bytes of tokens make up the text, whatever tokens its characters have."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from tokenizers import Tokenizer, decoders
from tokenizers import models as token_models
from transformers import PreTrainedTokenizerFast

from agentkv.models.load import local_model
from agentkv.models.local import LocalModel
from tests.agentkv.agent.conftest import random_llama
from tests.agentkv.serve.conftest import CHATML, REWRITING, Served, serving

USER: Any = {"role": "user", "content": "Say"}
CHATML_TOKENS = ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")


def sentencepiece_model() -> LocalModel:
    """A random model with a vocabulary as SentencePiece makes it: marked spaces, bytes apart."""
    letters = [*"abcdefghijklmnopqrstuvwxyz,.!?|<>_\n▁", "▁a", "▁▁", "▁an"]
    tokens = [*CHATML_TOKENS, *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    vocabulary = {token: id for id, token in enumerate(tokens)}
    merges = [("▁", "a"), ("▁", "▁"), ("▁a", "n")]
    tokenizer = Tokenizer(
        token_models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>")
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(list(CHATML_TOKENS))
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="<|im_end|>", unk_token="<unk>"
    )
    made.chat_template = CHATML
    return local_model(random_llama(len(tokens)), made, name="tiny")


@pytest.fixture(scope="module")
def byte_level(chat_model: Callable[[str], LocalModel]) -> Iterator[Served]:
    with serving(chat_model(CHATML), budget=512) as served:
        yield served


@pytest.fixture(scope="module")
def sentencepiece() -> Iterator[Served]:
    with serving(sentencepiece_model(), budget=512) as served:
        yield served


@pytest.fixture(params=["byte_level", "sentencepiece"])
def client(request: pytest.FixtureRequest) -> Iterator[openai.OpenAI]:
    served: Served = request.getfixturevalue(request.param)
    with served.client() as client:
        yield client
    served.idle()


def answer_of(client: openai.OpenAI, **options: Any) -> tuple[str, list[Any]]:
    answer = client.chat.completions.create(
        model="tiny",
        messages=[USER],
        **{"max_tokens": 200, "temperature": 0, "logprobs": True, "top_logprobs": 3, **options},
    )
    choice = answer.choices[0]
    assert choice.logprobs is not None
    return choice.message.content or "", choice.logprobs.content or []


def joined(tokens: list[Any]) -> bytes:
    return b"".join(bytes(token.bytes) for token in tokens)


@pytest.mark.parametrize("text", ["🦊🦉🐻", "Grüße, 東京", " the  spaces ", "a\n\u200bé"])
def test_the_bytes_of_all_tokens_are_those_of_the_text(client: openai.OpenAI, text: str) -> None:
    content, tokens = answer_of(client, extra_body={"guided_choice": [text, text + "!"]})
    own = content.encode()
    assert joined(tokens) == own and content in (text, text + "!")
    assert all(json.loads(json.dumps(token.token)) for token in tokens)
    for token in tokens:
        shown = bytes(token.bytes).decode("utf-8", "backslashreplace")
        assert token.token == shown and "\ufffd" not in token.token
        for top in token.top_logprobs:
            assert top.bytes is None or "\ufffd" not in top.token or b"\xef\xbf" in bytes(top.bytes)


def test_parts_of_a_character_come_when_it_is_whole_and_keep_their_names(
    client: openai.OpenAI,
) -> None:
    stream = client.chat.completions.create(
        model="tiny",
        messages=[USER],
        max_tokens=40,
        temperature=0,
        logprobs=True,
        stream=True,
        extra_body={"guided_choice": ["a🦊b"]},
    )
    for chunk in stream:
        choice = chunk.choices[0]
        if choice.logprobs is not None:
            assert joined(choice.logprobs.content or []).decode() == choice.delta.content
    raw = client.completions.create(
        model="tiny",
        prompt="say",
        max_tokens=40,
        temperature=0,
        logprobs=2,
        extra_body={"guided_choice": ["a🦊b"]},
    )
    noted = raw.choices[0].logprobs
    assert noted is not None and noted.tokens is not None and noted.text_offset is not None
    assert raw.choices[0].text == "a🦊b"
    parts = [token for token in noted.tokens if token.startswith("bytes:")]
    assert len(parts) > 1 and len(set(parts)) == len(parts)
    assert noted.text_offset == sorted(noted.text_offset) and noted.text_offset[-1] == 2


def test_tokens_of_a_stop_text_are_no_part_of_the_reply(client: openai.OpenAI) -> None:
    for text, stop, left in (
        ("one🦊two", "🦊", "one"),
        ("one, two", ", t", "one"),
        ("ab🦊🦉", "🦊🦉x", "ab🦊🦉"),
    ):
        content, tokens = answer_of(client, stop=[stop], extra_body={"guided_choice": [text]})
        assert content == left
        # a token that the stop text begins in counts as a whole
        assert joined(tokens).startswith(left.encode())
        assert not joined(tokens[:-1]).startswith(left.encode()) or joined(tokens) == left.encode()


def test_free_replies_are_made_of_their_tokens(client: openai.OpenAI) -> None:
    for seed in range(4):
        content, tokens = answer_of(client, temperature=1.5, seed=seed, max_tokens=24)
        spoken = b"".join(bytes(token.bytes) for token in tokens if token.bytes is not None)
        assert spoken.decode("utf-8", "replace") == content or "\ufffd" in content
        for token in tokens:
            assert len({top.token for top in token.top_logprobs}) == 3


def test_a_control_token_has_no_bytes(chat_model: Callable[[str], LocalModel]) -> None:
    """It is no part of the text, unless it takes the reply apart."""
    with serving(chat_model(REWRITING), budget=512) as served, served.client() as client:
        control = served.engine.template.control
        lark = f'start: <[{control["<bos>"]}]> "a" <[{control["<bos>"]}]> "b"'
        content, tokens = answer_of(client, extra_body={"grammar": lark}, max_tokens=5)
        assert content == "ab"
        assert [(token.token, token.bytes) for token in tokens] == [
            ("<bos>", None),
            ("a", [97]),
            ("<bos>", None),
            ("b", [98]),
        ]
