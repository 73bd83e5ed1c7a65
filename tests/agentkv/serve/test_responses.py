"""Responses: conversations that go on by the id of an answer, through the real client of OpenAI."""

import json
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any, Literal

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseItemList, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter
from transformers import PreTrainedTokenizerFast

from agentkv.dialog.messages import Chat, MessageTemplate
from agentkv.models.local import LocalModel
from agentkv.serve.body import RequestError
from agentkv.serve.protocols.responses_items import messages_of
from agentkv.serve.stored_responses import ResponseStore, StoredResponse
from tests.agentkv.serve.conftest import REWRITING, TOOL_TEMPLATE, Served, serving
from tests.agentkv.serve.reciting import add_pieces, reciting_model
from tests.agentkv.serve.test_requests import JSON, erase_all, error_of, send, text_of
from tests.agentkv.serve.test_schemas import TWICE

PATH = "/v1/responses"
GOOD: dict[str, Any] = {
    "model": "tiny",
    "input": "hello",
    "max_output_tokens": 2,
    "temperature": 0,
}
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo", "Bonn", "Kiel"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "Say the weather.",
    "parameters": PARAMETERS,
    "strict": True,
}
WEATHER_IN_CHATS: Any = {
    "type": "function",
    "function": {key: WEATHER[key] for key in ("name", "description", "parameters")},
}
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


@pytest.fixture(scope="module")
def served(chat_model: Callable[[str], LocalModel]) -> Iterator[Served]:
    with serving(chat_model(TOOL_TEMPLATE), budget=512, max_tokens=200) as served:
        yield served


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with served.client() as client:
        yield client
    served.idle()


def ask(client: openai.OpenAI, input: Any, **options: Any) -> Response:
    """Return an answer, whose form is checked strictly."""
    answer = client.responses.create(**{**GOOD, "input": input, "max_output_tokens": 6} | options)
    return Response.model_validate(answer.model_dump(mode="json", by_alias=True))


def stream(client: openai.OpenAI, input: Any, **options: Any) -> tuple[list[Any], Response]:
    """Return the events of an answer, whose form is checked strictly, and what the client's helper
    makes of them."""
    options = {**GOOD, "input": input, "max_output_tokens": 6} | options
    del options["model"]
    with client.responses.stream(model="tiny", **options) as events:
        told = [event.model_dump(mode="json", by_alias=True, warnings=False) for event in events]
    seen = [EVENTS.validate_python(event) for event in told]
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert [event.type for event in seen[:2]] == ["response.created", "response.in_progress"]
    return seen, seen[-1].response


def reuse(answer: Any) -> dict[str, Any]:
    """Return what the answer kept of its conversation."""
    return dict(answer.usage.agentkv["reuse"])


def texts(answer: Response) -> list[Any]:
    """Return what the items of an answer say, without ids."""
    return [
        item.arguments if item.type == "function_call" else item.content[0].text  # type: ignore
        for item in answer.output
    ]


def test_a_tool_loop_goes_on_in_its_session_and_says_what_a_chat_says(
    served: Served, client: openai.OpenAI
) -> None:
    """Twenty turns, every other one streamed, of which each sends its result alone."""
    served.idle()
    served.engine.call(lambda: erase_all(served)).result()
    options: Any = {"tools": [WEATHER], "max_output_tokens": 120, "instructions": "Be brief."}
    said: list[str] = []
    read: list[int] = []
    input: Any = "Where does it rain?"
    previous = None
    for turn in range(20):
        asks = {"tool_choice": "required"} if turn < 19 else {"tool_choice": "none"}
        given = {**options, **asks, "previous_response_id": previous}
        answer = stream(client, input, **given)[1] if turn % 2 else ask(client, input, **given)
        assert reuse(answer)["how"] == ("continued" if turn else "new")
        assert answer.usage and reuse(answer)["forgotten"] == 0
        read.append(answer.usage.input_tokens - answer.usage.input_tokens_details.cached_tokens)
        said += texts(answer)
        previous = answer.id
        if turn < 19:
            (call,) = answer.output
            assert call.type == "function_call" and call.name == "weather"
            assert call.call_id.startswith("call_") and answer.status == "completed"
            input = [result_of(call.call_id, turn)]
    assert len(set(said[:-1])) > 1 and max(read[1:]) < 80

    served.idle()
    served.engine.call(lambda: erase_all(served)).result()
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Where does it rain?"},
    ]
    for turn in range(20):
        choice: Any = "required" if turn < 19 else "none"
        reply = client.chat.completions.create(
            model="tiny",
            messages=messages,
            tools=[WEATHER_IN_CHATS],
            tool_choice=choice,
            temperature=0,
            max_tokens=120,
        )
        usage: Any = reply.usage
        assert usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens == read[turn]
        message: Any = reply.choices[0].message
        if turn == 19:
            assert message.content == said[turn]
            break
        (made,) = message.tool_calls
        assert made.function.arguments == said[turn]
        messages.append(message.model_dump(exclude_none=True))
        output = result_of(made.id, turn)["output"]
        messages.append({"role": "tool", "tool_call_id": made.id, "content": output})


def result_of(call_id: str, turn: int) -> Any:
    return {"type": "function_call_output", "call_id": call_id, "output": f"sun, {turn} mm"}


def test_one_response_may_be_continued_twice(served: Served, client: openai.OpenAI) -> None:
    first = ask(client, "Blue Kayak")
    one = ask(client, "a page", previous_response_id=first.id)
    other = ask(client, "another title", previous_response_id=first.id)
    again = ask(client, "and then?", previous_response_id=one.id)
    assert reuse(one)["how"] == "continued" and one.previous_response_id == first.id
    # the second continuation begins at the end of the first response, too
    assert reuse(other)["kept"] > 20
    for previous, input, answer in ((first, "another title", other), (one, "and then?", again)):
        whole: Any = [{"role": "user", "content": "Blue Kayak"}, *first.output]
        if previous is one:
            whole += [{"role": "user", "content": "a page"}, *one.output]
        alone = ask(client, [*whole, {"role": "user", "content": input}], store=False)
        assert texts(alone) == texts(answer)
        assert alone.usage and answer.usage
        assert alone.usage.input_tokens == answer.usage.input_tokens


def test_instructions_belong_to_one_request(client: openai.OpenAI) -> None:
    first = ask(client, "Blue Kayak", instructions="Only titles.")
    second = ask(client, "so?", previous_response_id=first.id, max_output_tokens=1)
    assert first.instructions == "Only titles." and second.instructions is None
    assert reuse(second)["how"] != "continued"
    third = ask(client, "so?", previous_response_id=first.id, instructions="Only titles.")
    assert third.usage and second.usage
    assert third.usage.input_tokens > second.usage.input_tokens


def test_a_stored_response_is_found_listed_and_deleted(client: openai.OpenAI) -> None:
    parts = [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}]
    asked: Any = [{"role": "developer", "content": "x"}, {"role": "user", "content": parts}]
    first = client.responses.create(**{**GOOD, "input": asked, "metadata": {"run": "7"}})
    assert client.responses.retrieve(first.id).to_dict() == first.to_dict()
    assert first.metadata == {"run": "7"} and first.output_text
    second = ask(client, "so?", previous_response_id=first.id)
    listed = client.responses.input_items.list(first.id, order="asc", limit=1)
    assert [item.role for item in listed] == ["developer", "user"]  # type: ignore[union-attr]
    (item,) = client.responses.input_items.list(second.id)
    assert item.type == "message" and item.content[0].text == "so?"  # type: ignore[union-attr]
    client.responses.delete(first.id)
    for forgotten in (client.responses.retrieve, client.responses.delete):
        with pytest.raises(openai.NotFoundError, match=first.id):
            forgotten(first.id)
    assert client.responses.retrieve(second.id).id == second.id
    with pytest.raises(openai.BadRequestError, match=f"{first.id}', which '{second.id}") as caught:
        ask(client, "so?", previous_response_id=second.id)
    assert caught.value.code == "previous_response_not_found"
    assert caught.value.param == "previous_response_id"


def test_what_is_not_stored_goes_on_with_its_items(client: openai.OpenAI) -> None:
    input: Any = [{"role": "user", "content": "Search"}]
    for turn in range(3):
        answer = ask(client, input, store=False)
        assert reuse(answer)["how"] == ("continued" if turn else "new")
        input += [*answer.output, {"role": "user", "content": f"more {turn}"}]
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)
    with pytest.raises(openai.BadRequestError, match=answer.id):
        ask(client, "so?", previous_response_id=answer.id)


def test_a_response_belongs_to_its_key(chat_model: Callable[[str], LocalModel]) -> None:
    with serving(chat_model(TOOL_TEMPLATE), keys=("one", "two")) as served:
        with served.client("one") as owner, served.client("two") as other:
            answer = ask(owner, "Blue Kayak")
            attempts: list[Callable[[], Any]] = [
                lambda: other.responses.retrieve(answer.id),
                lambda: other.responses.delete(answer.id),
                lambda: other.responses.input_items.list(answer.id),
                lambda: ask(other, "so?", previous_response_id=answer.id),
            ]
            for attempt in attempts:
                with pytest.raises((openai.NotFoundError, openai.BadRequestError)) as caught:
                    attempt()
                unknown = str(caught.value).replace(answer.id, "resp_0")
                assert "there is no response 'resp_0'" in unknown
            assert ask(owner, "so?", previous_response_id=answer.id).status


class Boat(BaseModel):
    """What a reply is parsed into."""

    color: Literal["blue", "red"]
    sold: bool


def test_a_reply_in_json_is_parsed_by_the_client(served: Served, client: openai.OpenAI) -> None:
    answer = client.responses.parse(model="tiny", input="A boat", text_format=Boat)
    assert isinstance(answer.output_parsed, Boat) and answer.status == "completed"
    assert answer.text and answer.text.format and answer.text.format.type == "json_schema"
    with client.responses.stream(model="tiny", input="A boat", text_format=Boat) as events:
        assert isinstance(events.get_final_response().output_parsed, Boat)
    free = ask(client, "A boat", text={"format": {"type": "json_object"}}, max_output_tokens=9)
    assert free.output_text.startswith("{")


def test_a_stream_that_fails_ends_with_the_failed_response(client: openai.OpenAI) -> None:
    format = {"format": {"type": "json_schema", "name": "twice", "schema": TWICE}}
    events, failed = stream(client, "x", text=format, max_output_tokens=30)
    assert events[-1].type == "response.failed" and failed.status == "failed"
    assert failed.error and failed.error.type == "schema_violated"
    with pytest.raises(openai.UnprocessableEntityError, match="/1 is the same as /0"):
        ask(client, "x", text=format, max_output_tokens=30)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(failed.id)


def test_thoughts_texts_and_calls_are_items_in_their_order(
    chat_tokenizer: Callable[..., PreTrainedTokenizerFast],
) -> None:
    tokenizer = chat_tokenizer(TOOL_TEMPLATE + "<think>\n")
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    reply = add_pieces(tokenizer, f"Hm.</think>First:{call}{call}Then:{call}")
    template = MessageTemplate(tokenizer)
    asked = Chat([{"role": "user", "content": "Rome"}], [WEATHER_IN_CHATS])
    end = min(template.end_ids)
    prompt = sum(template.opening(asked), [])
    local = reciting_model(tokenizer, len(prompt), [*reply, *[end] * 250])
    options: Any = {"tools": [WEATHER], "max_output_tokens": None}
    with serving(local, policies=("full",), budget=None, chunk=4096) as served:
        with served.client() as client:
            whole = ask(client, "Rome", **options, prompt_cache_key="whole")
            events, streamed = stream(client, "Rome", **options)
            results = [
                result_of(item.call_id, 1)
                for item in streamed.output
                if item.type == "function_call"
            ]
            sent_back: Any = [{"role": "user", "content": "Rome"}, *whole.output, *results]
            again = [
                ask(client, results, **options, previous_response_id=streamed.id),
                ask(client, sent_back, **options, prompt_cache_key="whole"),
            ]
    kinds = ["reasoning", "message", "function_call", "function_call", "message", "function_call"]
    rome = '{"city": "Rome"}'
    for answer in (whole, streamed):
        assert [item.type for item in answer.output] == kinds
        assert texts(answer) == ["Hm.", "First:", rome, rome, "Then:", rome]
        assert answer.output_text == "First:Then:" and answer.status == "completed"
        assert answer.usage and answer.usage.output_tokens_details.reasoning_tokens > 0
    ended = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.id for item in ended] == [item.id for item in streamed.output]
    # a reply goes on as one message, whose ids of calls suit every template
    assert [reuse(answer)["how"] for answer in again] == ["continued"] * 2
    items = [item.to_dict() for item in streamed.output]
    (message,) = messages_of(items)
    assert message["content"] == "First:Then:"
    assert [len(each["id"]) for each in message["tool_calls"]] == [9, 9, 9]


@pytest.mark.parametrize("family", ["mistral-nemo-instruct", "mixtral-8x22B-instruct-v0.1"])
def test_ids_of_calls_suit_templates_that_know_one_form(
    family_model: Callable[[str], LocalModel], family: str
) -> None:
    options: Any = {"tools": [WEATHER], "tool_choice": "required", "max_output_tokens": 200}
    with serving(family_model(family), budget=2048) as served, served.client() as client:
        answer = ask(client, "Rome", **options)
        for turn in range(2):
            (call,) = answer.output
            assert call.type == "function_call" and answer.status == "completed"
            results = [result_of(call.call_id, turn)]
            answer = ask(client, results, **options, previous_response_id=answer.id)
            assert reuse(answer)["how"] == "continued"


def test_a_cut_thought_is_incomplete_and_goes_on(chat_model: Callable[[str], LocalModel]) -> None:
    with serving(chat_model(REWRITING)) as served, served.client() as client:
        events, answer = stream(client, "Blue Kayak")
        assert events[-1].type == "response.incomplete" and answer.incomplete_details
        assert answer.incomplete_details.reason == "max_output_tokens"
        assert [item.type for item in answer.output] == ["reasoning", "message"]
        again = ask(client, "so?", previous_response_id=answer.id)
        assert reuse(again)["how"] == "continued"


def test_a_parameter_of_chats_means_the_same_here(client: openai.OpenAI) -> None:
    def said(**extra: Any) -> list[Any]:
        return texts(ask(client, "page", temperature=2, extra_body={"seed": 3, **extra}))

    assert said() == said() != said(seed=4)
    assert said(guided_choice=["yes"]) == ["yes"]
    assert said(agentkv={"session": "mine"}) == said()


USER: Any = {"role": "user", "content": "x"}
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"input": None}, "input", "required"),
    ({"input": []}, "input", "at least 1"),
    ({"input": 5}, "input", "array"),
    ({"input": [USER, 5]}, "input.1", "object"),
    ({"input": [{"role": "wizard", "content": "x"}]}, "input.0.role", "user"),
    ({"input": [USER, {**USER, "content": [{"type": "input_image"}]}]}, "input.1.content",
     "part 0 has the type 'input_image'"),
    ({"input": [{"type": "function_call_output", "call_id": "a", "output": [{"type": "x"}]}]},
     "input.0.output", "part 0"),
    ({"input": [{"type": "function_call", "name": "f"}]}, "input.0.call_id", "required"),
    ({"input": [{"id": "msg_1"}]}, "input.0", "item_reference"),
    ({"input": [{"type": "web_search_call"}]}, "input.0", "web_search_call"),
    ({"input": [{"type": "reasoning", "summary": []}]}, "input", "at least 1"),
    ({"tools": [{"type": "web_search"}]}, "tools.0.type", "web_search"),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools.0.name", "pattern"),
    ({"tools": [{**WEATHER, "parameters": {"type": "objekt"}}], "tool_choice": "required"},
     "tools.0.parameters", "objekt"),
    ({"tool_choice": "required"}, "tool_choice", "no tools"),
    ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice", "among tools"),
    ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.type", "allowed_tools"),
    ({"tools": [WEATHER], "parallel_tool_calls": False}, "parallel_tool_calls", "leave it out"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema", "needs it"),
    ({"text": {"format": {"type": "json_schema", "schema": {"type": "x"}}}}, "text.format.schema",
     "no type"),
    ({"text": {"verbosity": "low"}}, "text.verbosity", "medium"),
    ({"text": {"format": {"type": "json_object"}}, "extra": 1, "guided_choice": ["a"]},
     "text.format", "exclude"),
    ({"reasoning": {"effort": "A LOT"}}, "reasoning.effort", "pattern"),
    ({"max_output_tokens": 0}, "max_output_tokens", "greater"),
    ({"min_tokens": 5}, "min_tokens", "at most 2"),
    ({"max_tokens": 5}, "max_tokens", "write max_output_tokens"),
    ({"messages": [USER]}, "messages", "write input"),
    ({"response_format": {"type": "text"}}, "response_format", "write text.format"),
    ({"temperature": 9}, "temperature", "less"),
    ({"metadata": {"a": 5}}, "metadata.a", "string"),
    ({"include": ["message.output_text.logprobs"]}, "include", "logprobs"),
    ({"top_logprobs": 2}, "top_logprobs", "not supported"),
    ({"truncation": "auto"}, "truncation", "shorter conversation"),
    ({"background": True}, "background", "waits"),
    ({"conversation": "conv_1"}, "conversation", "previous_response_id"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt", "leave it out"),
    ({"n": 2}, "n", "leave it out"),
    ({"model": "gpt-9"}, "model", "gpt-9"),
    ({"agentkv": {"colour": 1}}, "agentkv.colour", "Extra"),
    ({"previous_response_id": "resp_x"}, "previous_response_id", "resp_x"),
]  # fmt: skip


def test_what_cannot_be_obeyed_is_refused_by_its_name(served: Served) -> None:
    for change, param, said in REFUSED:
        error = error_of(*send(served, {**GOOD, **change}, PATH))
        assert error["param"] == param and said in error["message"], (change, error)
    accepted = {
        **{"truncation": "disabled", "background": False, "top_logprobs": 0, "user": "a"},
        **{"include": ["reasoning.encrypted_content"], "service_tier": "flex", "max_tool_calls": 3},
        **{"reasoning": {"effort": "low", "summary": "auto"}, "safety_identifier": "b"},
        **{"stream_options": {"include_obfuscation": False}, "metadata": None, "tools": None},
        "prompt_cache_key": "c",
    }
    status, body = send(served, {**GOOD, **accepted}, PATH)
    assert status == 200 and body["prompt_cache_key"] == "c" and body["user"] == "a"


NAMES = [
    *("input", "model", "stream", "temperature", "instructions", "tools", "tool_choice", "text"),
    *("reasoning", "max_output_tokens", "max_tool_calls", "metadata", "store", "truncation"),
    *("previous_response_id", "prompt_cache_key", "include", "background", "agentkv", "seed"),
    *("parallel_tool_calls", "top_logprobs", "conversation", "user", "stop"),
]
ITEM = st.dictionaries(
    st.sampled_from(["type", "role", "content", "call_id", "name", "arguments", "output", "id"]),
    st.sampled_from(
        [
            *("message", "function_call", "function_call_output", "reasoning", "item_reference"),
            *("user", "assistant", "system", "text", None, 5, [], {}),
            *([{"type": "input_text", "text": "a"}], [{"type": "input_image"}]),
        ]
    )
    | JSON,
    max_size=5,
)
BODIES = (
    st.binary(max_size=40)
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.tuples(
        st.dictionaries(st.sampled_from(NAMES), JSON, max_size=3), st.lists(ITEM, max_size=3)
    ).map(
        lambda made: json.dumps(
            {**GOOD, **({"input": made[1]} if made[1] else {}), **made[0]}
        ).encode()
    )
)
QUERIES = st.text(alphabet="ab01%=&?limitorderaftersc", max_size=20)


def test_names_of_a_schema_stay_in_an_error(served: Served) -> None:
    schema = {"type": "object", "properties": {"messages": {"$dynamicRef": "x"}}}
    format = {"type": "json_schema", "name": "one", "schema": schema}
    body = {**GOOD, "text": {"format": format}}
    error = error_of(*send(served, body, PATH))
    assert "/properties/messages" in error["message"]


def test_malformed_requests_are_refused_in_form(served: Served) -> None:
    host, _, port = served.url.removeprefix("http://").partition(":")

    @settings(max_examples=400, database=None, deadline=None, suppress_health_check=[*HealthCheck])
    @given(body=BODIES, query=QUERIES, method=st.sampled_from(["GET", "DELETE"]))
    def malformed(body: bytes, query: str, method: str) -> None:
        if b'"stream": true' not in body:
            status, answer = send(served, body, PATH)
            if status == 200:
                Response.model_validate(answer)
            else:
                error_of(status, answer)
        error_of(*send(served, b"", f"{PATH}/x{query}", method))

    malformed()
    served.idle()
    _, answer = send(served, GOOD, PATH)
    for query in ("limit=0", "limit=" + "1" * 5000, "order=x", "after=x", "limit=²"):
        address = f"{PATH}/{answer['id']}/input_items?{query}".replace("²", "%C2%B2")
        error_of(*send(served, b"", address, "GET"))
    listed = send(served, b"", f"{PATH}/{answer['id']}/input_items", "GET")[1]
    assert ResponseItemList.model_validate(listed).data
    metrics = text_of(served, "/metrics")
    assert 'path="/v1/responses/{response}/input_items"' in metrics and "resp_" not in metrics


def stored(number: int, previous: int | None, size: int = 0) -> tuple[str, StoredResponse]:
    link = None if previous is None else f"resp_{previous}"
    body = {"id": f"resp_{number}", "previous_response_id": link, "output": ["x" * size]}
    return body["id"], StoredResponse.of([{"id": number}], body)  # type: ignore[return-value]


def test_a_store_keeps_what_was_used_last() -> None:
    store = ResponseStore(max_per_owner=4)
    for number, previous in ((0, None), (1, 0), (2, None), (3, None)):
        store.put("a", *stored(number, previous))
    assert [link.asked()[0]["id"] for link in store.conversation("a", "resp_1")] == [0, 1]
    store.put("a", *stored(4, 1))
    store.put("b", *stored(0, None))
    with pytest.raises(RequestError, match="resp_2"):
        store.get("a", "resp_2")
    assert len(store.conversation("a", "resp_4")) == 3 and len(store) == 5
    for number in range(5, 9):
        store.put("a", *stored(number, number - 1))
    with pytest.raises(RequestError, match="'resp_4', which 'resp_8' continues") as caught:
        store.conversation("a", "resp_8")
    assert (caught.value.status, caught.value.code) == (400, "previous_response_not_found")
    assert len(store.conversation("b", "resp_0")) == 1


def test_a_store_takes_no_more_than_its_bytes() -> None:
    """A long conversation costs its new items, and one owner's responses push out no other's."""
    store = ResponseStore(max_nbytes=2**20)
    store.put("quiet", *stored(0, None, 1000))
    for number in range(500):
        store.put("a", *stored(number, number - 1 if number else None, 1000))
    assert len(store.conversation("a", "resp_499")) == 500 and store.nbytes < 2**20
    tracemalloc.start()
    try:
        for number in range(500, 6000):
            store.put("a", *stored(number, number - 1, 1000))
            if number == 1500:
                before = tracemalloc.get_traced_memory()[0]
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert store.nbytes <= 2**20 and grown < 100_000
    assert store.get("quiet", "resp_0")
    store.put("a", *stored(6000, None, 2**21))
    assert store.nbytes <= 2**20
