"""A session remembers how sure the model was of each token of its replies, and where it looked."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agentkv.models.local import LocalModel
from agentkv.serve.token_notes import MOST_NOTES
from tests.agentkv.serve.conftest import CHATML, Served, serving
from tests.agentkv.serve.test_page import tokens
from tests.agentkv.serve.test_requests import erase_all
from tests.agentkv.serve.test_sessions import WORDS, ask, user, with_reply

LONG: dict[str, Any] = {"max_tokens": 20, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def local(chat_model: Callable[[str], LocalModel]) -> LocalModel:
    return chat_model(CHATML)


@pytest.fixture(scope="module")
def shared(local: LocalModel) -> Iterator[Served]:
    with serving(local, policies=("window", "lookback-int8", "lookback-int4", "full")) as served:
        yield served


@pytest.fixture
def served(shared: Served) -> Iterator[Served]:
    """A server without sessions."""
    yield shared
    shared.idle()
    shared.engine.call(lambda: erase_all(shared)).result()


def noted(shown: Any) -> list[Any]:
    """The tokens of replies, those that are not read yet included."""
    pieces = [*shown["pieces"], *shown["unread"]]
    return [each for each in pieces if "confidence" in each or "forced" in each]


def text(pieces: list[Any]) -> str:
    return "".join(each["text"] for each in pieces)


def said(answer: Any) -> str:
    return str(answer.choices[0].message.content)


def letters(seed: int, **options: Any) -> dict[str, Any]:
    """Options of a reply of random letters, whose tokens all have a text."""
    body = {"guided_regex": "[a-z]{24}", "agentkv": {"policy": "full", **options}}
    return {"max_tokens": 40, "temperature": 1, "seed": seed, "extra_body": body}


def test_confidences_are_the_probabilities_that_a_client_may_ask_for(served: Served) -> None:
    answer = ask(served, [user(WORDS)], logprobs=True, **LONG)
    own = [math.exp(each.logprob) for each in answer.choices[0].logprobs.content]
    shown = noted(tokens(served))
    assert [each["confidence"] for each in shown] == pytest.approx(own, abs=1e-4)
    assert text(shown) == said(answer)
    assert not any("look" in each for each in shown)


def test_tokens_that_a_grammar_forces_have_no_confidence(served: Served) -> None:
    answer = ask(
        served, [user(WORDS)], max_tokens=60, extra_body={"guided_choice": ["search the page"]}
    )
    shown = noted(tokens(served))
    assert text(shown) == said(answer) == "search the page"
    assert all(("forced" in each) != ("confidence" in each) for each in shown)
    assert any("forced" in each for each in shown)


@pytest.mark.parametrize("policy", ["lookback-int8", "lookback-int4"])
def test_a_token_names_what_the_look_before_it_fetched(served: Served, policy: str) -> None:
    messages = [user(WORDS * 2)]
    body = {"ignore_eos": True, "agentkv": {"policy": policy}}
    ask(served, messages, max_tokens=20, extra_body=body)
    shown = tokens(served)
    looks = [each["look"] for each in noted(shown) if "look" in each]
    assert looks
    labels = {each["label"] for each in shown["spans"]}
    for look in looks:
        assert look["most_of"] in labels and 0 < look["n_most"] <= look["fetched"]
    (session,) = served.engine.sessions
    assert session.cache is not None
    # the cache counts prompt tokens that looked as well
    assert sum(look["fetched"] for look in looks) <= sum(session.cache.fetched.values())
    assert len(looks) <= session.cache.num_looks


def test_a_server_without_the_page_keeps_no_notes_and_answers_the_same(local: LocalModel) -> None:
    answers = []
    for page in (True, False):
        with serving(local, policies=("lookback-int8",), page=page) as served:
            plain = ask(served, [user(WORDS)], **LONG)
            asked = ask(served, [user(WORDS)], logprobs=True, top_logprobs=2, **LONG)
            alone = ask(served, [user(WORDS)], logprobs=True, **LONG)
            assert any(each.notes for each in served.engine.sessions) == page
        noted = [each.choices[0].logprobs.content for each in (asked, alone)]
        assert all(len(each) >= 20 for each in noted)
        answers.append([said(plain), said(asked), *noted])
    assert answers[0] == answers[1]


def test_a_session_that_returns_or_forks_keeps_the_notes_of_what_it_keeps(served: Served) -> None:
    messages = [user(WORDS)]
    first = ask(served, messages, **letters(1))
    messages = [*with_reply(messages, first), user("more")]
    second = ask(served, messages, **letters(2))
    assert text(noted(tokens(served))) == said(first) + said(second)
    other = ask(served, [*messages[:-1], user("else")], **letters(3))
    assert text(noted(tokens(served))) == said(first) + said(other)
    fork = ask(served, [*messages[:-1], user("third")], **letters(4, fork=True))
    slot = fork.usage.agentkv["slot"]
    assert slot == 1 and text(noted(tokens(served, 1))) == said(first) + said(fork)
    assert text(noted(tokens(served))) == said(first) + said(other)


def test_notes_move_with_their_tokens_when_earlier_text_is_edited(served: Served) -> None:
    messages: list[Any] = []
    replies = []
    for number in range(4):
        messages = [*messages, user(f"{number} {WORDS[:40]}")]
        answer = ask(served, messages, **letters(number))
        messages = with_reply(messages, answer)
        replies.append(said(answer))
    longer = {"role": "user", "content": f"1 and much more than before: {WORDS}"}
    edited = [messages[0], messages[1], longer, *messages[3:], user("and now?")]
    answer = ask(served, edited, **letters(5, edits="keep"))
    assert answer.usage.agentkv["reuse"]["how"] == "edited"
    assert text(noted(tokens(served))) == "".join(replies) + said(answer)
    removed = [*edited[:2], *edited[4:], {"role": "assistant", "content": said(answer)}, user("?")]
    last = ask(served, removed, **letters(6, edits="keep"))
    assert last.usage.agentkv["reuse"]["how"] == "edited"
    assert text(noted(tokens(served))) == "".join(
        [replies[0], *replies[2:], said(answer), said(last)]
    )


def test_a_session_keeps_no_more_than_the_newest_notes(served: Served) -> None:
    messages = [user("one")]
    body = {"guided_regex": "[a-z]*", "min_tokens": MOST_NOTES, "agentkv": {"policy": "full"}}
    first = ask(served, messages, max_tokens=MOST_NOTES, extra_body=body)
    second = ask(served, [*with_reply(messages, first), user("two")], **letters(1))
    shown = noted(tokens(served, query="?newest=9999"))
    assert len(shown) == MOST_NOTES and text(shown).endswith(said(second))
    (session,) = served.engine.sessions
    assert len(session.notes) == MOST_NOTES
