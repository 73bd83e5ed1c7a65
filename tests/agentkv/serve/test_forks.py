"""Requests fork sessions: parallel continuations of one conversation keep its beginning in memory
once. Sessions end with a request or after a time."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import openai
import pytest
import torch

import agentkv
from agentkv.cache.forks import group_nbytes
from agentkv.models.local import LocalModel
from agentkv.serve.session import cache_nbytes, growth_of_fork
from tests.agentkv.serve.conftest import CHATML, Served, serving
from tests.agentkv.serve.test_requests import erase_all
from tests.agentkv.serve.test_sessions import (
    WORDS,
    ask,
    cached,
    session_of,
    system,
    user,
    with_reply,
)

LONG = WORDS * 4


@pytest.fixture(scope="module")
def local(chat_model: Callable[[str], LocalModel]) -> LocalModel:
    return chat_model(CHATML)


@pytest.fixture(scope="module")
def shared(local: LocalModel) -> Iterator[Served]:
    with serving(local, policies=("full", "window"), budget=None, keys=("ann", "bob")) as served:
        yield served


@pytest.fixture
def served(shared: Served) -> Iterator[Served]:
    """A server without sessions."""
    yield shared
    shared.idle()
    shared.engine.call(lambda: erase_all(shared)).result()


def forking(served: Served, messages: list[Any], **options: Any) -> Any:
    ours = {"fork": True, **options.pop("agentkv", {})}
    return ask(served, messages, extra_body={"agentkv": ours}, **options)


def how(answer: Any) -> str:
    return str(answer.usage.agentkv["reuse"]["how"])


def in_memory(served: Served) -> int:
    return int(served.engine.call(lambda: served.engine.sessions.nbytes).result())


def labels(served: Served) -> list[str]:
    return [session.label for session in served.engine.sessions]


def content(answer: Any) -> str:
    return str(answer.choices[0].message.content)


@pytest.mark.parametrize("policy", ["full", "window"])
def test_forks_answer_as_a_session_that_read_everything(served: Served, policy: str) -> None:
    ours = {"policy": policy}
    messages = [system(WORDS), user(LONG)]
    first = ask(served, messages, prompt_cache_key="main", extra_body={"agentkv": ours})
    before = with_reply(messages, first)
    asked = [[*before, user(name)] for name in ("left", "right", "straight on")]
    forks = [
        forking(served, each, agentkv=ours, prompt_cache_key=f"sub {i}")
        for i, each in enumerate(asked)
    ]
    assert [session_of(each) for each in forks] == ["sub 0", "sub 1", "sub 2"]
    assert [how(each) for each in forks] == ["forked"] * 3
    assert all(cached(each) >= first.usage.prompt_tokens for each in forks)
    # the session that was forked goes on, and so does each fork
    main = ask(served, asked[1], prompt_cache_key="main", extra_body={"agentkv": ours})
    assert how(main) == "continued" and content(main) == content(forks[1])
    more = [*with_reply(asked[0], forks[0]), user("more")]
    again = ask(served, more, prompt_cache_key="sub 0", extra_body={"agentkv": ours})
    assert how(again) == "continued"
    # prompts that are read in other parts are rounded otherwise
    alone = [
        ask(served, each, key="bob", extra_body={"agentkv": ours})
        for each in (messages, asked[0], more)
    ]
    assert content(again) == content(alone[-1])


def test_eight_forks_take_little_more_than_one_session(served: Served) -> None:
    messages = [user(WORDS * 16)]
    first = ask(served, messages, prompt_cache_key="main")
    before, alone = with_reply(messages, first), in_memory(served)
    forks = [
        forking(served, [*before, user(str(i))], prompt_cache_key=f"sub {i}") for i in range(8)
    ]
    assert all(how(each) == "forked" for each in forks)
    assert in_memory(served) < 1.3 * alone
    with served.client("ann") as client:
        slots = client.get(f"{served.url}/slots", cast_to=list[Any])
    sub = next(each for each in slots if each["session"] == "sub 3")
    assert 0.7 * sub["hot_bytes"] < sub["shared_bytes"] < sub["hot_bytes"]


def test_forks_that_are_asked_for_at_once_are_not_mixed_up(served: Served) -> None:
    messages = [user(LONG)]
    before = with_reply(messages, ask(served, messages, prompt_cache_key="main"))
    asked = [[*before, user(f"number {i}, please")] for i in range(6)]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda each: forking(served, each, max_tokens=12), asked))
    for each, answer in zip(asked, together, strict=True):
        assert how(answer) == "forked"
        alone = forking(served, each, max_tokens=12)
        assert content(alone) == content(answer) and cached(alone) >= cached(answer)


def test_a_conversation_forks_from_an_earlier_reply_of_another(served: Served) -> None:
    messages = [user(LONG)]
    first = ask(served, messages, prompt_cache_key="main")
    before = with_reply(messages, first)
    for word in ("one", "two", "three", "four", "five", "six"):  # more than there are snapshots
        messages = [*with_reply(messages, first), user(word)]
        first = ask(served, messages, prompt_cache_key="main")
    fork = forking(served, [*before, user("else")], prompt_cache_key="other")
    assert how(fork) == "forked"
    assert cached(fork) >= before[0]["content"].count(" ")
    alone = [ask(served, each, key="bob") for each in (before[:1], [*before, user("else")])]
    assert content(fork) == content(alone[-1])


def test_a_fork_shares_the_beginning_of_a_message(served: Served) -> None:
    first = [system("Be brief."), user(f"{LONG} one")]
    ask(served, first, prompt_cache_key="main")
    other = [system("Be brief."), user(f"{LONG} other")]
    fork = ask(served, other, prompt_cache_key="sub")
    assert how(fork) == "forked"
    assert cached(fork) > 10 * (fork.usage.prompt_tokens - cached(fork))
    alone = ask(served, other, key="bob")
    assert content(fork) == content(alone) and cached(alone) == 0
    again = ask(served, [*first[:1], user("short")], prompt_cache_key="third")
    assert 0 < cached(again) < 30  # a snapshot of the instructions serves as well, uncopied


def test_a_fork_shares_what_follows_text_that_was_removed(served: Served) -> None:
    messages = [user(LONG), {"role": "assistant", "content": "fine"}]
    for word in ("one", "two", "three"):
        messages = [*messages, user(word)]
        messages = with_reply(messages, ask(served, messages, prompt_cache_key="main"))
    removed = [*messages[:4], *messages[6:], user("and now?")]
    answer = ask(served, removed, prompt_cache_key="main")
    assert how(answer) == "edited"
    fork = ask(served, [user(f"{LONG} other")], prompt_cache_key="sub")
    assert how(fork) == "forked" and cached(fork) > 100
    assert content(fork) == content(ask(served, [user(f"{LONG} other")], key="bob"))


def test_a_fork_in_the_middle_of_a_message_keeps_the_instructions_for_others(
    served: Served,
) -> None:
    first, second = ([system(WORDS), user(f"{LONG} {word}")] for word in ("one", "two"))
    ask(served, first, prompt_cache_key="main")
    assert how(ask(served, second, prompt_cache_key="sub")) == "forked"
    (sub,) = (each for each in served.engine.sessions if each.name == "sub")
    assert [point.length for point in sub.snapshots] == [2, 4]


def test_a_session_is_forked_by_its_slot(served: Served) -> None:
    messages = [user(LONG)]
    first = ask(served, messages, prompt_cache_key="main")
    slot, path = first.usage.agentkv["slot"], f"{served.url}/slots"
    with served.client("ann") as client:
        body = {"session": "try"}
        made = client.post(f"{path}/{slot}?action=fork", body=body, cast_to=dict[str, Any])
        assert made["session"] == "try" and made["forked_from"] == slot != made["id_slot"]
        with pytest.raises(openai.NotFoundError, match="no slot 77"):
            client.post(f"{path}/77?action=fork", body={}, cast_to=object)
        with pytest.raises(openai.BadRequestError, match="session"):
            client.post(f"{path}/{slot}?action=fork", body={"session": ""}, cast_to=object)
    more = [*with_reply(messages, first), user("more")]
    found = [ask(served, more, prompt_cache_key=name) for name in ("try", "main")]
    assert [how(each) for each in found] == ["continued"] * 2
    assert content(found[0]) == content(found[1])


def test_a_fork_never_takes_the_place_of_its_source(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.engine.sessions, "_max_sessions", 2)
    messages = [user(LONG)]
    first = ask(served, messages, prompt_cache_key="main")
    ask(served, [user(WORDS)], prompt_cache_key="later")
    fork = forking(served, [*with_reply(messages, first), user("more")], prompt_cache_key="sub")
    assert how(fork) == "forked" and labels(served) == ["main", "sub"]


def test_an_owner_of_one_session_has_no_second_one_once_a_fork_has_answered(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.engine.sessions, "_max_sessions", 1)
    messages = [user(LONG)]
    first = ask(served, messages, prompt_cache_key="main")
    fork = forking(served, [*with_reply(messages, first), user("more")], prompt_cache_key="sub")
    assert how(fork) == "forked" and labels(served) == ["sub"]
    with served.client("ann") as client:
        slot = fork.usage.agentkv["slot"]
        body = {"session": "copy"}
        client.post(f"{served.url}/slots/{slot}?action=fork", body=body, cast_to=object)
    assert labels(served) == ["copy"]


@pytest.mark.parametrize("policy", ["full", "window"])
def test_a_session_and_its_forks_keep_to_their_part_of_the_memory(
    local: LocalModel, policy: str
) -> None:
    options: Any = {"policies": (policy,), "budget": None if policy == "full" else 256}
    messages = [user(LONG * 3)]
    asked = [user(f"{number}: {'other words ' * 40}") for number in range(5)]
    with serving(local, keys=("ann",), **options) as served:
        first = ask(served, messages, prompt_cache_key="main")
        before, expected = with_reply(messages, first), {}
        for each in asked:
            expected[each["content"]] = content(forking(served, [*before, each]))
        nbytes = max(session.cache_nbytes for session in served.engine.sessions)
    # under `full` a fork adds only its own tokens
    part = int((1.4 if policy == "full" else 2.2) * nbytes)
    with serving(local, keys=("ann",), group_memory=f"{part}B", **options) as served:
        ask(served, [user(f"else {WORDS}")], prompt_cache_key="apart")
        ask(served, messages, prompt_cache_key="main")
        with ThreadPoolExecutor(5) as pool:  # some wait for others of the group
            found = pool.map(lambda each: forking(served, [*before, each]), asked)
            answers = {each["content"]: answer for each, answer in zip(asked, found, strict=True)}
        assert {word: content(answer) for word, answer in answers.items()} == expected
        sessions = served.engine.sessions
        (apart,) = (each for each in sessions if each.name == "apart")
        assert apart.cache is not None and apart.snapshots
        groups = [[each for each in sessions if each.group == group.group] for group in sessions]
        assert [apart] in groups and part < sessions.memory
        for group in groups:
            assert group_nbytes(cache for each in group for cache in each.caches) <= part
        if policy == "full":  # all but one are of one group; others may begin anew without a source
            assert len(groups) - 1 == len(max(groups, key=len))
            assert sessions.peak_nbytes - apart.nbytes <= part and sessions.num_spills > 0


@pytest.mark.parametrize(
    "policy, limit, expected",
    [("full", "memory", 4), ("full", "group_memory", 4), ("window", "memory", 2)],
)
def test_forks_run_together_where_memory_has_room_for_what_each_adds(
    local: LocalModel, policy: str, limit: str, expected: int
) -> None:
    options: Any = {"policies": (policy,), "budget": None if policy == "full" else 400}
    messages = [user(LONG * 3)]
    asked = [user(f"number {number}") for number in range(4)]
    with serving(local, keys=("ann",), **options) as served:
        ask(served, messages, prompt_cache_key="main")
        nbytes = max(session.cache_nbytes for session in served.engine.sessions)
    with serving(local, keys=("ann",), **{limit: f"{int(2.5 * nbytes)}B"}, **options) as served:
        first = ask(served, messages, prompt_cache_key="main")
        before = with_reply(messages, first)
        engine, most = served.engine, 0

        def answer(message: Any) -> Any:
            with served.client("ann") as client:
                body = {"agentkv": {"fork": True}, "ignore_eos": True}
                return client.chat.completions.create(
                    model="tiny",
                    messages=[*before, message],
                    max_tokens=40,
                    temperature=0,
                    extra_body=body,
                )

        all_wait = Event()
        with ThreadPoolExecutor(len(asked)) as pool:
            engine.call(all_wait.wait)  # no reply ends before the last one is asked for
            coming = [pool.submit(answer, each) for each in asked]
            while engine.num_waiting < len(asked) and not any(each.done() for each in coming):
                time.sleep(0.01)
            all_wait.set()
            while not all(each.done() for each in coming):
                # between two tokens, so that no reply passes unseen
                most = max(most, engine.call(lambda: engine.num_running).result())
        if policy == "full":
            assert [how(each.result()) for each in coming] == ["forked"] * len(asked)
        # what an evicting policy shares is copied when it evicts
        assert most == expected
        assert engine.sessions.peak_nbytes <= engine.sessions.group_memory


def test_a_session_and_its_forks_keep_to_their_part_after_a_restart(
    local: LocalModel, tmp_path: Path
) -> None:
    options: Any = {"policies": ("full",), "budget": None, "keys": ("ann",), "store": tmp_path}
    messages, other = [user(LONG * 3)], [user(f"else {LONG * 2}")]
    with serving(local, **options) as served:
        first = ask(served, messages, prompt_cache_key="main")
        asked = [*with_reply(messages, first), user("more")]
        fork = forking(served, asked, prompt_cache_key="sub", agentkv={"save": "copy"})
        nbytes = max(session.cache_nbytes for session in served.engine.sessions)
        apart = ask(served, other, prompt_cache_key="apart")
    with serving(local, group_memory=f"{int(1.5 * nbytes)}B", **options) as served:
        ask(served, [*with_reply(other, apart), user("more")], prompt_cache_key="apart")
        for name, said in (("main", asked), ("sub", [*with_reply(asked, fork), user("more")])):
            assert how(ask(served, said, prompt_cache_key=name)) == "continued"
        held = {each.name: each for each in served.engine.sessions}
        assert held["main"].group == held["sub"].group != held["apart"].group
        in_memory = {name for name, each in held.items() if each.cache is not None}
        assert in_memory == {"apart", "sub"}
        # whoever can write to a file of a client cannot put a session into the group of another
        with served.client("ann") as client:
            path = f"{served.url}/slots/7?action=restore"
            client.post(path, body={"filename": "copy"}, cast_to=object)
        copy = max(served.engine.sessions, key=lambda each: each.slot)
        assert copy.slot == 7 and copy.group == copy.id


def test_a_conversation_larger_than_the_part_of_its_group_is_refused(local: LocalModel) -> None:
    with serving(local, policies=("full",), budget=None, group_memory="10KiB") as served:
        with pytest.raises(openai.BadRequestError, match="or one and its forks, together have"):
            ask(served, [user(LONG * 3)])
        assert list(served.engine.sessions) == []


def test_a_fork_takes_what_its_source_had_where_both_do_not_fit(local: LocalModel) -> None:
    with serving(local, policies=("full",), budget=None, keys=("ann",)) as served:
        messages = [system(WORDS), user(LONG * 4)]
        first = ask(served, messages, prompt_cache_key="main")
        nbytes = max(session.cache_nbytes for session in served.engine.sessions)
        asked = [*with_reply(messages, first), user("more")]
        expected = content(forking(served, asked))
    memory = f"{int(1.2 * nbytes)}B"
    with serving(local, policies=("full",), budget=None, keys=("ann",), memory=memory) as served:
        ask(served, messages, prompt_cache_key="main")
        last = ask(served, asked, prompt_cache_key="main")
        other = [*with_reply(messages, first), user("other " * 60)]
        fork = forking(served, other, prompt_cache_key="sub")
        assert how(fork) == "forked" and content(last) == expected
        assert served.engine.sessions.peak_nbytes <= served.engine.sessions.memory
        assert served.engine.sessions.num_spills == 1


def test_a_fork_returns_to_replies_from_before_it_was_one(served: Served) -> None:
    messages = [user(LONG)]
    first = ask(served, messages, prompt_cache_key="main")
    early = [*with_reply(messages, first), user("else")]
    for word in ("one", "two", "three", "four", "five", "six"):
        messages = [*with_reply(messages, first), user(word)]
        first = ask(served, messages, prompt_cache_key="main")
    slot = first.usage.agentkv["slot"]
    path = f"{served.url}/slots/{slot}?action="
    with served.client("ann") as client:
        client.post(f"{path}fork", body={"session": "try"}, cast_to=object)
        client.post(f"{path}erase", body={}, cast_to=object)
    again = ask(served, early, extra_headers={"X-AgentKV-Session": "try"})
    assert how(again) == "returned" and cached(again) > 0


def test_a_return_far_behind_what_a_fork_shares_keeps_to_the_memory(local: LocalModel) -> None:
    with serving(
        local, policies=("full",), budget=None, keys=("ann",), memory="300000B", snapshots=0
    ) as served:
        messages = [user("early " * 150)]
        early = with_reply(messages, ask(served, messages, prompt_cache_key="main"))
        ask(served, [*early, user("later " * 190)], prompt_cache_key="main")
        with served.client("ann") as client:
            client.post(f"{served.url}/slots/0?action=fork", body={}, cast_to=object)
        back = ask(served, [*early, user("else")], prompt_cache_key="main")
        assert how(back) == "returned"
        assert served.engine.sessions.peak_nbytes <= served.engine.sessions.memory


def test_an_edit_of_what_a_fork_shares_keeps_to_the_memory(local: LocalModel) -> None:
    with serving(
        local, policies=("full",), budget=None, keys=("ann",), memory="300000B", snapshots=0
    ) as served:
        messages = [user("early " * 150)]
        early = with_reply(messages, ask(served, messages, prompt_cache_key="main"))
        asked = [*early, user("later " * 190)]
        last = ask(served, asked, prompt_cache_key="main")
        with served.client("ann") as client:
            client.post(f"{served.url}/slots/0?action=fork", body={}, cast_to=object)
        shorter = [user("early " * 120), *with_reply(asked, last)[1:], user("more")]
        edited = ask(served, shorter, prompt_cache_key="main")
        assert how(edited) == "edited"
        assert served.engine.sessions.peak_nbytes <= served.engine.sessions.memory


def test_a_fork_of_nothing_is_a_new_session(served: Served) -> None:
    ask(served, [user(LONG)], key="bob")
    first, second = (forking(served, [user(LONG)], prompt_cache_key="a") for _ in range(2))
    assert how(first) == "new" and labels(served).count("a") == 2
    assert content(first) == content(second)


def test_a_fork_of_a_session_on_disk_reads_again(served: Served) -> None:
    messages = [user(LONG)]
    first = ask(served, messages, prompt_cache_key="main")
    sessions = served.engine.sessions
    served.engine.call(lambda: [sessions.spill(each) for each in list(sessions)]).result()
    fork = forking(served, [*with_reply(messages, first), user("more")])
    assert how(fork) == "new" and cached(fork) == 0


def test_a_released_session_leaves_nothing(served: Served) -> None:
    messages = [user(LONG)]
    first = ask(served, messages, prompt_cache_key="main")
    kept = in_memory(served)
    more = [*with_reply(messages, first), user("more")]
    fork = forking(served, more, agentkv={"release": True}, prompt_cache_key="sub")
    assert how(fork) == "forked" and labels(served) == ["main"]
    assert in_memory(served) <= kept
    last = ask(served, more, prompt_cache_key="main", extra_body={"agentkv": {"release": True}})
    assert how(last) == "continued" and content(last) == content(fork)
    assert labels(served) == [] and in_memory(served) == 0


def test_a_session_that_rests_too_long_is_erased(served: Served) -> None:
    messages = [user(WORDS)]
    body = {"agentkv": {"ttl": 0.2}}
    first = ask(served, messages, prompt_cache_key="short", extra_body=body)
    ask(served, messages, prompt_cache_key="long", extra_body={"agentkv": {"ttl": 3600}})
    deadline = time.monotonic() + 30
    while "short" in labels(served) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert labels(served) == ["long"]
    again = ask(served, [*with_reply(messages, first), user("more")], prompt_cache_key="short")
    assert session_of(again) == "short"


@pytest.mark.parametrize(
    "body, message",
    [
        ({"agentkv": {"fork": True}, "id_slot": 0}, "leave out id_slot"),
        ({"agentkv": {"fork": "soon"}}, "fork"),
        ({"agentkv": {"ttl": 0}}, "ttl"),
        ({"agentkv": {"ttl": 1e300}}, "ttl"),
        ({"agentkv": {"release": []}}, "release"),
    ],
)
def test_settings_of_forks_are_checked(served: Served, body: dict[str, Any], message: str) -> None:
    with pytest.raises(openai.BadRequestError, match=message):
        ask(served, [user("hello")], extra_body=body)


def test_nobody_forks_the_session_of_another_key(served: Served) -> None:
    messages = [user(LONG)]
    first = ask(served, messages, prompt_cache_key="main")
    other = forking(served, [*with_reply(messages, first), user("more")], key="bob")
    assert how(other) == "new" and cached(other) == 0


def test_a_fork_may_grow_by_all_that_it_copies_of_a_cold_tier(local: LocalModel) -> None:
    policy = agentkv.policy("lookback-int8")
    cache = agentkv.Cache.for_model(local.model, policy=policy, budget=64, chunk=32)
    cache.feed(local.model, torch.randint(5, 60, (1, 600)))
    snapshot = cache.fork()
    assert snapshot.shared_nbytes > cache.nbytes  # cold entries are shared too
    bound = 2 * cache_nbytes(cache)
    assert growth_of_fork(cache, bound, copies=True) >= bound
    assert growth_of_fork(cache, bound, copies=False) >= bound - cache_nbytes(cache)
