"""Parameters are obeyed or refused by name, and those that are null were left out."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from agentkv.models.local import LocalModel
from agentkv.serve.protocols.unsupported import CHAT_ONLY, COMPLETIONS_ONLY, UNSUPPORTED
from tests.agentkv.serve.conftest import CHATML, TOOL_TEMPLATE, Served, serving
from tests.agentkv.serve.test_requests import CHAT, RAW, error_of, send

USER: Any = {"role": "user", "content": "Hi"}
GOOD: dict[str, Any] = {"model": "tiny", "messages": [USER], "max_tokens": 1, "temperature": 0}
PROMPT: dict[str, Any] = {"model": "tiny", "prompt": "a page", "max_tokens": 1, "temperature": 0}
TOOL: Any = {"type": "function", "function": {"name": "f"}}
CALL: Any = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.fixture(scope="module")
def served(chat_model: Callable[[str], LocalModel]) -> Iterator[Served]:
    with serving(chat_model(TOOL_TEMPLATE), budget=512) as served:
        yield served


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with served.client() as client:
        yield client
    served.idle()


def text_of(client: openai.OpenAI, messages: Any = None, **options: Any) -> str:
    """What the model says, with parameters that the client does not know."""
    own = {"max_tokens": 60, "temperature": 2, "seed": 3} | options
    answer = client.chat.completions.create(
        model="tiny", messages=messages or [USER], extra_body=own
    )
    return answer.choices[0].message.content or ""


OPTIONAL = """
    agentkv audio chat_template_kwargs frequency_penalty function_call functions guided_choice
    id_slot logit_bias logprobs max_completion_tokens max_tokens metadata min_tokens modalities
    n parallel_tool_calls prediction presence_penalty prompt_cache_key reasoning_effort seed
    response_format service_tier stop store stream stream_options structured_outputs temperature
    tool_choice tools top_k top_logprobs top_p user web_search_options continue_final_message
    guided_json add_generation_prompt ignore_eos
""".split()
NESTED: list[dict[str, Any]] = [
    {"stream_options": {"include_usage": None}},
    {"chat_template_kwargs": {"enable_thinking": None}},
    {"response_format": {"type": "text", "json_schema": None}},
    {"structured_outputs": {"choice": None, "regex": "a"}},
    {"agentkv": {"policy": None, "session": None}},
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": None}}]},
    {"tools": [{"type": "function", "function": {"name": "f", "description": None}}]},
    {"tools": [{**TOOL, "function": {"name": "f", "strict": None}}]},
    {"messages": [{**USER, "name": None, "tool_calls": None, "function_call": None}]},
    {"messages": [USER, {"role": "assistant", "content": None}, USER]},
    {"messages": [USER, {"role": "assistant", "tool_calls": [{**CALL, "id": None}]},
                  {"role": "tool", "tool_call_id": None, "content": None}]},
    {"messages": [USER, {"role": "assistant", "tool_calls": [{**CALL, "type": None}]}, USER]},
    {"messages": [USER, {"role": "assistant", "tool_calls": [
        {**CALL, "function": {"name": "f", "arguments": None}}]}, USER]},
]  # fmt: skip


def test_null_is_left_out_everywhere(served: Served) -> None:
    for change in [dict.fromkeys(OPTIONAL), *NESTED]:
        status, body = send(served, {**GOOD, **change})
        assert status == 200, (change, body)
    raw = ("echo", "suffix", "best_of", "logprobs", "stop", "seed", "regex", "response_format")
    assert send(served, {**PROMPT, **dict.fromkeys(raw)}, RAW)[0] == 200
    assert error_of(*send(served, {**GOOD, "messages": None}))["param"] == "messages"


def another(neutral: tuple[Any, ...]) -> Any:
    return next(value for value in (0.37, 7, True) if value not in neutral)


def test_what_would_change_the_reply_is_refused_by_name(served: Served) -> None:
    for path, good, own in ((CHAT, GOOD, CHAT_ONLY), (RAW, PROMPT, COMPLETIONS_ONLY)):
        for name, neutral in {**UNSUPPORTED, **own}.items():
            error = error_of(*send(served, {**good, name: another(neutral)}, path))
            assert error["param"] == name and error["message"].startswith(
                f"{name} is not supported"
            )
        unchanged = {name: each[0] for name, each in {**UNSUPPORTED, **own}.items() if each}
        assert send(served, {**good, **unchanged}, path)[0] == 200
    instead = error_of(*send(served, {**GOOD, "guided_json": {}}))["message"]
    assert "write response_format" in instead
    # 1 is not true, and a parameter that nobody knows changes nothing
    assert error_of(*send(served, {**GOOD, "n": True}))["param"] == "n"
    assert send(served, {**GOOD, "temprature": 7})[0] == 200


CONSTRAINTS: list[tuple[dict[str, Any], str]] = [
    ({"guided_choice": ["yes", 'n"o\n', "é/\\"]}, 'yes|n"o\n|é/\\\\'),
    ({"guided_choice": ["<|im_end|>x"]}, r"<\|im_end\|>x"),
    ({"guided_regex": "^a/[bc]{2}$"}, "a/[bc]{2}"),
    ({"regex": r"(?:x\/|\d\n)y"}, r"(x/|\d\n)y"),
    ({"grammar": 'root ::= "yes" | no no?\nno ::= "n" [}o]'}, "yes|(n[}o]){1,2}"),
    ({"guided_grammar": 'start: A "}"\nA: /[ab]/'}, "[ab]}"),
    ({"ebnf": 'root ::= "a" "b"?'}, "ab?"),
    ({"structured_outputs": {"choice": ["left", "right"]}}, "left|right"),
    ({"structured_outputs": {"regex": "[0-9]{3}"}}, "[0-9]{3}"),
    ({"structured_outputs": {"grammar": 'root ::= "g"'}}, "g"),
    ({"structured_outputs": {"json": {"const": [1]}}}, r"\[1\]"),
    ({"structured_outputs": {"json": '{"const": "a"}'}}, '"a"'),
    ({"response_format": {"type": "json_object", "schema": {"const": {"a": 1}}}}, '{"a": 1}'),
    ({"response_format": {"type": "json_schema", "schema": {"enum": [None, 2]}}}, "null|2"),
]


@pytest.mark.parametrize(("given", "pattern"), CONSTRAINTS, ids=[p for _, p in CONSTRAINTS])
def test_a_constraint_is_obeyed(client: openai.OpenAI, given: Any, pattern: str) -> None:
    assert re.fullmatch(pattern, text_of(client, **given))
    raw = client.completions.create(
        model="tiny", prompt="page", max_tokens=60, temperature=2, seed=3, extra_body=given
    )
    assert re.fullmatch(pattern, raw.choices[0].text)


def test_a_constraint_leaves_functions_to_be_called(client: openai.OpenAI) -> None:
    given = {"guided_choice": ["no"], "tools": [TOOL], "temperature": 2}
    seen = set()
    for seed in range(12):
        answer = client.chat.completions.create(
            model="tiny", messages=[USER], max_tokens=60, extra_body={**given, "seed": seed}
        )
        message = answer.choices[0].message
        assert message.tool_calls or message.content == "no"
        seen.add(message.content)
    assert seen == {"no", None}


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"guided_choice": ["a"], "regex": "b"}, "guided_choice.*regex|regex.*guided_choice"),
    ({"grammar": 'root ::= "a"', "response_format": {"type": "json_object"}}, "response_format"),
    ({"structured_outputs": {"choice": ["a"], "json_object": True}}, "structured_outputs"),
    ({"structured_outputs": {"structural_tag": "{}"}}, "structural_tag"),
    ({"guided_choice": []}, "guided_choice"),
    ({"guided_choice": ["a"], "tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
    ({"grammar": "nothing of the kind"}, "neither a GBNF nor a Lark grammar"),
    ({"grammar": "root ::= " + "(" * 9000}, "neither a GBNF nor a Lark grammar"),
    ({"grammar": "start: unknown"}, "unknown name"),
    ({"grammar": "x" * 40_000}, "grammar"),
    ({"regex": r"(a)\1"}, "refers back"),
    ({"regex": "(unclosed"}, "grammar of the reply failed"),
    ({"chat_template_kwargs": {"builtin": 1}}, "chat_template_kwargs.builtin"),
    ({"min_tokens": 5, "max_tokens": 2}, "min_tokens is 5"),
    ({"continue_final_message": True}, "needs a last message of the assistant"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "either begins"),
    ({"add_generation_prompt": False}, "either begins"),
    ({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "send content"),
]


@pytest.mark.parametrize(("given", "message"), CONTRADICTIONS, ids=[m for _, m in CONTRADICTIONS])
def test_what_cannot_be_obeyed_is_refused(served: Served, given: Any, message: str) -> None:
    assert re.search(message, error_of(*send(served, {**GOOD, **given}))["message"])


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video_url", None])
def test_a_part_that_is_no_text_is_named(served: Served, kind: str | None) -> None:
    parts = [{"type": "text", "text": "What is this?"}, {"type": kind, kind or "x": {}}]
    error = error_of(*send(served, {**GOOD, "messages": [USER, {**USER, "content": parts}]}))
    assert error["param"] == "messages.1.content"
    assert f"part 1 has the type {kind!r}; this model reads text only" in error["message"]


def test_parts_of_text_are_read_as_one(client: openai.OpenAI) -> None:
    parts: Any = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    said = [
        text_of(client, [{"role": "user", "content": content}], temperature=0, max_tokens=5)
        for content in (parts, "one\ntwo")
    ]
    assert said[0] == said[1]


def test_a_reply_has_the_tokens_that_are_asked_for(
    chat_model: Callable[[str], LocalModel],
) -> None:
    """Some seeds would end a reply before; with a minimum none does."""
    with serving(chat_model(CHATML), budget=512) as served, served.client() as client:

        def lengths(num_seeds: int = 5, **own: Any) -> list[int]:
            found = []
            for seed in range(num_seeds):
                answer = client.completions.create(
                    model="tiny",
                    prompt="page",
                    max_tokens=10,
                    temperature=2,
                    seed=seed,
                    extra_body=own,
                )
                assert answer.usage is not None
                found.append(answer.usage.completion_tokens)
            return found

        assert min(lengths(16)) < 10
        assert min(lengths(min_tokens=9)) >= 9
        assert set(lengths(ignore_eos=True)) == {10}


def test_a_reply_continues_the_last_message(served: Served, client: openai.OpenAI) -> None:
    start: Any = {"role": "assistant", "content": "The Blue "}
    own = {"continue_final_message": True, "temperature": 0, "max_tokens": 6}
    added = text_of(client, [USER, start], **own)
    served.idle()
    prompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nThe Blue "
    raw = client.completions.create(model="tiny", prompt=prompt, temperature=0, max_tokens=6)
    assert added == raw.choices[0].text and added
    served.idle()
    # a later request goes on with both as one message, and reads only what is new
    whole = {**start, "content": start["content"] + added}
    answer = client.chat.completions.create(
        model="tiny", messages=[USER, whole, USER], max_tokens=2, temperature=0
    )
    usage = answer.usage
    assert usage is not None and usage.prompt_tokens_details is not None
    assert (usage.prompt_tokens_details.cached_tokens or 0) > len(prompt) // 4
    served.idle()
    # and the same reply can be continued once more, from its middle
    assert text_of(client, [USER, whole, USER, start], **own)


def test_a_continued_message_may_follow_calls_and_look_like_a_token(
    client: openai.OpenAI,
) -> None:
    called: Any = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    result: Any = {"role": "tool", "tool_call_id": "c", "content": "sunny"}
    start: Any = {"role": "assistant", "content": "It <|im_end|> is"}
    own = {"continue_final_message": True, "temperature": 0, "max_tokens": 4, "tools": [TOOL]}
    assert text_of(client, [USER, called, result, start], **own)


def test_json_arguments_of_a_choice_survive(client: openai.OpenAI) -> None:
    given = {"guided_choice": [json.dumps({"a": "ü"}, ensure_ascii=False)]}
    assert json.loads(text_of(client, **given)) == {"a": "ü"}
