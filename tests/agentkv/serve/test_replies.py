"""Replies: streams, JSON, calls of functions, log-probabilities, and clients that leave."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from agentkv.models.local import LocalModel
from tests.agentkv.serve.conftest import CHATML, REWRITING, TOOL_TEMPLATE, Served, serving

ASKED: list[Any] = [{"role": "user", "content": "Search the page for a Blue Kayak"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Say the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
SCHEMA: Any = {
    "type": "object",
    "properties": {"color": {"enum": ["blue", "red"]}, "sold": {"type": "boolean"}},
    "required": ["color", "sold"],
    "additionalProperties": False,
}
LONG: Any = {
    "type": "json_schema",
    "json_schema": {"name": "long", "schema": {"type": "array", "minItems": 5000, "items": {}}},
}
"""The format of a reply that would take minutes."""


@pytest.fixture(scope="module")
def served(chat_model: Callable[[str], LocalModel]) -> Iterator[Served]:
    with serving(chat_model(TOOL_TEMPLATE), budget=512) as served:
        yield served


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with served.client() as client:
        yield client
    served.idle()


def test_a_stream_says_what_the_whole_answer_says(served: Served, client: openai.OpenAI) -> None:
    options: Any = {"model": "tiny", "messages": ASKED, "temperature": 1, "seed": 7}
    whole = client.chat.completions.create(**options, max_tokens=30)
    served.idle()
    chunks = list(
        client.chat.completions.create(
            **options, max_tokens=30, stream=True, stream_options={"include_usage": True}
        )
    )
    *chunks, last = chunks
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert last.usage is not None and whole.usage is not None and not last.choices
    assert last.usage.completion_tokens == whole.usage.completion_tokens > 5
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_seed_repeats_a_sampled_reply_and_top_p_narrows_it(
    served: Served, client: openai.OpenAI
) -> None:
    def said(**options: Any) -> str:
        answer = client.chat.completions.create(
            model="tiny", messages=ASKED, max_tokens=20, **options
        )
        served.idle()
        return answer.choices[0].message.content or ""

    assert said(temperature=1.5, seed=1) == said(temperature=1.5, seed=1)
    assert said(temperature=1.5, seed=1) != said(temperature=1.5, seed=2)
    assert said(temperature=1.5, top_p=1e-6) == said(temperature=0)


def test_stop_texts_end_a_reply(served: Served, client: openai.OpenAI) -> None:
    options: Any = {"model": "tiny", "messages": ASKED, "temperature": 0, "max_tokens": 30}
    text = client.chat.completions.create(**options).choices[0].message.content or ""
    served.idle()
    stop = text[8:11]
    answer = client.chat.completions.create(**options, stop=[stop, "never said"])
    assert answer.choices[0].message.content == text[: text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_a_reply_in_json_keeps_to_its_schema(client: openai.OpenAI) -> None:
    format: Any = {"type": "json_schema", "json_schema": {"name": "boat", "schema": SCHEMA}}
    answer = client.chat.completions.create(
        model="tiny", messages=ASKED, temperature=1, max_tokens=100, response_format=format
    )
    value = json.loads(answer.choices[0].message.content or "")
    assert value["color"] in ("blue", "red") and isinstance(value["sold"], bool)
    assert answer.choices[0].finish_reason == "stop"


def test_a_schema_that_cannot_be_used_is_refused(client: openai.OpenAI) -> None:
    wrong = {"name": "x", "schema": {"type": "object", "properties": {"a": {"type": "number?"}}}}
    format: Any = {"type": "json_schema", "json_schema": wrong}
    with pytest.raises(openai.BadRequestError, match="/properties/a/type: there is no type"):
        client.chat.completions.create(model="tiny", messages=ASKED, response_format=format)


def test_a_tool_loop_reads_only_results(served: Served, client: openai.OpenAI) -> None:
    messages = list(ASKED)
    num_before = 0
    for _ in range(3):
        answer = client.chat.completions.create(
            model="tiny",
            messages=messages,
            tools=[WEATHER],
            tool_choice="required",
            max_tokens=100,
        )
        served.idle()
        assert answer.choices[0].finish_reason == "tool_calls"
        (call,) = answer.choices[0].message.tool_calls or ()
        assert call.type == "function" and call.function.name == "weather"
        assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
        usage = answer.usage
        assert usage is not None and usage.prompt_tokens_details is not None
        num_read = usage.prompt_tokens - (usage.prompt_tokens_details.cached_tokens or 0)
        assert num_read < 100 or not num_before
        assert (usage.prompt_tokens_details.cached_tokens or 0) >= num_before - 40
        num_before = usage.total_tokens
        messages.append(answer.choices[0].message.model_dump(exclude_none=True))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "sunny"})


def test_a_named_function_is_called_also_in_a_stream(client: openai.OpenAI) -> None:
    other = {**WEATHER, "function": {**WEATHER["function"], "name": "news"}}
    choice: Any = {"type": "function", "function": {"name": "news"}}
    chunks = list(
        client.chat.completions.create(
            model="tiny",
            messages=ASKED,
            tools=[WEATHER, other],
            tool_choice=choice,
            max_tokens=100,
            stream=True,
        )
    )
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert [call.function.name for call in calls if call.function] == ["news"]
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_a_reply_may_be_json_or_a_call_where_both_are_asked_for(
    served: Served, client: openai.OpenAI
) -> None:
    format: Any = {"type": "json_schema", "json_schema": {"name": "boat", "schema": SCHEMA}}
    seen = set()
    for seed in range(12):
        answer = client.chat.completions.create(
            model="tiny",
            messages=ASKED,
            tools=[WEATHER],
            response_format=format,
            temperature=2,
            seed=seed,
            max_tokens=100,
        )
        served.idle()
        message = answer.choices[0].message
        if message.tool_calls:
            seen.add("call")
        else:
            assert json.loads(message.content or "")["color"] in ("blue", "red")
            seen.add("json")
    assert seen == {"call", "json"}


def test_log_probabilities_belong_to_the_tokens_of_the_reply(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=ASKED, temperature=0, max_tokens=8, logprobs=True, top_logprobs=3
    )
    noted = answer.choices[0].logprobs
    assert noted is not None and noted.content is not None and len(noted.content) == 8
    for token in noted.content:
        assert token.logprob == token.top_logprobs[0].logprob < 0  # greedy
        assert token.token == token.top_logprobs[0].token and len(token.top_logprobs) == 3
    raw = client.completions.create(
        model="tiny", prompt="page", temperature=0, max_tokens=8, logprobs=2
    )
    own = raw.choices[0].logprobs
    assert own is not None and own.tokens is not None and own.text_offset is not None
    assert len(own.tokens) == 8 and own.text_offset[0] == 0


def test_thoughts_come_apart_from_the_reply(chat_model: Callable[[str], LocalModel]) -> None:
    with serving(chat_model(REWRITING)) as served, served.client() as client:
        answer: Any = client.chat.completions.create(
            model="tiny", messages=ASKED, temperature=0, max_tokens=12
        )
        message = answer.choices[0].message
        assert message.content == "" and message.reasoning_content
        assert answer.usage.completion_tokens_details.reasoning_tokens > 0
        format: Any = {"type": "json_schema", "json_schema": {"name": "b", "schema": SCHEMA}}
        served.idle()
        answer = client.chat.completions.create(
            model="tiny", messages=ASKED, max_tokens=100, response_format=format
        )
        assert json.loads(answer.choices[0].message.content)["color"] in ("blue", "red")


def test_a_client_that_leaves_frees_its_place_and_the_conversation_goes_on(
    chat_model: Callable[[str], LocalModel],
) -> None:
    local = chat_model(CHATML)
    with serving(local, max_tokens=20_000, parallel=1) as served, served.client() as client:
        stream = client.chat.completions.create(
            model="tiny",
            messages=ASKED,
            temperature=1,
            max_tokens=20_000,
            stream=True,
            response_format=LONG,
        )
        text = ""
        for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            if len(text) > 5:
                break
        stream.close()
        served.idle()  # long before the reply would have ended
        (session,) = served.engine.sessions
        assert session.cache is not None
        session.cache.check()
        assert session.cache.seen < 10_000
        # what was written stays in the stream: a host that sends back all of it goes on
        assert session.cache.ids is not None
        ids = [*session.cache.ids[0].tolist(), *session.end.unread]
        said = served.engine.template.decode(ids).rpartition("<|im_start|>assistant\n")[2]
        assert said.startswith(text)
        reply = {"role": "assistant", "content": said}
        before = session.end.seen
        answer: Any = client.chat.completions.create(
            model="tiny", messages=[*ASKED, reply, *ASKED], temperature=0, max_tokens=4
        )
        assert answer.usage.prompt_tokens_details.cached_tokens >= before - 40
        served.idle()
        session.cache.check()


def test_a_request_out_of_time_ends_with_an_error(chat_model: Callable[[str], LocalModel]) -> None:
    with (
        serving(chat_model(CHATML), max_tokens=30_000, timeout_s=1.0) as served,
        served.client() as client,
    ):
        with pytest.raises(openai.InternalServerError, match="deadline"):
            client.chat.completions.create(
                model="tiny", messages=ASKED, max_tokens=30_000, response_format=LONG
            )
        served.idle()
        answer = client.chat.completions.create(
            model="tiny", messages=ASKED, max_tokens=3, extra_body={"ignore_eos": True}
        )
        assert answer.usage is not None and answer.usage.completion_tokens == 3
