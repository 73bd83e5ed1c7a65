"""Anthropic's protocol, through Anthropic's own client."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from agentkv.dialog.messages import Chat, MessageTemplate
from agentkv.models.local import LocalModel
from agentkv.serve.body import RequestError
from agentkv.serve.protocols.messages_requests import CountRequest
from agentkv.serve.session import CacheSettings
from tests.agentkv.serve.conftest import CHATML, REWRITING, TOOL_TEMPLATE, Served, serving
from tests.agentkv.serve.reciting import add_pieces, reciting_model
from tests.agentkv.serve.test_replies import SCHEMA
from tests.agentkv.serve.test_requests import JSON, send, text_of

PATH, COUNT = "/v1/messages", "/v1/messages/count_tokens"
USER: Any = {"role": "user", "content": "Search the page for a Blue Kayak"}
GOOD: dict[str, Any] = {"model": "tiny", "messages": [USER], "max_tokens": 2, "temperature": 0}
CITY: Any = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo", "Lima"]}, "days": {"type": "boolean"}},
    "required": ["city", "days"],
}
WEATHER: Any = {"name": "weather", "description": "Say the weather.", "input_schema": CITY}
FUNCTION: Any = {
    "type": "function",
    "function": {"name": "weather", "description": "Say the weather.", "parameters": CITY},
}
"""The same in OpenAI's form."""
NUM_TURNS = 20


@pytest.fixture(scope="module")
def served(chat_model: Callable[[str], LocalModel]) -> Iterator[Served]:
    with serving(chat_model(TOOL_TEMPLATE), budget=512, max_body=200_000) as served:
        yield served


@pytest.fixture
def client(served: Served) -> Iterator[anthropic.Anthropic]:
    with client_of(served) as client:
        yield client
    served.idle()


def client_of(served: Served, key: str = "none") -> anthropic.Anthropic:
    return anthropic.Anthropic(
        base_url=served.url,
        api_key=key,
        max_retries=0,
        timeout=300,
        http_client=anthropic.DefaultHttpxClient(trust_env=False),
    )


def asked(client: anthropic.Anthropic, messages: Any, **options: Any) -> Any:
    """Ask greedily; the client has lost its parameters for sampling."""
    own = {"temperature": 0, **options.pop("extra_body", {})}
    given = {"model": "tiny", "max_tokens": 6, **options}
    return client.messages.create(messages=messages, extra_body=own, **given)


def streamed(client: anthropic.Anthropic, messages: Any, **options: Any) -> tuple[Any, Any]:
    """Ask for a stream; return the message that the client collects, and the usage at its end."""
    own = {"temperature": 0, **options.pop("extra_body", {})}
    given = {"model": "tiny", "max_tokens": 6, **options}
    with client.messages.stream(messages=messages, extra_body=own, **given) as stream:
        usages: Any = [event.usage for event in stream if event.type == "message_delta"]
        return stream.get_final_message(), usages[0]


def error_of(status: int, body: Any) -> dict[str, str]:
    """Check the form of an error, and return it."""
    assert 400 <= status < 500, body
    assert body["type"] == "error" and body.keys() <= {"type", "error", "request_id"}
    error: dict[str, str] = body["error"]
    assert error.keys() == {"type", "message"} and error["message"]
    assert "Traceback" not in error["message"] and len(error["message"]) < 2000
    return error


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
def test_a_tool_loop_continues_its_session_and_says_what_a_chat_says(
    served: Served, is_stream: bool
) -> None:
    name = f"loop {is_stream}"
    messages, chat = [USER], [USER]
    num_read = 0
    seen = set()
    with client_of(served) as client, served.client() as other:
        for turn in range(NUM_TURNS):
            own = {"temperature": 1, "seed": turn}
            options: Any = {
                "tools": [WEATHER],
                "tool_choice": {"type": "any"},
                "max_tokens": 100,
                "extra_body": {**own, "agentkv": {"session": name}},
            }
            if is_stream:
                answer, usage = streamed(client, messages, **options)
            else:
                answer = asked(client, messages, **options)
                usage = answer.usage
            served.idle()
            (block,) = answer.content
            assert answer.stop_reason == "tool_use" and block.type == "tool_use"
            assert (usage.agentkv["reuse"]["how"] == "continued") is (turn > 0)
            assert usage.cache_read_input_tokens >= num_read - 1
            assert answer.usage.input_tokens == usage.input_tokens
            assert usage.input_tokens < 100 or turn == 0
            num_read = usage.cache_read_input_tokens + usage.input_tokens
            said: Any = other.chat.completions.create(
                model="tiny",
                messages=chat,
                tools=[FUNCTION],
                tool_choice="required",
                max_tokens=100,
                extra_body={**own, "agentkv": {"session": f"{name} in chat"}},
            )
            served.idle()
            (call,) = said.choices[0].message.tool_calls
            assert (call.function.name, json.loads(call.function.arguments)) == (
                block.name,
                block.input,
            )
            assert said.usage.prompt_tokens == num_read
            seen.add(str(block.input))
            result = {"type": "tool_result", "tool_use_id": block.id, "content": f"sunny {turn}"}
            text = {"type": "text", "text": "and then?", "cache_control": {"type": "ephemeral"}}
            # clients send replies back as the client's own objects, and texts beside results
            messages += [
                {"role": "assistant", "content": answer.content},
                {"role": "user", "content": [result, text] if turn % 2 else [result]},
            ]
            chat += [
                said.choices[0].message.model_dump(exclude_none=True),
                {"role": "tool", "tool_call_id": call.id, "content": f"sunny {turn}"},
                *([{"role": "user", "content": "and then?"}] if turn % 2 else []),
            ]
    assert len(seen) > 2


def test_thoughts_text_and_calls_are_blocks_in_their_order(
    chat_tokenizer: Callable[..., PreTrainedTokenizerFast],
) -> None:
    tokenizer = chat_tokenizer(TOOL_TEMPLATE)
    called = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    text = f"<think>hm, Rome</think>I will look.\n{called}\n{called}and so on"
    reply = add_pieces(tokenizer, text)
    template = MessageTemplate(tokenizer)
    prompt = sum(template.opening(Chat([USER], [FUNCTION])), [])
    local = reciting_model(tokenizer, len(prompt), [*reply, min(template.end_ids)])
    with serving(local, policies=("full",), budget=None) as served, client_of(served) as client:
        options: Any = {"tools": [WEATHER], "max_tokens": len(reply) + 1}
        whole = asked(client, [USER], **options)
        served.idle()
        message, _ = streamed(client, [USER], **options)
        served.idle()
        events = list(asked(client, [USER], **options, stream=True))
    for answer in (whole, message):
        thought, said, *calls, rest = answer.content
        assert (thought.type, thought.thinking, thought.signature) == ("thinking", "hm, Rome", "")
        assert (said.text.strip(), rest.text) == ("I will look.", "and so on")
        assert [(call.name, call.input) for call in calls] == [("weather", {"city": "Rome"})] * 2
        assert len({call.id for call in calls}) == 2 and answer.stop_reason == "tool_use"
        assert answer.usage.output_tokens_details.thinking_tokens > 0
    kinds = [event.type for event in events]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    usage = events[0].message.usage  # the same request again reads one token
    assert (usage.cache_read_input_tokens, usage.input_tokens) == (len(prompt) - 1, 1)
    starts = [event.index for event in events if event.type == "content_block_start"]
    assert starts == [event.index for event in events if event.type == "content_block_stop"]
    assert starts == list(range(5))


def test_a_conversation_with_thoughts_continues(chat_model: Callable[[str], LocalModel]) -> None:
    with serving(chat_model(REWRITING)) as served, client_of(served) as client:
        messages: list[Any] = [USER]
        for turn in range(4):
            answer = asked(client, messages, thinking={"type": "adaptive"}, system="Be brief.")
            served.idle()
            assert answer.content[0].type == "thinking"
            assert (answer.usage.agentkv["reuse"]["how"] == "continued") is (turn > 0)
            messages += [{"role": "assistant", "content": answer.content}, USER]


def test_consecutive_messages_are_one(served: Served, client: anthropic.Anthropic) -> None:
    pieces: Any = [
        {"role": "user", "content": "one"},
        {"role": "user", "content": [{"type": "text", "text": "two"}]},
        {"role": "assistant", "content": "Yes"},
        {"role": "assistant", "content": ", sir"},
        {"role": "user", "content": "three"},
    ]
    merged: Any = [
        {"role": "user", "content": "one\ntwo"},
        {"role": "assistant", "content": "Yes, sir"},
        {"role": "user", "content": "three"},
    ]
    said = []
    for messages in (pieces, merged):
        answer = asked(client, messages)
        served.idle()
        said.append((answer.content[0].text, read_in(answer)))
    assert said[0] == said[1]


def read_in(answer: Any) -> int:
    """Tokens before a reply."""
    return int(answer.usage.input_tokens + answer.usage.cache_read_input_tokens)


HEADER = "x-anthropic-billing-header: cc_version=1; cch=%d;"


@pytest.mark.parametrize("is_block", [False, True], ids=["line", "block"])
def test_the_line_that_claude_code_changes_is_not_read(
    served: Served, client: anthropic.Anthropic, is_block: bool
) -> None:
    messages: list[Any] = [USER]
    rules = f"Be {'brief' if is_block else 'kind'}."
    for turn in range(3):
        header = HEADER % turn
        system: Any = f"{header}\n{rules}"
        if is_block:
            system = [{"type": "text", "text": each} for each in (header, rules)]
        answer = asked(client, messages, system=system)
        served.idle()
        assert (answer.usage.agentkv["reuse"]["how"] == "continued") is (turn > 0)
        messages += [{"role": "assistant", "content": answer.content}, USER]
    without = asked(client, [USER], system=rules, max_tokens=0)
    assert read_in(without) == counted(client, [USER], system=system)
    inside = f"{rules}\n{header}"
    assert counted(client, [USER], system=inside) > counted(client, [USER], system=system) + 10


def counted(client: anthropic.Anthropic, messages: Any, **options: Any) -> int:
    count = client.messages.count_tokens(model="tiny", messages=messages, **options)
    return int(count.input_tokens)


def test_tokens_are_counted_without_a_session(chat_model: Callable[[str], LocalModel]) -> None:
    start = {"role": "assistant", "content": "The Blue"}
    cases: list[tuple[list[Any], dict[str, Any]]] = [
        ([USER], {}),
        ([USER, start], {"system": "Be brief."}),
        ([USER, start, USER], {"tools": [WEATHER]}),
        ([USER], {"tools": [WEATHER], "tool_choice": {"type": "any"}}),
    ]
    with serving(chat_model(TOOL_TEMPLATE)) as served, client_of(served) as client:
        found = [counted(client, messages, **options) for messages, options in cases]
        assert not list(served.engine.sessions)
        for number, (messages, options) in zip(found, cases, strict=True):
            assert read_in(asked(client, messages, **options)) == number
        assert f'path="{COUNT}",status="200"}} 4.0' in text_of(served, "/metrics")
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
            counted(client, [{"role": "user", "content": "a b " * 300_000}])


def test_a_last_reply_is_continued(served: Served, client: anthropic.Anthropic) -> None:
    start: Any = {"role": "assistant", "content": "The Blue "}
    answer = asked(client, [USER, start])
    served.idle()
    with served.client() as other:
        said = other.chat.completions.create(
            model="tiny",
            messages=[USER, start],
            max_tokens=6,
            temperature=0,
            extra_body={"continue_final_message": True},
        )
    served.idle()
    assert answer.content[0].text == said.choices[0].message.content
    both = {
        "role": "assistant",
        "content": [{"type": "text", "text": "The Blue "}, *answer.content],
    }
    after = asked(client, [USER, both, USER])
    assert after.usage.agentkv["reuse"]["how"] == "continued"


def test_a_stop_sequence_is_named(served: Served, client: anthropic.Anthropic) -> None:
    text = asked(client, [USER], max_tokens=30).content[0].text
    served.idle()
    stop = text[8:11]
    for answer in (
        asked(client, [USER], max_tokens=30, stop_sequences=["never said", stop]),
        streamed(client, [USER], max_tokens=30, stop_sequences=["never said", stop])[0],
    ):
        served.idle()
        assert answer.content[0].text == text[: text.index(stop)]
        assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", stop)
    cut = asked(client, [USER], max_tokens=3)
    assert (cut.stop_reason, cut.stop_sequence) == ("max_tokens", None)


def test_nothing_is_written_where_nothing_is_asked_for(
    served: Served, client: anthropic.Anthropic
) -> None:
    message: Any = {"role": "user", "content": "Read this, and wait for me"}
    empty = asked(client, [message], max_tokens=0)
    served.idle()
    assert (empty.content, empty.stop_reason, empty.usage.output_tokens) == ([], "max_tokens", 0)
    answer, usage = streamed(client, [message], max_tokens=0)
    assert answer.content == [] and usage.output_tokens == 0


def test_a_reply_keeps_to_a_schema(served: Served, client: anthropic.Anthropic) -> None:
    format: Any = {"type": "json_schema", "schema": SCHEMA}
    for options in (
        {"output_config": {"format": format}},
        {"extra_body": {"output_format": format}},
    ):
        answer = asked(client, [USER], max_tokens=100, **options)
        served.idle()
        assert json.loads(answer.content[0].text)["color"] in ("blue", "red")


NINE = TOOL_TEMPLATE.replace(
    "{%- for call in m.tool_calls or [] %}",
    "{%- for call in m.tool_calls or [] %}{% if call.id | length != 9 or '_' in call.id %}"
    "{{ raise_exception('an id has nine letters and digits') }}{% endif %}",
)
"""A template that takes ids as Mistral's do."""


def test_ids_of_calls_suit_every_template(chat_model: Callable[[str], LocalModel]) -> None:
    with serving(chat_model(NINE), budget=512) as served, client_of(served) as client:
        options: Any = {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "weather"}}
        answer = asked(client, [USER], max_tokens=100, **options)
        served.idle()
        (block,) = answer.content
        assert block.id.startswith("toolu_")
        for id in (block.id, "toolu_01D7FLrfh4GYq7yT1ULFeyMV", "call 7"):
            called = {"type": "tool_use", "id": id, "name": "weather", "input": block.input}
            result = {"type": "tool_result", "tool_use_id": id, "is_error": True, "content": "no"}
            messages = [
                *(USER, {"role": "assistant", "content": [called]}),
                {"role": "user", "content": [result]},
            ]
            assert asked(client, messages, **options, max_tokens=100).stop_reason == "tool_use"
            served.idle()


def test_where_a_request_differs_is_told_in_its_own_numbers(
    chat_model: Callable[[str], LocalModel],
) -> None:
    with serving(chat_model(CHATML)) as served, client_of(served) as client:
        messages: list[Any] = [USER]
        for _ in range(2):
            answer = asked(client, messages, system="Tell where.")
            served.idle()
            messages += [{"role": "assistant", "content": answer.content}, USER]
        other = {"role": "user", "content": "Search the sea"}
        for changed, system, place in (
            ([*messages[:2], other], "Tell where.", {"message": 2, "character": 11}),
            (messages, "Tell why.", {"message": None, "character": 7}),
            (messages[:1], "Tell where.", {"message": 1, "character": None}),
        ):
            answer = asked(client, changed, system=system)
            served.idle()
            assert answer.usage.agentkv["reuse"]["differs_at"] == place


IMAGE: Any = {"type": "image", "source": {"type": "url", "url": "http://x"}}
CALL: Any = {"type": "tool_use", "id": "toolu_a", "name": "weather", "input": {}}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0: the role 'wizard'"),
    ({"messages": [USER, {"role": "user"}]}, "messages.1.content"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
    ({"messages": [{"role": "user", "content": [CALL]}]}, "messages.0.content.0: the type 'tool_u"),
    ({"messages": [USER, {"role": "assistant", "content": [CALL]}]}, "messages ends with a reply"),
    ({"system": [IMAGE]}, "system.0: the type 'image'"),
    ({"temperature": 1.5}, "temperature"),
    ({"top_k": 5}, "top_k is not supported"),
    ({"stop": ["x"]}, "stop is not supported; write stop_sequences"),
    ({"mcp_servers": [{"name": "x"}]}, "mcp_servers is not supported"),
    ({"tools": [{"type": "web_search_20250305", "name": "x"}]}, "tools.0: tools of the type 'web_"),
    ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools.0.name"),
    ({"tool_choice": {"type": "any"}}, "tool_choice is 'any'"),
    ({"tool_choice": {"type": "tool"}}, "needs a name"),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice names 'x'"),
    (
        {"tools": [WEATHER], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        "tool_choice.disable_parallel_tool_use is not supported",
    ),
    (
        {
            "tools": [{"name": "f", "input_schema": {"type": "object", "properties": {"a": 5}}}],
            "tool_choice": {"type": "any"},
        },
        "tools.0.input_schema at ",
    ),
    (
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "odd"}}}},
        "output_config.format.schema at ",
    ),
    (
        {
            "messages": [USER, {"role": "assistant", "content": "x"}],
            "tools": [WEATHER],
            "tool_choice": {"type": "any"},
        },
        "let a user have the last message",
    ),
    ({"context_management": {"edits": [{"type": "clear_tool_uses_1"}]}}, "context_management"),
    ({"agentkv": {"colour": 1}}, "agentkv.colour"),
    ({"agentkv": {"policy": "full"}}, "no policy full"),
]


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_is_wrong_is_named_as_anthropic_names_it(
    served: Served, change: dict[str, Any], message: str
) -> None:
    error = error_of(*send(served, {**GOOD, **change}, PATH))
    assert error["type"] == "invalid_request_error" and message in error["message"]


@pytest.mark.parametrize("name", ["messages.0", f"messages.{'9' * 5000}", "parallel_tool_calls"])
def test_names_of_a_schema_stay_in_an_error(served: Served, name: str) -> None:
    schema = {"type": "object", "properties": {name: {"$dynamicRef": "x"}}}
    body = {**GOOD, "output_config": {"format": {"type": "json_schema", "schema": schema}}}
    status, told = send(served, body, PATH)
    assert status == 400 and f"/properties/{name}" in told["error"]["message"]


def test_the_client_knows_each_error(served: Served, client: anthropic.Anthropic) -> None:
    image: Any = [{"role": "user", "content": [{"type": "text", "text": "What?"}, IMAGE]}]
    with pytest.raises(
        anthropic.BadRequestError, match=r"messages\.0\.content\.1: the type 'image"
    ):
        asked(client, image)
    with pytest.raises(anthropic.NotFoundError, match="no model 'claude'"):
        asked(client, [USER], model="claude")
    with pytest.raises(anthropic.NotFoundError, match="GET /v1/messages/batches"):
        client.messages.batches.list()
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        asked(client, [{"role": "user", "content": "a b c d " * 12_000}])
    assert error_of(*send(served, b"x" * 300_000, PATH))["type"] == "request_too_large"
    assert error_of(*send(served, b"{", PATH))["type"] == "invalid_request_error"
    assert error_of(*send(served, {}, PATH, "GET"))["message"] == "Method Not Allowed"
    assert error_of(*send(served, {}, PATH, host="evil.example"))["type"] == "permission_error"


def test_a_message_that_the_template_drops_has_its_own_number(
    chat_model: Callable[[str], LocalModel],
) -> None:
    shown = "{{ m.content if loop.first or m.role != 'system' else '' }}"
    dropping = CHATML.replace("{{ m.content }}", shown)
    messages = [
        USER,
        {"role": "assistant", "content": "x"},
        {"role": "system", "content": "No zoo"},
    ]
    with serving(chat_model(dropping)) as served, client_of(served) as client:
        for ask in (asked, streamed, counted):
            with pytest.raises(
                anthropic.BadRequestError, match=r"drops messages\.2, from 'system'"
            ):
                ask(client, [*messages, USER], system="Be brief.")


def test_an_error_in_a_stream_is_an_event(chat_model: Callable[[str], LocalModel]) -> None:
    long = {"type": "array", "minItems": 5000, "items": {}}
    format: Any = {"format": {"type": "json_schema", "schema": long}}
    with (
        serving(chat_model(CHATML), max_tokens=30_000, timeout_s=0.7) as served,
        client_of(served) as client,
        pytest.raises(anthropic.APIStatusError, match="timeout_error"),
    ):
        streamed(client, [USER], max_tokens=30_000, output_config=format)


def test_sessions_belong_to_the_key_in_either_header(
    chat_model: Callable[[str], LocalModel],
) -> None:
    with serving(chat_model(CHATML), keys=("one", "two")) as served:
        for path in (PATH, COUNT):
            for headers in ({}, {"x_api_key": "three"}, {"authorization": "one"}):
                error = error_of(*send(served, GOOD, path, **headers))
                assert error["type"] == "authentication_error" and "X-API-Key" in error["message"]
        with client_of(served, "three") as client, pytest.raises(anthropic.AuthenticationError):
            asked(client, [USER])
        found = []
        for headers in (
            {"x_api_key": "one"},
            {"x_api_key": "two"},
            {"authorization": "Bearer one"},
        ):
            status, body = send(served, GOOD, PATH, **headers)
            served.idle()
            assert status == 200
            found.append((body["usage"]["agentkv"]["session"], body["content"]))
        assert len({session for session, _ in found}) == 3
        messages = [USER, {"role": "assistant", "content": found[1][1]}, USER]
        with client_of(served, "two") as client:
            assert asked(client, messages).usage.agentkv["session"] == found[1][0]
        served.idle()
        listed = send(served, b"", "/slots", "GET", x_api_key="two")[1]
        assert [slot["session"] for slot in listed] == [found[1][0]]


NAMES = [
    *("messages", "system", "model", "max_tokens", "tools", "tool_choice", "thinking", "top_p"),
    *("temperature", "stop_sequences", "output_config", "output_format", "agentkv", "metadata"),
    *("context_management", "cache_control", "seed", "top_k", "container"),
]
ODD: st.SearchStrategy[Any] = (
    st.sampled_from(["user", "assistant", None, 5, "", [], {}, [{}]]) | JSON
)
BLOCK = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "tool_use", "tool_result", "thinking", "image", None])},
    optional={name: ODD for name in ("text", "id", "name", "input", "tool_use_id", "content")},
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool", None])},
    optional={"content": st.text(max_size=5) | st.lists(BLOCK, max_size=3) | ODD},
)
BODIES = (
    st.binary(max_size=40)
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.tuples(
        st.dictionaries(st.sampled_from(NAMES), ODD, max_size=3), st.lists(MESSAGE, max_size=4)
    ).map(lambda made: json.dumps({**GOOD, "messages": made[1], **made[0]}).encode())
)


def test_malformed_bodies_get_errors_in_form(served: Served) -> None:
    num_refused = 0

    @settings(max_examples=400, database=None, suppress_health_check=list(HealthCheck))
    @given(body=BODIES, path=st.sampled_from([PATH, COUNT]))
    def malformed(body: bytes, path: str) -> None:
        nonlocal num_refused
        status, answer = send(served, body, path)
        if status != 200:
            error_of(status, answer)
            num_refused += 1

    malformed()
    served.idle()
    assert num_refused > 60
    assert send(served, GOOD, PATH)[0] == 200
    served.idle()


def test_long_numbers_in_errors_are_no_numbers_of_messages() -> None:
    asked = CountRequest.model_validate({"messages": [USER]})
    text = f"the template refused messages.{'1' * 5000}"
    assert str(asked.own(RequestError(text))) == text


def test_errors_repeat_the_beginning_of_a_long_policy_alone() -> None:
    for member in ("policy", "budget"):
        asked = CountRequest.model_validate({"messages": [USER], "agentkv": {member: "x" * 10_000}})
        with pytest.raises(RequestError, match="no policy") as caught:
            asked.query("everyone", None, [CacheSettings("window", 96)])
        assert len(str(caught.value)) < 500
