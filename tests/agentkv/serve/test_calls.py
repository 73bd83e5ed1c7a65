"""Every family's calls reach the client as the model wrote them."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from agentkv.dialog.messages import Chat, MessageTemplate
from tests.agentkv.agent.test_chat_templates import FAMILIES, NAMES, tokenizer_of, train_tokenizer
from tests.agentkv.serve.conftest import TOOL_TEMPLATE, serving
from tests.agentkv.serve.reciting import add_pieces, reciting_model
from tests.sampling import sampled

STRING: Any = {"type": "string", "description": "some text"}
TIME: Any = {
    "type": "object",
    "description": "when to go",
    "properties": {
        "day": STRING,
        "hours": {"type": "array", "items": {"type": "number"}, "description": "hours of the day"},
        "exact": {"type": "boolean", "description": "whether the hours are exact"},
        "note": {"type": ["string", "null"], "description": "a note"},
    },
    "required": ["day"],
}
BOOK: Any = {
    "type": "function",
    "function": {
        "name": "book-table",
        "description": "Book a table.",
        "parameters": {
            "type": "object",
            "properties": {
                "code": STRING,
                "text": STRING,
                "time": TIME,
                "people": {"type": "integer", "description": "number of people"},
            },
            "required": ["code"],
        },
    },
}
SENT = [
    {
        "code": "00187",
        "text": 'two\n lines, it\'s "so" {1}',
        "time": {"day": "2026-01-01", "hours": [19, 20.5], "exact": True, "note": None},
        "people": 4,
    },
    {"code": "true", "time": {"day": "2027", "hours": []}},
]
ASKED: list[Any] = [{"role": "user", "content": "Two tables, please"}]
_DELIMITERS = [
    ("<tool_call>", "</tool_call>"),
    ("<seed:tool_call>", "</seed:tool_call>"),
    ("[TOOL_CALLS]", "}]"),
    ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    (" to=functions.", "<|call|>"),
]


@pytest.fixture(scope="module")
def trained() -> str:
    return train_tokenizer(["<unk>", "<bos>", "<eos>"]).to_str()


def written(template: MessageTemplate) -> str:
    """Return two calls as the family's template shows them, or as its models are told to write
    them."""
    calls = [
        {
            "id": f"call0000{number}",
            "type": "function",
            "function": {"name": "book-table", "arguments": json.dumps(each)},
        }
        for number, each in enumerate(SENT)
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "RESULT"} for call in calls]
    try:
        message = {"role": "assistant", "content": None, "tool_calls": calls}
        first, rest = template.opening(Chat([*ASKED, message, *results], [BOOK]))
        shown = template.decode(first + rest).rpartition("please")[2].partition("RESULT")[0]
    except ValueError:
        shown = ""
    for begin, end in _DELIMITERS:
        if begin in shown and "00187" in shown and "2027" in shown:
            start, stop = shown.index(begin), shown.rindex(end) + len(end)
            return shown[start:stop]
    each = [template.calls.write("book-table", json.dumps(sent)) for sent in SENT]
    return ("<|call|><|start|>assistant" if "<|message|>" in each[0] else "\n").join(each)


TEMPLATES = {
    (each["chat_template"], *(each["stop"] or ())): name for name, each in FAMILIES.items()
}
"""One name for each template; several of the 97 families share one."""


@pytest.mark.parametrize("name", sampled(sorted(TEMPLATES.values()) or NAMES, every=12, first=2))
def test_two_calls_of_every_family_reach_the_client(name: str, trained: str) -> None:
    tokenizer = tokenizer_of(FAMILIES[name], trained)
    text = written(MessageTemplate(tokenizer))
    reply = add_pieces(tokenizer, text)
    template = MessageTemplate(tokenizer)
    prompt = sum(template.opening(Chat(ASKED, [BOOK])), [])
    if template.decode(prompt).rstrip().endswith("<think>"):
        reply = [*add_pieces(tokenizer, "hm</think>"), *reply]
    local = reciting_model(tokenizer, len(prompt), [*reply, min(template.end_ids)])
    options: Any = {"model": "tiny", "messages": ASKED, "tools": [BOOK], "temperature": 0}
    settings: Any = {"policies": ("full",), "budget": None, "chunk": 4096}
    with serving(local, **settings) as served, served.client() as client:
        whole = client.chat.completions.create(**options)
        served.idle()
        chunks = list(client.chat.completions.create(**options, stream=True))
    calls: Any = whole.choices[0].message.tool_calls
    assert whole.choices[0].message.content is None, text
    assert [call.function.name for call in calls] == ["book-table"] * 2
    assert [json.loads(call.function.arguments) for call in calls] == SENT
    assert whole.choices[0].finish_reason == chunks[-1].choices[0].finish_reason == "tool_calls"
    deltas: Any = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert [delta.index for delta in deltas] == [0, 1]
    assert len({delta.id for delta in deltas}) == 2
    assert [json.loads(delta.function.arguments) for delta in deltas] == SENT
    assert not any(chunk.choices[0].delta.content for chunk in chunks)


def test_what_max_tokens_may_have_cut_is_no_call(
    chat_tokenizer: Callable[..., PreTrainedTokenizerFast],
) -> None:
    tokenizer = chat_tokenizer(TOOL_TEMPLATE)
    text = "<tool_call>book-table\n<arg_key>code</arg_key>\n<arg_value>true</arg_value>\n"
    reply = add_pieces(tokenizer, text)
    template = MessageTemplate(tokenizer)
    prompt = sum(template.opening(Chat(ASKED, [BOOK])), [])
    local = reciting_model(tokenizer, len(prompt), [*reply, min(template.end_ids)])
    options: Any = {"model": "tiny", "messages": ASKED, "tools": [BOOK], "temperature": 0}
    with serving(local, policies=("full",), budget=None) as served, served.client() as client:
        cut = client.chat.completions.create(**options, max_tokens=len(reply)).choices[0]
        served.idle()
        ended = client.chat.completions.create(**options).choices[0]
    assert (cut.message.content, cut.message.tool_calls) == (text, None)
    assert cut.finish_reason == "length"
    (call,) = ended.message.tool_calls or ()
    assert call.type == "function" and json.loads(call.function.arguments) == {"code": "true"}
    assert ended.finish_reason == "tool_calls"
