"""Sessions are found, branch, return to earlier states, and live on disk."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from agentkv.models.local import LocalModel
from tests.agentkv.serve.conftest import CHATML, Served, serving
from tests.agentkv.serve.test_requests import erase_all

Say = Callable[..., Any]
WORDS = "Add to cart, search the page, click a link or a button. " * 6


@pytest.fixture(scope="module")
def local(chat_model: Callable[[str], LocalModel]) -> LocalModel:
    return chat_model(CHATML)


@pytest.fixture(scope="module")
def shared(local: LocalModel) -> Iterator[Served]:
    with serving(local, policies=("window", "full"), keys=("ann", "bob")) as served:
        yield served


@pytest.fixture
def served(shared: Served) -> Iterator[Served]:
    """A server without sessions."""
    yield shared
    shared.idle()
    shared.engine.call(lambda: erase_all(shared)).result()


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


def ask(served: Served, messages: list[Any], key: str = "ann", **options: Any) -> Any:
    """Ask for a short reply, greedily, and wait until the session rests."""
    options = {"temperature": 0, "max_tokens": 5, **options}
    with served.client(key) as client:
        answer = client.chat.completions.create(model="tiny", messages=messages, **options)
    served.idle()
    return answer


def cached(answer: Any) -> int:
    return int(answer.usage.prompt_tokens_details.cached_tokens)


def session_of(answer: Any) -> str:
    return str(answer.usage.agentkv["session"])


def with_reply(messages: list[Any], answer: Any) -> list[Any]:
    return [*messages, {"role": "assistant", "content": answer.choices[0].message.content}]


def test_a_conversation_is_found_by_what_it_said(served: Served) -> None:
    one, other = [user("one " + WORDS)], [user("other " + WORDS)]
    first, second = ask(served, one), ask(served, other)
    assert session_of(first) != session_of(second) and cached(first) == cached(second) == 0
    again = ask(served, [*with_reply(one, first), user("more")])
    assert session_of(again) == session_of(first)
    assert cached(again) >= first.usage.prompt_tokens


def test_a_named_session_is_found_by_its_key_its_header_or_its_slot(served: Served) -> None:
    messages = [user(WORDS)]
    first = ask(served, messages, prompt_cache_key="mine")
    assert session_of(first) == "mine"
    messages = [*with_reply(messages, first), user("more")]
    second = ask(served, messages, extra_headers={"X-AgentKV-Session": "mine"})
    messages = [*with_reply(messages, second), user("more")]
    third = ask(served, messages, extra_body={"id_slot": first.usage.agentkv["slot"]})
    assert session_of(second) == session_of(third) == "mine"
    assert cached(third) > cached(second) > cached(first) == 0


def test_an_unnamed_request_never_moves_a_named_session(served: Served) -> None:
    messages = [user(WORDS)]
    named = ask(served, messages, prompt_cache_key="mine")
    more = [*with_reply(messages, named), user("more")]
    unnamed = ask(served, more)
    assert session_of(unnamed) != "mine"
    assert ask(served, more, prompt_cache_key="mine").usage.prompt_tokens == (
        unnamed.usage.prompt_tokens
    )


def test_labels_of_turns_that_were_taken_back_are_gone(served: Served) -> None:
    asked: Any = {"extra_headers": {"X-AgentKV-Session": "mine"}}
    ours = {"agentkv": {"policy": "full"}, "ignore_eos": True}
    begun = [system(WORDS), user(WORDS)]
    ask(served, [system(WORDS), user("other")], extra_body=ours)  # "mine" begins as its fork
    first = ask(served, begun, max_tokens=3, extra_body=ours, **asked)
    ask(served, [*with_reply(begun, first), user(WORDS)], extra_body=ours, **asked)
    again = ask(served, begun, max_tokens=60, extra_body=ours, **asked)
    ask(served, [*with_reply(begun, again), user("more")], extra_body=ours, **asked)
    (session,) = [each for each in served.engine.sessions if each.name == "mine"]
    assert session.cache is not None
    spans = session.cache.spans()
    assert [each.label for each in spans] == ["system", "turn 1", "reply 1", "turn 3", "reply 3"]
    assert [each.stop for each in spans[:-1]] == [each.start for each in spans[1:]]
    assert spans[2].stop is not None and spans[2].stop - spans[2].start == 60


def test_an_edited_turn_goes_back_to_the_reply_before_it(served: Served) -> None:
    messages = [user(WORDS)]
    first = ask(served, messages)
    before = with_reply(messages, first)
    tried = ask(served, [*before, user("left")])
    edited = ask(served, [*before, user("right")])
    alone = ask(served, [*before, user("right")], key="bob")
    assert session_of(tried) == session_of(edited) == session_of(first)
    assert cached(edited) == cached(tried) > 0
    assert edited.choices[0].message.content == alone.choices[0].message.content
    assert cached(alone) == 0


def test_a_first_turn_takes_no_other_conversation_with_the_same_instructions(
    served: Served,
) -> None:
    one, other = ([system(WORDS), user(name)] for name in ("one", "other"))
    first = ask(served, one)
    second = ask(served, other)
    assert session_of(first) != session_of(second) and cached(second) > 60
    more = ask(served, [*with_reply(one, first), user("more")])
    assert session_of(more) == session_of(first)
    assert cached(more) >= first.usage.prompt_tokens


def test_the_same_request_again_reads_no_more_than_its_last_message(served: Served) -> None:
    messages = [user(WORDS)]
    more = [*with_reply(messages, ask(served, messages)), user("and?")]
    one, two = ask(served, more), ask(served, more)
    assert cached(one) == cached(two) > 0
    assert one.choices[0].message.content == two.choices[0].message.content


def test_sessions_with_equal_instructions_begin_with_them_read(served: Served) -> None:
    first = ask(served, [system(WORDS), user("one")], prompt_cache_key="one")
    other = ask(served, [system(WORDS), user("other")], prompt_cache_key="other")
    alone = ask(served, [system(WORDS), user("other")], key="bob")
    assert cached(first) == 0 and cached(other) > 60 and session_of(other) == "other"
    assert other.choices[0].message.content == alone.choices[0].message.content
    again = ask(served, [system(WORDS), user("one")], prompt_cache_key="one")
    assert again.choices[0].message.content == first.choices[0].message.content


def test_a_compacted_conversation_keeps_its_instructions(served: Served) -> None:
    messages = [system(WORDS), user("begin " + WORDS)]
    for turn in range(4):
        answer = ask(served, messages, prompt_cache_key="mine")
        messages = [*with_reply(messages, answer), user(f"turn {turn} {WORDS}")]
    compacted = [messages[0], user("a summary of all that"), *messages[-1:]]
    answer = ask(served, compacted, prompt_cache_key="mine")
    alone = ask(served, compacted, key="bob")
    assert cached(answer) > 60 and cached(alone) == 0
    assert answer.choices[0].message.content == alone.choices[0].message.content


def test_a_key_never_finds_the_session_of_another(served: Served) -> None:
    """Neither by what was said, nor by its key, nor by a header."""
    by: list[dict[str, Any]] = [{}, {"prompt_cache_key": "mine"}]
    by.append({"extra_headers": {"X-AgentKV-Session": "mine"}})
    for options in by:
        messages = [system(WORDS), user(WORDS)]
        first = ask(served, messages, prompt_cache_key="mine")
        ask(served, messages)
        more = [*with_reply(messages, first), user("more")]
        assert cached(ask(served, more, key="bob", **options)) == 0, options
        assert cached(ask(served, more, prompt_cache_key="mine")) > 60
        served.engine.call(lambda: erase_all(served)).result()


def test_a_key_never_reaches_the_slot_or_the_file_of_another(served: Served) -> None:
    messages = [user(WORDS)]
    ask(served, messages)
    saved = {"filename": "kept.bin"}
    with served.client("ann") as ann, served.client("bob") as bob:
        ann.post("../slots/0?action=save", body=saved, cast_to=object)
        assert bob.get("../slots", cast_to=list[Any]) == []
        for action in ("save", "restore", "erase"):
            with pytest.raises(openai.NotFoundError):
                bob.post(f"../slots/0?action={action}", body=saved, cast_to=object)
        assert cached(ask(served, messages, key="bob", extra_body={"id_slot": 0})) == 0
        assert len(ann.get("../slots", cast_to=list[Any])) == 1


def test_another_policy_needs_another_session(served: Served) -> None:
    messages = [user(WORDS)]
    first = ask(served, messages, prompt_cache_key="mine")
    full = {"agentkv": {"policy": "full"}}
    with pytest.raises(openai.ConflictError, match="policy window"):
        header = {"X-AgentKV-Session": "mine"}
        ask(served, messages, extra_headers=header, extra_body=full)
    other = ask(served, messages, prompt_cache_key="mine", extra_body=full)
    assert other.usage.agentkv["entries_kept"] > first.usage.agentkv["entries_kept"]
    with pytest.raises(openai.BadRequestError, match="no policy h2o"):
        ask(served, messages, extra_body={"agentkv": {"policy": "h2o"}})


def test_slots_are_saved_restored_and_erased(served: Served) -> None:
    messages = [user(WORDS)]
    first = ask(served, messages)
    more = [*with_reply(messages, first), user("more")]
    with served.client("ann") as client:

        def act(action: str, slot: int = 0, name: str = "kept.bin") -> Any:
            path = f"../slots/{slot}?action={action}"
            return client.post(path, body={"filename": name}, cast_to=dict[str, Any])

        saved = act("save")
        assert saved["id_slot"] == 0 and saved["n_saved"] > 60 and saved["n_written"] > 1000
        expected = ask(served, more)
        assert act("erase")["n_erased"] > saved["n_saved"]
        assert client.get("../slots", cast_to=list[Any]) == []
        restored = act("restore", slot=3)
        assert restored["n_restored"] == saved["n_saved"]
        assert restored["n_read"] == saved["n_written"]
        with pytest.raises(openai.NotFoundError, match="no session was saved as 'other'"):
            act("restore", name="other")
        with pytest.raises(openai.NotFoundError, match="no slot 9"):
            act("save", slot=9)
    again = ask(served, more)
    assert again.usage.agentkv["slot"] == 3
    assert cached(again) == cached(expected) > 60
    assert again.choices[0].message.content == expected.choices[0].message.content


def test_a_session_is_saved_under_a_plain_name_only(local: LocalModel, tmp_path: Path) -> None:
    with serving(local, store=tmp_path / "store") as served, served.client() as client:
        ask(served, [user("hello")])
        for name in ("../x", "/etc/passwd", "a/b", "..", ".hidden", "", "x" * 200):
            for action in ("save", "restore"):
                asked = {"body": {"filename": name}, "cast_to": object}
                with pytest.raises(openai.APIStatusError, match="name"):
                    client.post(f"../slots/0?action={action}", **asked)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_sessions_on_disk_are_found_by_the_next_server(local: LocalModel, tmp_path: Path) -> None:
    messages = [user(WORDS)]
    with serving(local, keys=("ann", "bob"), store=tmp_path) as served:
        first = ask(served, messages)
        named = ask(served, messages, key="bob", prompt_cache_key="mine")
    more = [*with_reply(messages, first), user("more")]
    with serving(local, keys=("bob", "ann"), store=tmp_path) as served:
        again = ask(served, more)
        assert session_of(again) == session_of(first) and cached(again) > 60
        bobs = ask(served, more, key="bob", prompt_cache_key="mine")
        assert session_of(bobs) == session_of(named) == "mine" and cached(bobs) > 60
        assert again.choices[0].message.content == bobs.choices[0].message.content


def test_a_damaged_session_is_read_again(local: LocalModel, tmp_path: Path) -> None:
    messages = [user(WORDS)]
    with serving(local, store=tmp_path) as served:
        first = ask(served, messages)
    for file in tmp_path.glob("sessions/*/cache-*"):
        file.write_bytes(file.read_bytes()[:-20])
    with serving(local, store=tmp_path) as served:
        more = ask(served, [*with_reply(messages, first), user("more")])
        assert cached(more) == 0 and more.usage.prompt_tokens > 60


def test_files_of_sessions_are_their_owners_alone_and_hold_no_key(
    local: LocalModel, tmp_path: Path
) -> None:
    with serving(local, keys=("secret-of-ann",), store=tmp_path) as served:
        ask(served, [user(WORDS)], key="secret-of-ann")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 3  # one of them is the lock
    for path in files:
        assert path.stat().st_mode & 0o77 == 0
        assert b"secret-of-ann" not in path.read_bytes()


def test_raw_prompts_go_on_where_their_text_does(served: Served) -> None:
    with served.client("ann") as client:

        def complete(prompt: str) -> Any:
            answer = client.completions.create(
                model="tiny", prompt=prompt, temperature=0, max_tokens=5
            )
            served.idle()
            return answer

        first = complete(WORDS)
        more = complete(WORDS + first.choices[0].text + " and more")
        assert cached(more) >= first.usage.prompt_tokens
        assert cached(complete("something else")) == 0


def test_a_further_system_message_is_read(served: Served) -> None:
    ask(served, [system(WORDS), user("one")])
    both = [system(WORDS), system("Answer with a link."), user("one")]
    assert ask(served, both).usage.prompt_tokens == ask(served, both, key="bob").usage.prompt_tokens


def test_a_slot_that_is_not_in_use_is_made(served: Served) -> None:
    answer = ask(served, [user(WORDS)], extra_body={"id_slot": 7})
    assert answer.usage.agentkv["slot"] == 7


def test_conversations_that_share_a_key_keep_apart(served: Served) -> None:
    one, other = [user("one " + WORDS)], [user("other " + WORDS)]
    first = ask(served, one, prompt_cache_key="app")
    ask(served, other, prompt_cache_key="app")
    more = ask(served, [*with_reply(one, first), user("more")], prompt_cache_key="app")
    assert cached(more) >= first.usage.prompt_tokens
    assert len(list(served.engine.sessions)) == 2


def test_a_raw_prompt_goes_on_with_a_stop_text_that_its_client_adds_again(served: Served) -> None:
    with served.client("ann") as client:

        def complete(prompt: str, **options: Any) -> Any:
            answer = client.completions.create(
                model="tiny", prompt=prompt, temperature=0, max_tokens=12, **options
            )
            served.idle()
            return answer

        tokens = complete(WORDS, logprobs=0).choices[0].logprobs.tokens
        stop = next(
            token
            for i, token in enumerate(tokens)
            if i > 1 and token.isascii() and token not in "".join(tokens[:i])
        )
        first = complete(WORDS, stop=stop)
        again = complete(WORDS + first.choices[0].text + stop + " and more")
        assert cached(again) >= first.usage.prompt_tokens
        (session,) = [s for s in served.engine.sessions if s.label == session_of(again)]
        assert session.cache is not None and session.cache.ids is not None
        ids = [*session.cache.ids[0].tolist(), *session.end.unread]
        assert served.engine.template.decode_reply(ids) == session.history


def test_caches_and_snapshots_stay_within_the_memory(local: LocalModel) -> None:
    memory = 120_000
    with serving(local, policies=("full",), budget=None, memory=f"{memory}B") as served:
        for name in "abcd":
            messages = [system(WORDS), user(f"{name}: {WORDS}")]
            for _ in range(2):
                answer = ask(served, messages, prompt_cache_key=name, max_tokens=150)
                messages = [*with_reply(messages, answer), user("more")]
        assert served.engine.sessions.peak_nbytes <= memory
        assert served.engine.sessions.num_spills > 0


@pytest.mark.parametrize("policy", ["lookback", "lookback-int8", "lookback-int4"])
def test_cold_tiers_of_several_replies_stay_within_the_memory(
    local: LocalModel, policy: str
) -> None:
    options: Any = {"policies": (policy,), "budget": 96, "keys": ("ann",), "snapshots": 0}
    asked = {name: [user(f"{name}: {WORDS * 3}")] for name in "abcd"}
    replies: Any = {"max_tokens": 100, "extra_body": {"ignore_eos": True}}
    with serving(local, **options) as served:
        for name, messages in asked.items():
            ask(served, messages, prompt_cache_key=name, **replies)
        nbytes = max(session.cache_nbytes for session in served.engine.sessions)
    # almost enough for three of them
    with serving(local, memory=f"{int(2.9 * nbytes)}B", **options) as served:
        with ThreadPoolExecutor(len(asked)) as pool:
            for name, messages in asked.items():
                pool.submit(ask, served, messages, prompt_cache_key=name, **replies)
        sessions = served.engine.sessions
        assert sessions.peak_nbytes <= sessions.memory and sessions.num_spills > 0
        served.idle()
        assert sessions.counted_nbytes == sessions.nbytes > 0
        sessions.memory = 1
        sessions.make_room()
        assert sessions.counted_nbytes == sessions.nbytes == 0  # all are on disk
