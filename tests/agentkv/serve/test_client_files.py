"""Clients save sessions to files of their own and restore them, and reach nothing else."""

import json
import os
import resource
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from agentkv.models.load import local_model
from agentkv.models.local import LocalModel
from agentkv.models.saved import INDEX
from agentkv.serve.command import ServeError, check
from agentkv.serve.named_files import NamedFolder
from agentkv.serve.settings import ServeSettings
from tests.agentkv.agent.conftest import random_llama
from tests.agentkv.serve.conftest import CHATML, Served, serving
from tests.agentkv.serve.test_messages import client_of
from tests.agentkv.serve.test_requests import GOOD, error_of, send
from tests.agentkv.serve.test_sessions import WORDS, ask, cached, user, with_reply

PATHS = {
    "/v1/chat/completions": {"messages": [user(WORDS)], "max_tokens": 3},
    "/v1/messages": {"messages": [user(WORDS)], "max_tokens": 3},
    "/v1/responses": {"input": WORDS, "max_output_tokens": 3},
}
PATH = "/v1/chat/completions"
OUTSIDE = (
    *(
        "../x",
        "/etc/passwd",
        "a//b",
        "a/../b",
        "a/",
        "/",
        "..",
        ".hidden",
        "a/.b",
        "x" * 129,
        "a\x00b",
    ),
    *("a/b/c/d/e/f/g/h/i", "a\\..\\b", f"a/{INDEX}", "ü", "a b", "-x", "a\n", "x/" * 500 + "x"),
)
"""Names that are none."""


@pytest.fixture(scope="module")
def local(chat_model: Callable[[str], LocalModel]) -> LocalModel:
    return chat_model(CHATML)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "theirs"


@pytest.fixture
def served(local: LocalModel, folder: Path, tmp_path: Path) -> Iterator[Served]:
    policies = ("window", "full")
    store = tmp_path / "store"
    with serving(local, policies=policies, client_files=folder, store=store) as served:
        yield served
        served.idle()


def ours(**settings: Any) -> dict[str, Any]:
    return {"extra_body": {"agentkv": settings}}


def saved_conversation(served: Served, name: str, **settings: Any) -> list[Any]:
    """Save a conversation after its first reply; return its messages."""
    answer = ask(served, [user(WORDS)], **ours(save=name, **settings))
    assert answer.usage.agentkv["saved"]["n_saved"] > 60
    return [*with_reply([user(WORDS)], answer), user("more")]


def slots(served: Served) -> Any:
    return send(served, b"", "/slots", "GET")[1]


@pytest.mark.parametrize("path", PATHS)
def test_a_request_of_each_protocol_goes_on_in_a_session_from_a_file(
    served: Served, local: LocalModel, folder: Path, tmp_path: Path, path: str
) -> None:
    body = {**PATHS[path], "agentkv": {"save": "runs/7/one.kv", "release": True}}
    status, first = send(served, body, path)
    assert status == 200, first
    use = first["usage"]["agentkv"]["saved"]
    assert use["filename"] == "runs/7/one.kv" and use["n_written"] > 1000
    assert {each.name for each in (folder / "runs" / "7" / "one.kv").iterdir()} >= {INDEX}
    served.idle()
    assert slots(served) == []
    with serving(local, policies=("window",), client_files=folder, store=tmp_path / "new") as other:
        more = dict(body)
        if path == "/v1/responses":
            more["input"] = [user(WORDS), *first["output"], user("more")]
        else:
            said = first["content"] if path == "/v1/messages" else None
            said = said or first["choices"][0]["message"]["content"]
            reply = {"role": "assistant", "content": said}
            more["messages"] = [*body["messages"], reply, user("more")]
        more["agentkv"] = {"restore": "runs/7/one.kv", "session": "back"}
        status, second = send(other, more, path)
        assert status == 200, second
        assert second["usage"]["agentkv"]["reuse"]["how"] == "continued", second["usage"]
        assert second["usage"]["agentkv"]["reuse"]["kept"] > 60
        other.idle()
        assert [each["name"] for each in slots(other)] == ["back"]


def test_the_clients_of_both_makers_send_file_names(served: Served) -> None:
    saved_conversation(served, "one")
    with client_of(served) as client:
        message = client.messages.create(
            model="tiny", max_tokens=2, messages=[user(WORDS)], **ours(restore="one", save="two")
        )
        assert isinstance(message, anthropic.types.Message)
        with pytest.raises(anthropic.NotFoundError, match="no session was saved as 'three'"):
            client.messages.create(
                model="tiny", max_tokens=2, messages=[user("x")], **ours(restore="three")
            )
    with pytest.raises(openai.NotFoundError, match="no session was saved as 'three'"):
        ask(served, [user("x")], **ours(restore="three"))
    with pytest.raises(openai.BadRequestError, match="leave out restore or fork"):
        ask(served, [user("x")], **ours(restore="two", fork=True))


@pytest.mark.parametrize("name", OUTSIDE)
def test_no_name_leads_out_of_the_folder(
    served: Served, folder: Path, tmp_path: Path, name: str
) -> None:
    ask(served, [user("hello")])
    before = sorted(tmp_path.rglob("*"))
    for body, path in (
        ({"filename": name}, "/slots/0?action=save"),
        ({"filename": name}, "/slots/0?action=restore"),
        ({**GOOD, "agentkv": {"save": name}}, "/v1/chat/completions"),
        ({**GOOD, "agentkv": {"restore": name}}, "/v1/chat/completions"),
    ):
        error = error_of(*send(served, body, path))
        assert "cannot name a saved session" in error["message"]
    assert sorted(tmp_path.rglob("*")) == before and len(slots(served)) == 1
    assert slots(served)[0]["n_tokens"] > 0


def test_links_and_other_files_are_neither_followed_nor_overwritten(
    served: Served, folder: Path, tmp_path: Path
) -> None:
    more = saved_conversation(served, "good")
    outside = tmp_path / "outside"
    (folder / "good").rename(outside)
    (folder / "link").symlink_to(outside)
    (folder / "notes").mkdir()
    (folder / "notes" / "mine.txt").write_text("mine")
    (folder / "file").write_text("mine")
    (folder / "linked").mkdir()
    (folder / "linked" / INDEX).symlink_to(outside / INDEX)
    (folder / "pipe").mkdir()
    os.mkfifo(folder / "pipe" / INDEX)
    (folder / "inside").mkdir()
    (folder / "inside" / INDEX).write_bytes((outside / INDEX).read_bytes())
    (cache,) = (each for each in outside.iterdir() if each.name != INDEX)
    (folder / "inside" / cache.name).symlink_to(cache)
    before = {each: each.read_bytes() for each in outside.iterdir()}
    for name in ("link", "link/deeper", "file", "file/deeper", "notes", "linked", "pipe", "inside"):
        actions = ["restore"] if name in ("inside",) else ["restore", "save"]
        for action in actions:
            asked = {"filename": name}
            error = error_of(*send(served, asked, f"/slots/0?action={action}"))
            assert str(tmp_path) not in error["message"]
            asked = {**GOOD, "messages": more, "agentkv": {action: name}}
            error_of(*send(served, asked, "/v1/chat/completions"))
    assert {each: each.read_bytes() for each in outside.iterdir()} == before
    assert [each.name for each in (folder / "notes").iterdir()] == ["mine.txt"]
    assert (folder / "file").read_text() == "mine"
    assert cached(ask(served, more)) > 60


def test_a_key_finds_no_file_of_another_key(local: LocalModel, folder: Path) -> None:
    with serving(local, keys=("ann", "bob"), client_files=folder) as served:
        more = [
            user(WORDS),
            *with_reply([], ask(served, [user(WORDS)], **ours(save="a/one"))),
            user("x"),
        ]
        with pytest.raises(openai.NotFoundError, match="no session was saved as 'a/one'"):
            ask(served, more, key="bob", **ours(restore="a/one"))
        (of_ann,) = folder.iterdir()
        for name in (f"{of_ann.name}/a/one", f"../{of_ann.name}/a/one"):
            with pytest.raises(openai.NotFoundError):
                ask(served, more, key="bob", **ours(restore=name))
        ask(served, [user("bob's own")], key="bob", **ours(save="a/one"))
        # a copy in the other folder still belongs to the key that made it
        (of_bob,) = (each for each in folder.iterdir() if each != of_ann)
        (of_ann / "a" / "one").rename(of_bob / "stolen")
        with pytest.raises(openai.NotFoundError, match="no session was saved as 'stolen'"):
            ask(served, more, key="bob", **ours(restore="stolen"))
        (of_bob / "stolen").rename(of_ann / "back")
        assert cached(ask(served, more, **ours(restore="back"))) > 60


Damage = Callable[[Path], None]


def _shorten(place: Path) -> None:
    (cache,) = (each for each in place.iterdir() if each.name != INDEX)
    cache.write_bytes(cache.read_bytes()[:-100])


def _flip(place: Path) -> None:
    (cache,) = (each for each in place.iterdir() if each.name != INDEX)
    content = bytearray(cache.read_bytes())
    content[len(content) // 2] ^= 0xFF
    cache.write_bytes(content)


def _change(**changes: Any) -> Damage:
    def change(place: Path) -> None:
        body = json.loads((place / INDEX).read_text())
        body |= {name: make(body[name]) for name, make in changes.items()}
        (place / INDEX).write_text(json.dumps(body))

    return change


DAMAGES: dict[str, Damage] = {
    "cut": _shorten,
    "flipped": _flip,
    "no JSON": lambda place: (place / INDEX).write_text("{") and None,
    "no cache": lambda place: [each.unlink() for each in place.glob("cache-*")] and None,
    "another name": _change(cache=lambda name: f"../{name}"),
    "ids that no model has": _change(ids=lambda ids: [10**9, *ids[1:]]),
    "unread ids that no model has": _change(unread=lambda ids: [10**9]),
    "too few ids": _change(ids=lambda ids: ids[:-1]),
    "too many messages": _change(num_read=lambda number: 10**6),
    "messages without tokens": _change(places=lambda places: [[0, 10**6]]),
    "more that is gone than there is": _change(num_empty=lambda number: 10**6),
    "another number of tokens": _change(seen=lambda number: number + 1, ids=lambda ids: [*ids, 5]),
    "another policy": _change(policy=lambda name: "h2o"),
    "another budget": _change(budget=lambda number: number + 8),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused_and_nothing_is_lost(
    served: Served, folder: Path, damage: str
) -> None:
    more = saved_conversation(served, "one")
    DAMAGES[damage](folder / "one")
    before = slots(served)
    for body, path in (
        ({"filename": "one"}, "/slots/0?action=restore"),
        ({**GOOD, "messages": more, "agentkv": {"restore": "one"}}, "/v1/chat/completions"),
    ):
        error = error_of(*send(served, body, path))
        assert "one" in error["message"] and str(folder) not in error["message"]
    assert slots(served) == before
    assert cached(ask(served, more)) > 60


def test_a_file_of_another_model_or_policy_is_refused_in_a_line(
    served: Served, local: LocalModel, folder: Path, tmp_path: Path
) -> None:
    more = saved_conversation(served, "one", policy="full")
    with pytest.raises(openai.ConflictError, match="has the policy full"):
        ask(served, more, **ours(restore="one", policy="window"))
    tokenizer = local.source_tokenizer
    another = local_model(random_llama(len(tokenizer) + 64), tokenizer, name="tiny")
    for model, expected in ((local, "this server has no policy 'full'"), (another, "model")):
        policies = ("window",) if model is local else ("full",)
        options: Any = {"client_files": folder, "store": tmp_path / expected[:4]}
        with serving(model, policies=policies, **options) as other:
            with pytest.raises(openai.BadRequestError, match=expected) as refused:
                ask(other, more, **ours(restore="one"))
            assert "'one' cannot be restored" in str(refused.value)
            assert "\n" not in refused.value.message and slots(other) == []


def test_files_take_no_more_than_their_quota_and_a_refusal_writes_nothing(
    local: LocalModel, folder: Path
) -> None:
    with serving(local, policies=("full",), budget=None, client_files=folder) as served:
        saved_conversation(served, "one")
        nbytes = sum(each.stat().st_size for each in (folder / "one").iterdir())
    quota = int(2.5 * nbytes)
    options: Any = {"policies": ("full",), "budget": None, "client_quota": f"{quota}B"}
    with serving(local, client_files=folder, **options) as served:
        saved_conversation(served, "runs/two")
        saved_conversation(served, "runs/two")  # what is replaced does not count
        before = {each: each.read_bytes() for each in folder.rglob("*") if each.is_file()}
        assert sum(map(len, before.values())) <= quota
        for path, body in PATHS.items():
            asked = {**body, "agentkv": {"save": "runs/8/three"}}
            status, answer = send(served, asked, path)
            assert status == 400, answer
            assert "the files of clients may have" in answer["error"]["message"]
        error = error_of(*send(served, {"filename": "a/b"}, "/slots/0?action=save"))
        assert error["code"] == "file_quota_exceeded" and "--client-quota" in error["message"]
        assert str(folder) not in error["message"]
        # the reply may begin, and becomes too long to be saved
        body = {"agentkv": {"save": "long"}, "ignore_eos": True}
        answer = ask(served, [user("hello")], max_tokens=300, extra_body=body)
        assert answer.usage.agentkv["saved"]["n_written"] == 0
        after = {each: each.read_bytes() for each in folder.rglob("*") if each.is_file()}
        assert after == before
        assert {each.name for each in folder.iterdir()} == {"one", "runs"}
        assert [each.name for each in (folder / "runs").iterdir()] == ["two"]
        (folder / "one").rename(folder.parent / "moved")
        saved_conversation(served, "runs/8/three")


def test_a_file_that_cannot_be_written_leaves_nothing(served: Served, folder: Path) -> None:
    more = saved_conversation(served, "one")
    before = {each: each.read_bytes() for each in folder.rglob("*") if each.is_file()}
    (limit, most) = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, most))  # as a full disk does
    try:
        status, _ = send(served, {"filename": "a/two"}, "/slots/0?action=save")
        again = ask(served, more, **ours(save="one"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
    assert status == 500 and again.usage.agentkv["saved"]["n_written"] == 0
    assert {each: each.read_bytes() for each in folder.rglob("*") if each.is_file()} == before
    assert [each.name for each in folder.iterdir()] == ["one"]


def test_a_quota_is_a_number_of_bytes() -> None:
    with pytest.raises(ServeError, match="number of bytes such as 10GiB; found '25%'"):
        check(ServeSettings(model="tiny", port=0, client_quota="25%"), ())


class SlowFolder(NamedFolder):
    """A folder on a disk that takes as long as a test wants."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, in_folders=True, by_owner=False)
        self.is_asked, self.may_go_on = threading.Event(), threading.Event()

    def for_restoring(self, owner: str, name: str) -> Path:
        self.is_asked.set()
        assert self.may_go_on.wait(60), "nobody was answered meanwhile"
        return super().for_restoring(owner, name)


@pytest.mark.parametrize("way", ["request", "slot"])
def test_others_are_answered_while_a_file_is_read(
    served: Served, folder: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    more = saved_conversation(served, "one", release=True)
    other = ask(served, [user("hello")])
    slow = SlowFolder(folder)
    monkeypatch.setattr(served.engine.sessions._files, "named", slow)
    body: Any = {"filename": "one"}
    path = "/slots/5?action=restore"
    if way == "request":
        body, path = {**GOOD, "messages": more, "agentkv": {"restore": "one"}}, PATH
    with ThreadPoolExecutor(2) as pool:
        coming = pool.submit(send, served, body, path)
        assert slow.is_asked.wait(60)
        said = [*with_reply([user("hello")], other), user("more")]
        status, answer = send(served, {**GOOD, "messages": said}, PATH)
        assert status == 200 and answer["usage"]["agentkv"]["reuse"]["how"] == "continued"
        assert not coming.done() and len(slots(served)) == 1
        # one that is read later is refused as well, and what is read now comes to nothing worse
        second = pool.submit(send, served, {"filename": "two"}, "/slots/6?action=restore")
        slow.may_go_on.set()
        status, answer = coming.result()
        assert status == 200, answer
        assert second.result()[0] == 404
    if way == "request":
        assert answer["usage"]["agentkv"]["reuse"]["how"] == "continued"
        assert answer["usage"]["agentkv"]["reuse"]["kept"] > 60
    else:
        assert answer["n_restored"] > 60 and answer["id_slot"] == 5
    served.idle()
    assert len(slots(served)) == 2


def test_a_client_that_leaves_while_its_file_is_read_leaves_no_session(
    served: Served, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = saved_conversation(served, "one", release=True)
    slow = SlowFolder(folder)
    monkeypatch.setattr(served.engine.sessions._files, "named", slow)
    host, _, port = served.url.removeprefix("http://").partition(":")
    leaving = HTTPConnection(host, int(port))
    body = json.dumps({**GOOD, "messages": more, "agentkv": {"restore": "one"}})
    leaving.request("POST", PATH, body, {"content-type": "application/json"})
    assert slow.is_asked.wait(60)
    leaving.close()
    served.idle()  # its place is free although the disk is slow
    slow.may_go_on.set()
    assert send(served, {"filename": "one"}, "/slots/3?action=restore")[0] == 200
    assert [each["id"] for each in slots(served)] == [3]


def test_a_server_stops_while_a_file_is_read(local: LocalModel, folder: Path) -> None:
    slow = SlowFolder(folder)
    with serving(local, policies=("full",), budget=None, client_files=folder) as served:
        more = saved_conversation(served, "one", release=True)
        served.engine.sessions._files.named = slow
        pool = ThreadPoolExecutor(2)
        body = {**GOOD, "messages": more, "agentkv": {"restore": "one"}}
        coming = [
            pool.submit(send, served, body, PATH),
            pool.submit(send, served, {"filename": "one"}, "/slots/3?action=restore"),
        ]
        assert slow.is_asked.wait(60)
        stopping = threading.Thread(target=served.engine.stop)
        stopping.start()
        while served.engine.is_alive:
            pass
        slow.may_go_on.set()
        stopping.join()
        assert [each.result()[0] for each in coming] == [503, 503]
        pool.shutdown()


def test_a_name_is_checked_before_a_reply_is_written(served: Served) -> None:
    with pytest.raises(openai.NotFoundError, match="cannot name a saved session"):
        ask(served, [user("hello")], **ours(save="../x"))
    assert slots(served) == []


@pytest.mark.parametrize("inside", [".", "sessions", ".."])
def test_the_folder_is_apart_from_the_sessions_of_all(
    local: LocalModel, tmp_path: Path, inside: str
) -> None:
    store = tmp_path / "a" / "store"
    with (
        pytest.raises(ServeError, match="contain each other"),
        serving(local, store=store, client_files=store / inside),
    ):
        pass
