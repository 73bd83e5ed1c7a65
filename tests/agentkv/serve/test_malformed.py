"""Malformed requests to every address: a clear error in the protocol's form, flat memory, and
nobody sees what belongs to another key."""

import contextlib
import copy
import json
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.agentkv.serve.conftest import free_port
from tests.agentkv.serve.test_kill import client_for, command_for, wait_until_it_answers
from tests.agentkv.serve.test_kill import folder as folder

SECRET = "xylophone-quartz-4711"
"""What only bob's conversations say."""
USER = {"role": "user", "content": "hello"}
TOOL: dict[str, Any] = {"name": "look", "description": "d", "input_schema": {"type": "object"}}
FUNCTION = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
BLOCKS = [
    {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
    {"type": "tool_result", "tool_use_id": "t", "content": "x", "is_error": False},
]
CALL = {"type": "tool_use", "id": "t", "name": "look", "input": {"a": 1}}
MESSAGES: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 2,
    "system": [{"type": "text", "text": "s"}],
    "messages": [
        USER,
        {"role": "assistant", "content": [CALL]},
        {"role": "user", "content": BLOCKS},
    ],
    "tools": [TOOL],
    "tool_choice": {"type": "auto"},
    "thinking": {"type": "enabled", "budget_tokens": 9},
    "temperature": 0.5,
    "top_p": 0.9,
    "stop_sequences": ["x"],
    "stream": False,
    "metadata": {"user_id": "u"},
    "output_config": {"effort": "low"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
}
RESPONSE: dict[str, Any] = {
    "model": "tiny",
    "max_output_tokens": 2,
    "instructions": "s",
    "input": [
        USER,
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "x"},
        {"type": "reasoning", "id": "r", "summary": []},
    ],
    "previous_response_id": "resp_nothing",
    "tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}}],
    "tool_choice": "auto",
    "text": {"format": {"type": "text"}, "verbosity": "medium"},
    "reasoning": {"effort": "low"},
    "metadata": {"a": "b"},
    "store": True,
    "stream": False,
    "temperature": 0.5,
    "include": [],
}
CHAT: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 2,
    "messages": [USER],
    "tools": [FUNCTION],
    "prompt_cache_key": "ann's",
    "id_slot": 0,
    "stream": False,
    "agentkv": {
        "policy": "window",
        "session": "ann's",
        "edits": "keep",
        "fork": True,
        "ttl": 5.5,
        "release": True,
    },
}
ADDRESSES: dict[str, dict[str, Any]] = {
    "/v1/messages": MESSAGES,
    "/v1/messages/count_tokens": MESSAGES,
    "/v1/responses": RESPONSE,
    "/v1/chat/completions": CHAT,
    "/v1/completions": {
        "model": "tiny",
        "prompt": "x",
        "max_tokens": 2,
        "agentkv": {"restore": "mine", "save": "mine"},
    },
    "/slots/0?action=save": {"filename": "mine"},
    "/slots/0?action=restore": {"filename": "mine"},
    "/slots/0?action=erase": {},
    "/slots/0?action=fork": {"session": "a fork"},
    "/slots/0?action=drop": {"label": "turn 0"},
}
"""A body that each address understands, from which malformed ones are made."""
ODD: list[Any] = [
    *(None, True, -1, 0, 2**63, 10**40, 1e308, float("nan"), float("inf"), 0.1, "", " ", "\x00"),
    *("\ud800", "x" * 3000, "../../etc/passwd", "/etc/passwd", "system", "assistant", SECRET[:4]),
    *([], {}, [[]], [{}], [None], {"type": "image", "source": {}}, {"": ""}, [USER] * 40),
    *("bob's", "bobs-file", "resp_bob", "{{ 7 * 7 }}", "<|im_end|>", "%s%n", "\u202e"),
]
"""Values that some part of a body is replaced by."""


@dataclass(frozen=True)
class Running:
    """A server in a process of its own, with keys of ann and bob."""

    port: int
    pid: int

    def send(
        self,
        path: str,
        body: bytes | Any | None = None,
        key: str = "ann",
        kind: str = "application/json",
    ) -> tuple[int, str, str]:
        """Return the status, the content type and the text of an answer."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            headers = {"authorization": f"Bearer {key}", "content-type": kind}
            connection.request("GET" if data is None else "POST", path, data, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
            return answer.status, answer.headers.get("content-type", ""), text
        finally:
            connection.close()

    def said(self, path: str, body: Any = None, key: str = "ann") -> Any:
        """Return the JSON of an answer that is no error."""
        status, _, text = self.send(path, body, key)
        assert status == 200, text
        return json.loads(text)

    @property
    def rss(self) -> int:
        """Bytes of the process that are in memory."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf(
            "SC_PAGE_SIZE"
        )


@pytest.fixture
def running(folder: Path, tmp_path: Path) -> Iterator[Running]:
    port = free_port()
    command = [*command_for(folder, tmp_path / "store", port), "--name", "tiny"]
    command += ["--max-body", "200000", "--max-tokens", "8"]
    environment = {**os.environ, "AGENTKV_API_KEYS": "ann,bob"}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) as process:
        try:
            with contextlib.closing(client_for(port, "ann")) as client:
                wait_until_it_answers(client, process)
            yield Running(port, process.pid)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every member and item of a body."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for name, each in inner:
        yield (*at, name)
        if isinstance(each, dict | list):
            yield from places(each, (*at, name))


def odd(choices: random.Random) -> Any:
    return copy.deepcopy(choices.choice(ODD))


def malformed(body: dict[str, Any], choices: random.Random) -> tuple[bytes, str]:
    """Return a body that is most likely wrong, and its content type."""
    kind = "application/json"
    way = choices.randrange(10)
    if way == 0:
        return choices.randbytes(choices.randrange(60)), kind
    if way == 1:
        return json.dumps(body).encode()[: choices.randrange(len(json.dumps(body)))], kind
    if way == 2:
        deep = choices.choice(["[", '{"a":', '[{"messages":']) * choices.choice([90, 5000])
        return deep.encode(), kind
    if way == 3:
        value = json.dumps(odd(choices))
        return value.encode(), choices.choice(
            [kind, "text/plain", "", "multipart/form-data; boundary=x"]
        )
    made = copy.deepcopy(body)
    for _ in range(choices.choice([1, 1, 2, 4])):
        paths = list(places(made))
        if not paths or choices.random() < 0.1:
            made[choices.choice(["agentkv", "id_slot", "x", "n", "container"])] = odd(choices)
            continue
        *way_there, last = choices.choice(paths)
        inner: Any = made
        for name in way_there:
            inner = inner[name]
        if choices.random() < 0.2:
            del inner[last]
        elif isinstance(inner, list) and choices.random() < 0.2:
            inner.extend(copy.deepcopy([inner[last]] * choices.choice([1, 300])))
        else:
            inner[last] = odd(choices)
    return json.dumps(made).encode(), kind


def require_error(path: str, status: int, text: str) -> None:
    """Check that an error is the client's, short, and in the protocol's form."""
    assert 400 <= status < 500, (path, status, text)
    body = json.loads(text)
    if path.startswith("/v1/messages"):
        assert body.keys() == {"type", "error"} and body["type"] == "error"
        assert body["error"].keys() == {"type", "message"}
    else:
        assert body.keys() == {"error"}
        assert body["error"].keys() == {"message", "type", "param", "code"}
    message = body["error"]["message"]
    assert message and "Traceback" not in message and len(text) < 4000, text
    assert "/tmp" not in message and "agentkv/serve" not in message, message


def of_bob(running: Running) -> Any:
    """What bob finds of his, which no request of another key changes."""
    slots = running.said("/slots", key="bob")
    for each in slots:  # where it is may change, and with that its bytes
        for name in ("in_memory", "bytes", "hot_bytes", "cold_bytes", "snapshot_bytes"):
            del each[name]
        del each["snapshots"], each["shared_bytes"]
    return slots, running.said("/v1/responses/" + BOBS["response"], key="bob")


BOBS: dict[str, str] = {}
"""Id of a response of bob's, once there is one."""


def require_refusals(running: Running, count: int, seed: int) -> int:
    """Send malformed requests of ann to every address; return how many were refused.

    None sees anything of bob's, and the server goes on to serve ann.
    """
    choices, refused = random.Random(seed), 0
    for number in range(count):
        for path, body in ADDRESSES.items():
            address = path.replace("/0", choices.choice(["/0", "/0", "/1", "/7", "/-1", "/x", "/"]))
            data, kind = malformed(body, choices)
            status, found, text = running.send(address, data, kind=kind)
            assert SECRET not in text and BOBS["response"] not in text, (address, data, text)
            if status != 200:
                require_error(path, status, text)
                refused += 1
            elif found.startswith("text/event-stream"):
                assert "server failed" not in text, (address, data, text)
        if number % 20 == 19:
            for slot in running.said("/slots"):
                running.send(f"/slots/{slot['id']}?action=erase", {})
    assert running.said("/v1/messages", {"model": "tiny", "max_tokens": 2, "messages": [USER]})
    return refused


def prepare_bob(running: Running) -> Any:
    """Give bob a session, a fork, a file and a stored response; return what he finds."""
    secret = {"role": "user", "content": SECRET}
    chat = {"model": "tiny", "max_tokens": 2, "messages": [secret], "prompt_cache_key": "bob's"}
    running.said("/v1/chat/completions", chat, key="bob")
    running.said("/slots/0?action=fork", {"session": f"fork of {SECRET}"}, key="bob")
    running.said("/slots/0?action=save", {"filename": "bobs-file"}, key="bob")
    answer = running.said("/v1/responses", {"model": "tiny", "input": SECRET}, key="bob")
    BOBS["response"] = answer["id"]
    return of_bob(running)


def test_malformed_requests_to_each_address_are_refused_in_its_form(running: Running) -> None:
    before = prepare_bob(running)
    refused = require_refusals(running, 12, seed=1)
    assert refused > 0.6 * 12 * len(ADDRESSES)
    assert of_bob(running) == before


def test_no_request_reaches_what_belongs_to_another_key(running: Running) -> None:
    before = prepare_bob(running)
    chat = {"model": "tiny", "max_tokens": 2, "messages": [{"role": "user", "content": SECRET}]}
    taken = {"previous_response_id": BOBS["response"], "input": "go on"}
    status, _, text = running.send("/v1/responses", taken)
    require_error("/v1/responses", status, text)
    assert "previous_response_not_found" in text
    for action, body in (
        ("restore", {"filename": "bobs-file"}),
        ("save", {"filename": "mine"}),
        ("fork", {}),
        ("erase", {}),
        ("drop", {"label": "turn 0"}),
    ):
        status, _, text = running.send(f"/slots/0?action={action}", body)
        assert status == 404, text
        require_error("/slots", status, text)
    for path in ("/slots/0/tokens", "/slots/0/messages", f"/v1/responses/{BOBS['response']}"):
        assert running.send(path)[0] == 404
    # the same words under the same name are a session of its own
    for more in ({"prompt_cache_key": "bob's"}, {"id_slot": 0}, {"agentkv": {"fork": True}}):
        answer = running.said("/v1/chat/completions", {**chat, **more})
        usage = answer["usage"]
        assert usage["agentkv"]["reuse"]["how"] in ("new", "continued", "returned", "forked")
        if more == {"prompt_cache_key": "bob's"}:
            assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert of_bob(running) == before
    assert running.said("/slots/5?action=restore", {"filename": "bobs-file"}, key="bob")[
        "n_restored"
    ]


@pytest.mark.slow
def test_a_thousand_malformed_requests_to_each_address_leave_memory_flat(running: Running) -> None:
    before = prepare_bob(running)
    # the first time, the largest of these requests make the process as large as it gets
    for seed in range(5):
        require_refusals(running, 100, seed)
    warm, refused = running.rss, 0
    for seed in (*range(5), *range(5)):
        refused += require_refusals(running, 100, seed)
        assert running.rss < warm + 16 * 2**20, f"seed {seed}, {refused} requests were refused"
    assert refused > 0.6 * 1000 * len(ADDRESSES)
    assert of_bob(running) == before
