"""Requests that are wrong, too large, too many or not allowed get an error in OpenAI's form."""

import gc
import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentkv.models.local import LocalModel
from agentkv.serve.command import ServeError
from tests.agentkv.serve.conftest import CHATML, Served, serving

GOOD: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 2,
    "temperature": 0,
}
CHAT, RAW = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def served(chat_model: Callable[[str], LocalModel]) -> Iterator[Served]:
    with serving(chat_model(CHATML), max_body=200_000, max_tokens=64) as served:
        yield served


def send(
    served: Served,
    body: bytes | Any,
    path: str = CHAT,
    method: str = "POST",
    **headers: str,
) -> tuple[int, Any]:
    """Send a request as it is; return the status and the body's JSON."""
    host, _, port = served.url.removeprefix("http://").partition(":")
    connection = HTTPConnection(host, int(port), timeout=300)
    try:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"content-type": "application/json"}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, data, given)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def error_of(status: int, body: Any) -> dict[str, Any]:
    """Check the form of an error, and return it."""
    assert 400 <= status < 500, body
    error = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"] and "Traceback" not in error["message"]
    assert len(error["message"]) < 2000
    return dict(error)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"n": 2}, "n"),
    ({"logit_bias": {"5": 10}}, "logit_bias"),
    ({"presence_penalty": 1}, "presence_penalty"),
    ({"max_tokens": -5}, "max_tokens"),
    ({"top_logprobs": 50}, "top_logprobs"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"model": "gpt-9"}, "model"),
    ({"agentkv": {"policy": "full"}}, "agentkv"),
    ({"agentkv": {"colour": 1}}, "agentkv.colour"),
    ({"prompt_cache_key": ""}, "prompt_cache_key"),
    ({"stop": ["a"] * 20}, "stop"),
]


@pytest.mark.parametrize(("change", "param"), WRONG, ids=[param for _, param in WRONG])
def test_a_wrong_parameter_is_named(served: Served, change: dict[str, Any], param: str) -> None:
    error = error_of(*send(served, {**GOOD, **change}))
    assert (error["param"] or "").startswith(param)


def test_a_conversation_longer_than_the_model_reads_is_refused(served: Served) -> None:
    long = {**GOOD, "messages": [{"role": "user", "content": "a b c d " * 12_000}]}
    error = error_of(*send(served, long))
    assert error["code"] == "context_length_exceeded" and "32768 positions" in error["message"]
    assert not any(session.is_busy for session in served.engine.sessions)


def test_a_body_that_is_too_large_or_no_json_is_refused(served: Served) -> None:
    assert send(served, b"x" * 300_000)[0] == 413
    assert error_of(*send(served, b"{"))["message"].startswith("the body is not JSON")
    assert send(served, GOOD, content_type="text/plain")[0] == 415
    assert send(served, b"[" * 50_000 + b"]" * 50_000)[0] == 400
    error_of(*send(served, b"\xff\xfe\x00"))


def test_unknown_paths_and_methods_are_named(served: Served) -> None:
    assert "/v1/nothing" in error_of(*send(served, {}, "/v1/nothing"))["message"]
    assert send(served, {}, CHAT, "GET")[0] == 405
    assert send(served, {}, "/slots/x?action=save")[0] == 400
    assert send(served, {}, "/slots/0?action=dance")[0] == 400
    assert send(served, {}, "/v1/models/other", "GET")[0] == 404


def test_another_host_name_is_refused(served: Served) -> None:
    status, body = send(served, GOOD, host="evil.example")
    assert status == 403 and "evil.example" in body["error"]["message"]


def test_without_its_key_nothing_but_the_health_is_told(
    chat_model: Callable[[str], LocalModel],
) -> None:
    with serving(chat_model(CHATML), keys=("right",)) as served:
        for path, method in (
            (CHAT, "POST"),
            ("/slots", "GET"),
            ("/metrics", "GET"),
            ("/v1/models", "GET"),
        ):
            for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "right"}):
                status, body = send(served, GOOD, path, method, **headers)
                assert status == 401 and error_of(status, body)["code"] == "invalid_api_key"
        assert send(served, b"", "/health", "GET") == (200, {"status": "ok"})
        assert send(served, GOOD, authorization="Bearer right")[0] == 200


def test_more_requests_than_the_queue_takes_are_told_to_come_again(
    chat_model: Callable[[str], LocalModel],
) -> None:
    limits = {"max_tokens": 4000, "parallel": 1, "queue": 1}
    with serving(chat_model(CHATML), **limits, timeout_s=1.5) as served:
        schema = {"type": "array", "minItems": 1000, "items": {}}
        long = {
            **GOOD,
            "max_tokens": 4000,
            "response_format": {"type": "json_schema", "json_schema": {"schema": schema}},
        }
        statuses: list[int] = []
        threads = [
            threading.Thread(target=lambda: statuses.append(send(served, long)[0]))
            for _ in range(5)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert statuses.count(429) == 3 and set(statuses) <= {200, 429, 504}
        served.idle()
        assert send(served, GOOD)[0] == 200


def test_actions_on_slots_count_among_the_requests_that_wait(
    chat_model: Callable[[str], LocalModel], tmp_path: Path
) -> None:
    actions = {
        "save": {"filename": "one"},
        "restore": {"filename": "before"},
        "erase": {},
        "fork": {},
        "pin": {"label": "turn 0"},
        "drop": {"label": "turn 0"},
    }
    limits: Any = {"max_tokens": 4000, "parallel": 1, "queue": 0, "client_files": tmp_path}
    with serving(chat_model(CHATML), **limits) as served:
        assert send(served, GOOD)[0] == 200
        served.idle()
        asked = {"filename": "before"}
        assert send(served, asked, "/slots/0?action=save")[0] == 200
        before = send(served, b"", "/slots", "GET")
        long: Any = {"min_tokens": 4000, "max_tokens": 4000}
        with served.client() as client:
            reply = client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": "on"}],
                stream=True,
                extra_body=long,
                extra_headers={"X-AgentKV-Session": "long"},
            )
            next(reply)
            for action, body in actions.items():
                error = error_of(*send(served, body, f"/slots/0?action={action}"))
                assert error["code"] == "queue_full" and "try again later" in error["message"]
            assert send(served, b"", "/slots/0/tokens", "GET")[0] == 429
            during = send(served, b"", "/slots", "GET")
            assert during[0] == 200 and before[1][0] in during[1]
            assert [each.name for each in tmp_path.iterdir()] == ["before"]
            reply.close()
        served.idle()
        for action, body in actions.items():
            status, answer = send(served, body, f"/slots/0?action={action}")
            if action == "erase":
                assert send(served, {"filename": "before"}, "/slots/0?action=restore")[0] == 200
            assert status == 200, (action, answer)
        served.idle()
        assert served.engine.num_waiting == 0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
NAMES = [
    *("messages", "model", "stream", "temperature", "top_p", "seed", "stop", "max_tokens", "n"),
    *("logprobs", "top_logprobs", "response_format", "tools", "tool_choice", "id_slot"),
    *("prompt_cache_key", "agentkv", "reasoning_effort", "chat_template_kwargs", "prompt"),
    *("max_completion_tokens", "stream_options", "logit_bias", "echo", "suffix", "best_of"),
]
MESSAGE = st.dictionaries(
    st.sampled_from(["role", "content", "tool_calls", "tool_call_id", "name"]),
    st.sampled_from(["user", "tool", "assistant", "system", None, 5, [], {}]) | JSON,
    max_size=4,
)
BODIES = (
    st.binary(max_size=40)
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.tuples(
        st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4),
        st.lists(MESSAGE, max_size=3),
        st.booleans(),
    ).map(
        lambda made: json.dumps(
            {**GOOD, **({"messages": made[1]} if made[2] else {}), **made[0]}
        ).encode()
    )
)


def test_malformed_requests_crash_nothing_and_leave_no_memory(served: Served) -> None:
    """Each gets an answer or an error of its own; then the server is as it was."""
    process = psutil.Process()
    sizes = []
    num_refused = 0

    @settings(max_examples=60, database=None, suppress_health_check=list(HealthCheck))
    @given(body=BODIES, path=st.sampled_from([CHAT, RAW]))
    def malformed(body: bytes, path: str) -> None:
        nonlocal num_refused
        status, answer = _sent(served, body, path)
        if status != 200:
            error_of(status, answer)
            num_refused += 1

    for _ in range(2):
        malformed()
        served.idle()
        served.engine.call(lambda: erase_all(served)).result()
        gc.collect()
        sizes.append(process.memory_info().rss)
    assert num_refused > 60
    assert sizes[1] - sizes[0] < 30 * 2**20
    assert send(served, GOOD)[0] == 200
    served.idle()
    assert served.engine.num_running == served.engine.num_waiting == 0


def erase_all(served: Served) -> None:
    for session in list(served.engine.sessions):
        served.engine.sessions.erase(session)


def _sent(served: Served, body: bytes, path: str) -> tuple[int, Any]:
    """Send a body that may ask for a stream; of a stream, return what its first event says."""
    host, _, port = served.url.removeprefix("http://").partition(":")
    connection = HTTPConnection(host, int(port), timeout=300)
    try:
        connection.request("POST", path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        text = response.read()
        if response.headers["content-type"].startswith("text/event-stream"):
            return response.status, None
        return response.status, json.loads(text)
    finally:
        connection.close()


def test_connections_that_send_garbage_or_half_a_request_disturb_nobody(served: Served) -> None:
    host, _, port = served.url.removeprefix("http://").partition(":")
    for garbage in (
        b"\x00\xff" * 50,
        b"POST /v1/chat/completions HTTP/1.1\r\n",
        b"GET / HTTP/9\r\n\r\n",
    ):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(garbage)
    assert send(served, GOOD)[0] == 200


def text_of(served: Served, path: str) -> str:
    """Return the body of a page that is no JSON."""
    host, _, port = served.url.removeprefix("http://").partition(":")
    connection = HTTPConnection(host, int(port), timeout=300)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def test_a_reply_that_fails_disturbs_no_other(served: Served) -> None:
    """llguidance refuses the first token of an object with very many optional members."""
    many = {f"name{i}": {"type": "string"} for i in range(900)}
    schema = {"type": "object", "properties": many, "additionalProperties": False}
    wrong = {
        **GOOD,
        "max_tokens": 64,
        "response_format": {"type": "json_schema", "json_schema": {"schema": schema}},
    }
    items = {"type": "array", "minItems": 60, "items": {}}
    long = {
        **GOOD,
        "max_tokens": 64,
        "prompt_cache_key": "long",
        "response_format": {"type": "json_schema", "json_schema": {"schema": items}},
    }
    answers: list[tuple[int, Any]] = []
    threads = [
        threading.Thread(target=lambda body=body: answers.append(send(served, body)))
        for body in (long, wrong, long)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    served.idle()
    assert sorted(status for status, _ in answers) == [200, 200, 400]
    assert send(served, GOOD)[0] == 200


def test_a_temperature_next_to_zero_is_greedy(served: Served) -> None:
    said = [
        send(served, {**GOOD, "temperature": temperature, "max_tokens": 8})[1]["choices"]
        for temperature in (0, 1e-45)
    ]
    served.idle()
    assert said[0][0]["message"] == said[1][0]["message"]


def test_a_page_in_a_browser_cannot_erase_a_session(served: Served) -> None:
    send(served, GOOD)
    served.idle()
    for origin in ("http://evil.example", "null"):
        status, _ = send(served, b"", "/slots/0?action=erase", origin=origin)
        assert status == 403
    assert send(served, b"", "/slots/0?action=erase", origin=served.url)[0] == 200


def test_many_wrong_messages_cost_no_more_than_one(served: Served) -> None:
    status, body = send(served, {**GOOD, "messages": [1] * 50_000})
    assert len(error_of(status, body)["message"]) < 300


def test_arguments_nested_without_end_are_refused_or_answered(served: Served) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "[" * 20_000}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    status, body = send(
        served, {**GOOD, "messages": [*GOOD["messages"], message, *GOOD["messages"]]}
    )
    assert status in (200, 400), body


def test_two_servers_cannot_share_a_folder(
    chat_model: Callable[[str], LocalModel], tmp_path: Path
) -> None:
    local = chat_model(CHATML)
    with (
        serving(local, store=tmp_path),
        pytest.raises(ServeError, match="another server"),
        serving(local, store=tmp_path),
    ):
        pass
