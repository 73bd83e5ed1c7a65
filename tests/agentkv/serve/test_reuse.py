"""Why was it read again? Answers, metrics and a line say how a request found its session, and where
it first differed from it."""

import logging
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import prometheus_client.parser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.dialog.messages import Chat
from agentkv.models.local import LocalModel
from agentkv.serve.engine import REQUESTS
from agentkv.serve.reuse import Difference, Reuse, first_difference
from agentkv.serve.session import chat_history
from tests.agentkv.serve.conftest import CHATML, Served, serving
from tests.agentkv.serve.test_requests import text_of
from tests.agentkv.serve.test_sessions import WORDS, ask, cached, system, user, with_reply

TEXTS = st.text("ab ", max_size=4)


@pytest.fixture(scope="module")
def local(chat_model: Callable[[str], LocalModel]) -> LocalModel:
    return chat_model(CHATML)


@pytest.fixture
def served(local: LocalModel) -> Iterator[Served]:
    with serving(local, keys=("ann", "bob")) as served:
        yield served


def reuse(answer: Any) -> dict[str, Any]:
    """What an answer says; what it counts agrees with the rest of its usage."""
    usage = answer.usage
    found = dict(usage.agentkv["reuse"])
    assert found["kept"] == cached(answer)
    assert found["kept"] + found["read"] == usage.prompt_tokens
    return found


def test_a_conversation_that_grows_is_continued_and_differs_nowhere(served: Served) -> None:
    messages = [system("Be brief."), user(WORDS)]
    first = ask(served, messages)
    assert reuse(first) == {
        "how": "new",
        "kept": 0,
        "read": first.usage.prompt_tokens,
        "forgotten": 0,
        "differs_at": None,
    }
    second = reuse(ask(served, [*with_reply(messages, first), user("more")]))
    assert (second["how"], second["differs_at"], second["forgotten"]) == ("continued", None, 0)
    assert second["kept"] > second["read"]


def test_an_edited_message_is_named_with_the_first_character_that_differs(served: Served) -> None:
    messages = [user(WORDS)]
    before = with_reply(messages, ask(served, messages))
    tried = ask(served, [*before, user("turn left")])
    edited = reuse(ask(served, [*before, user("turn right")]))
    assert edited["how"] == "returned"
    assert edited["differs_at"] == {"message": 2, "character": 5}
    # all of the turn and of its reply, whose last token was never read
    written = tried.usage.completion_tokens
    assert edited["forgotten"] >= tried.usage.prompt_tokens - edited["kept"]
    assert edited["forgotten"] <= tried.usage.prompt_tokens - edited["kept"] + written


def test_a_line_that_changes_at_the_top_is_found(served: Served) -> None:
    def dated(date: str) -> list[Any]:
        return [system(f"Today is {date}. {WORDS}"), user("hello")]

    ask(served, dated("Monday"))
    again = reuse(ask(served, dated("Tuesday")))
    assert (again["how"], again["kept"], again["forgotten"]) == ("new", 0, 0)
    assert again["differs_at"] == {"message": 0, "character": len("Today is ")}


def test_a_copy_of_the_instructions_differs_where_the_conversations_part(served: Served) -> None:
    ask(served, [system(WORDS), user("one")])
    other = reuse(ask(served, [system(WORDS), user("other")]))
    assert other["how"] == "forked" and other["kept"] > 60
    assert other["differs_at"] == {"message": 1, "character": 1}


def test_no_request_is_compared_with_the_session_of_another_key(served: Served) -> None:
    ask(served, [user(WORDS)], key="ann")
    assert reuse(ask(served, [user(WORDS + "!")], key="bob"))["differs_at"] is None


def test_other_functions_differ_before_any_message(served: Served) -> None:
    functions = [{"type": "function", "function": {"name": "look"}}]
    ask(served, [user(WORDS)])
    found = reuse(ask(served, [user(WORDS)], tools=functions))
    assert found["how"] == "new"
    assert found["differs_at"] == {"message": None, "character": None}


def test_a_raw_prompt_differs_at_a_character(served: Served) -> None:
    def complete(prompt: str) -> Any:
        with served.client("ann") as client:
            answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=2)
        served.idle()
        return answer

    complete("one two three")
    found = reuse(complete("one two four"))
    assert found["differs_at"] == {"message": None, "character": len("one two ")}


def test_the_place_in_a_message_is_unknown_after_a_time_on_disk_but_the_message_is_not(
    local: LocalModel, tmp_path: Path
) -> None:
    messages = [user(WORDS)]
    with serving(local, store=tmp_path) as served:
        before = with_reply(messages, ask(served, messages))
        ask(served, [*before, user("turn left")], prompt_cache_key="mine")
    with serving(local, store=tmp_path) as served:
        edited = reuse(ask(served, [*before, user("turn right")], prompt_cache_key="mine"))
    assert edited["differs_at"] == {"message": 2, "character": None}


def test_a_session_whose_files_are_gone_is_read_again_and_says_so(
    local: LocalModel, tmp_path: Path
) -> None:
    messages = [user(WORDS)]
    with serving(local, store=tmp_path) as served:
        first = ask(served, messages)
    with serving(local, store=tmp_path) as served:
        for folder in (tmp_path / "sessions").iterdir():
            shutil.rmtree(folder)
        found = reuse(ask(served, [*with_reply(messages, first), user("more")]))
    assert (found["how"], found["kept"], found["differs_at"]) == ("lost", 0, None)
    # all that the session had read; the last token of its reply was not
    assert found["forgotten"] >= first.usage.prompt_tokens


def test_metrics_count_how_sessions_were_found_and_what_was_forgotten(local: LocalModel) -> None:
    messages = [user(WORDS)]
    with serving(local) as served:
        before = with_reply(messages, ask(served, messages))
        ask(served, [*before, user("left")])
        forgotten = reuse(ask(served, [*before, user("right")]))["forgotten"]
        text = text_of(served, "/metrics")
    families = prometheus_client.parser.text_string_to_metric_families(text)
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }
    for how, count in {"new": 1, "continued": 1, "returned": 1, "forked": 0, "lost": 0}.items():
        assert samples[("agentkv_prompts_total", how)] == count
    assert samples[("agentkv_forgotten_tokens_total",)] == forgotten > 0


def test_the_log_says_it_at_level_debug_without_any_text(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, REQUESTS.name):
        before = with_reply([user(WORDS)], ask(served, [user(WORDS)]))
        ask(served, [*before, user("turn left")])
        ask(served, [*before, user("turn right")])
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG]
    assert [line.split(";")[0] for line in lines] == [
        "slot 0: read from the beginning",
        "slot 0: continued",
        "slot 0: returned to an earlier state: message 2 differs from character 5 on",
    ]
    assert "left" not in caplog.text and "right" not in caplog.text


# ---- the comparison alone


def history(messages: list[str]) -> Any:
    return chat_history(Chat(tuple(user(text) for text in messages)))


@given(st.lists(TEXTS, max_size=5), st.lists(TEXTS, max_size=5))
def test_the_first_difference_is_the_first_one(held: list[str], asked: list[str]) -> None:
    found = first_difference(history(held), history(asked))
    if asked[: len(held)] == held:
        assert found is None
        return
    assert found is not None and found.message is not None
    message = found.message
    assert asked[:message] == held[:message]
    assert found.is_end == (message == len(asked))
    if found.is_end:
        assert found.character is None
        return
    assert found.character is not None
    one, other = held[message], asked[message]
    assert one[: found.character] == other[: found.character]
    assert one[found.character :][:1] != other[found.character :][:1]


@given(TEXTS, TEXTS)
def test_so_it_is_in_raw_prompts(held: str, asked: str) -> None:
    found = first_difference(held, asked)
    if asked.startswith(held):
        assert found is None
        return
    assert found is not None and found.message is None and found.character is not None
    assert held[: found.character] == asked[: found.character]
    assert found.is_end == held.startswith(asked)


@pytest.mark.parametrize(
    ("reuse", "told"),
    [
        (Reuse("continued", 0, None), "continued; kept 1,200 tokens"),
        (
            Reuse("returned", 310, Difference(5, 120)),
            "returned to an earlier state: message 5 differs from character 120 on; "
            "kept 1,200 tokens; forgot 310",
        ),
        (
            Reuse("returned", 20, Difference(5, is_end=True)),
            "returned to an earlier state: the request ends before message 5; kept 1,200 tokens; "
            "forgot 20",
        ),
        (
            Reuse("forked", 0, Difference(1)),
            "forked at 1,200 tokens: message 1 differs",
        ),
        (Reuse("new", 0, Difference()), "read from the beginning: the functions differ"),
        (
            Reuse("new", 7, Difference(character=3)),
            "read from the beginning: the prompt differs from character 3 on; forgot 7",
        ),
        (
            Reuse("lost", 9, None),
            "read from the beginning, because the kept state is of no use; forgot 9",
        ),
    ],
)
def test_each_way_is_told_in_a_sentence(reuse: Reuse, told: str) -> None:
    assert reuse.told(1200) == told


# ---- back to any reply, where the cache keeps everything


def say(served: Served, messages: list[Any], name: str) -> Any:
    """Ask in the one session of a name."""
    return ask(served, messages, extra_headers={"X-AgentKV-Session": name})


def grown(served: Served, turns: int, name: str) -> list[Any]:
    messages: list[Any] = []
    for number in range(turns):
        messages = [*messages, user(f"{number}: {WORDS[:60]}")]
        messages = with_reply(messages, say(served, messages, name))
    return messages


def replayed(served: Served, messages: list[Any], name: str) -> Any:
    """Ask in a new session, turn by turn; return the last answer."""
    for stop in range(1, len(messages), 2):
        said = say(served, messages[:stop], name).choices[0].message.content
        assert said == messages[stop]["content"]
    return say(served, messages, name)


@pytest.mark.parametrize(("policy", "returns"), [("full", True), ("window", False)])
def test_a_cache_that_keeps_everything_returns_to_any_reply_without_a_snapshot(
    local: LocalModel, policy: str, returns: bool
) -> None:
    budget = 96 if policy == "window" else None
    with serving(local, policies=(policy,), budget=budget, snapshots=1) as served:
        edited = [*grown(served, 8, "mine")[:8], user("otherwise")]
        found, alone = say(served, edited, "mine"), replayed(served, edited, "other")
    told = reuse(found)
    assert told["differs_at"] == {"message": 8, "character": 0}
    if returns:
        assert told["how"] == "returned" and told["read"] < 60 < told["forgotten"]
        assert found.choices[0].message.content == alone.choices[0].message.content
    else:
        assert told["how"] == "new" and told["kept"] == 0


@pytest.mark.parametrize("seed", range(3))
def test_any_edits_leave_what_a_fresh_session_says(local: LocalModel, seed: int) -> None:
    choices = random.Random(seed)
    with serving(local, policies=("full",), budget=None) as served:
        messages: list[Any] = []
        ways = set()
        for number in range(9):
            pairs = len(messages) // 2
            kept = 2 * choices.choice([pairs, min(pairs, 1), choices.randint(0, pairs)])
            messages = [*messages[:kept], user(f"{number} " + WORDS[: choices.randrange(90)])]
            found = say(served, messages, "mine")
            alone = replayed(served, messages, f"fresh {number}")
            assert found.choices[0].message.content == alone.choices[0].message.content
            for session in served.engine.sessions:
                if session.cache is not None:
                    session.cache.check()
            ways.add(reuse(found)["how"])
            messages = with_reply(messages, found)
        assert {"continued", "returned"} <= ways
