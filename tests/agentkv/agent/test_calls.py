"""Calls are read in every form in which models write them, however the text is cut."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from agentkv.dialog.calls import (
    DEEPSEEK,
    DEEPSEEK_V3_1,
    HARMONY,
    KIMI,
    LLAMA,
    MISTRAL,
    SEED,
    TAGS,
    Call,
    CallFormat,
    FunctionDeclaration,
)
from agentkv.dialog.grammar import Grammar
from agentkv.dialog.reply_parts import ReplyParts, TextPart

FORMATS: dict[str, CallFormat] = {
    "tags": TAGS,
    "seed": SEED,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "deepseek": DEEPSEEK,
    "deepseek-v3.1": DEEPSEEK_V3_1,
    "kimi": KIMI,
    "gpt-oss": HARMONY,
}
NAMES = ("look", "get-in.touch", "now")
THOUGHTS = [("<think>", "</think>")]


def parts_of(format: str, text: str, *cuts: int, **options: Any) -> list[TextPart | Call]:
    """Take a reply apart, cut at places; neighboring parts of one kind are joined."""
    made = ReplyParts(
        FORMATS[format],
        names=NAMES,
        thoughts=THOUGHTS,
        is_harmony=format == "gpt-oss",
    )
    found: list[TextPart | Call] = []
    for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True):
        found += made.feed(text[start:stop])
    joined: list[TextPart | Call] = []
    for part in found + made.finish(**options):
        last = joined[-1] if joined else None
        if isinstance(part, TextPart) and isinstance(last, TextPart) and part.kind == last.kind:
            joined[-1] = TextPart(part.kind, last.text + part.text)
        else:
            joined.append(part)
    return joined


def plain(parts: list[TextPart | Call]) -> list[Any]:
    """Calls as pairs of a name and arguments, and text as it is."""
    return [
        (part.name, json.loads(part.arguments)) if isinstance(part, Call) else part.text
        for part in parts
    ]


ROME = ("look", {"at": "Rome"})
OSLO = ("look", {"at": "Oslo"})
NOW = ("now", {})
REPLIES: dict[str, tuple[str, str, list[Any]]] = {
    # JSON between tags
    "a call, text, and a call": (
        "tags",
        'First.\n<tool_call>{"name": "look", "arguments": {"at": "Rome"}}</tool_call>\n\nThen.\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\nDone.',
        ["First.\n", ROME, "Then.\n", NOW, "Done."],
    ),
    "white space around calls is no text": (
        "tags",
        '\n\n<tool_call>{"name": "now"}</tool_call> \n <tool_call>{"name": "now"}</tool_call>\n',
        [NOW, NOW],
    ),
    "a thought before": (
        "tags",
        '<think>\nI may write <tool_call></think>\n\n<tool_call>{"name": "now"}</tool_call>',
        ["I may write <tool_call>", NOW],
    ),
    "a thought with a call in it": (
        "tags",
        '<think>\n<tool_call>{"name": "now"}</tool_call></think>\n\nyes',
        ['<tool_call>{"name": "now"}</tool_call>', "yes"],
    ),
    "control characters and quotes in a string": (
        "tags",
        '<tool_call>{"name": "look", "arguments": {"at": "a\tb\r\n\x01 \\"c\\" it\'s \\u00e9'
        '\\ud83d\\ude00"}}</tool_call>',
        [("look", {"at": 'a\tb\r\n\x01 "c" it\'s é😀'})],
    ),
    "backslashes that escape nothing": (
        "tags",
        '<tool_call>{"name": "look", "arguments": {"at": "\\d+\\.C:\\Users"}}</tool_call>',
        [("look", {"at": "\\d+\\.C:\\Users"})],
    ),
    "tags in a string": (
        "tags",
        '<tool_call>{"name": "look", "arguments": {"at": "</tool_call><tool_call>{\\"name\\": '
        '\\"now\\"}</tool_call>"}}</tool_call>',
        [("look", {"at": '</tool_call><tool_call>{"name": "now"}</tool_call>'})],
    ),
    "Python's quotes and words, and commas at the end": (
        "tags",
        "<tool_call>{'name': 'look', 'arguments': {'at': None, 'all': [True, 1,],},}</tool_call>",
        [("look", {"at": None, "all": [True, 1]})],
    ),
    "arguments in a string": (
        "tags",
        '<tool_call>{"name": "look", "arguments": "{\\"at\\": \\"Rome\\"}"}</tool_call>',
        [ROME],
    ),
    "no arguments, in four ways": (
        "tags",
        '<tool_call>{"name": "now", "arguments": null}{"name": "now", "arguments": ""}'
        '{"id": "a", "name": "now"}, {"name": "now", "arguments": []}</tool_call>',
        [NOW] * 4,
    ),
    "the function in an object, with an id": (
        "tags",
        '<tool_call>{"id": "call_1", "type": "function", "function": {"name": "look", '
        '"arguments": {"at": "Rome"}}}</tool_call>',
        [ROME],
    ),
    "parameters in place of arguments": (
        "tags",
        '<tool_call>{"name": "look", "parameters": {"at": "Rome"}}</tool_call>',
        [ROME],
    ),
    "a list in a tag": (
        "tags",
        '<tool_call>[{"name": "look", "arguments": {"at": "Rome"}}, {"name": "now"}]</tool_call>',
        [ROME, NOW],
    ),
    "a code fence in a tag, and a brace too many": (
        "tags",
        '<tool_call>\n```json\n{"name": "now"}\n```\n</tool_call><tool_call>{"name": "now"}}\n'
        "</tool_call>",
        [NOW, NOW],
    ),
    "no closing tag": (
        "tags",
        '<tool_call>{"name": "now"}\n<tool_call>\n{"name": "look", "arguments": {"at": "Rome"}}',
        [NOW, ROME],
    ),
    "a name with other signs": (
        "tags",
        '<tool_call>{"name": "get-in.touch", "arguments": {}}</tool_call>'
        "<tool_call>get-in.touch</tool_call><function=get-in.touch></function>",
        [("get-in.touch", {})] * 3,
    ),
    "an object without tags as the whole reply": (
        "tags",
        '```json\n{"name": "look", "arguments": {"at": "Rome"}}\n```',
        [ROME],
    ),
    "a broken call before a call": (
        "tags",
        '<tool_call>{"name": "now}</tool_call>\n<tool_call>{"name": "now"}</tool_call>',
        ['<tool_call>{"name": "now}</tool_call>\n', NOW],
    ),
    # Qwen3-Coder's and GLM's tags
    "parameters with lines, spaces and tags": (
        "tags",
        "<tool_call>\n<function=look>\n<parameter=at>\n\n  one\n </parameter> two\n\n</parameter>\n"
        "<parameter=b c>\n</parameter>\n</function>\n</tool_call>",
        [("look", {"at": "\n  one\n </parameter> two\n", "b c": ""})],
    ),
    "two functions in one tag, then text": (
        "tags",
        "<tool_call>\n<function=now>\n</function>\n<function=look>\n<parameter=at>\nRome\n"
        "</parameter>\n</function>\n</tool_call>\n\nWell.",
        [NOW, ROME, "Well."],
    ),
    "a parameter without a closing tag": (
        "tags",
        "<function=look>\n<parameter=at>\nRome\n</function>\n</tool_call>",
        [ROME],
    ),
    "JSON in a function's tag": (
        "tags",
        '<function=look>{"at": "Rome"}</function>',
        [ROME],
    ),
    "keys and values": (
        "tags",
        "<tool_call>look\n<arg_key>at</arg_key>\n<arg_value>a </arg_value> b\n</arg_value>\n"
        "<arg_key>all</arg_key>\n<arg_value>[1, {}]</arg_value>\n</tool_call>"
        "<tool_call>now</tool_call>",
        [("look", {"at": "a </arg_value> b\n", "all": [1, {}]}), NOW],
    ),
    "a name and JSON in a tag": (
        "tags",
        '<tool_call>look\n{"at": "Rome"}\n</tool_call>',
        [ROME],
    ),
    "a name and JSON on lines": ("tags", 'look\n{"at": "Rome"}', [ROME]),
    "a value on the line of its parameter": (
        "seed",
        "<seed:tool_call>\n<function=look>\n<parameter=at>\nRome\n</parameter>\n</function>\n"
        "</seed:tool_call>",
        [("look", {"at": "\nRome\n"})],
    ),
    # Mistral
    "names and ids after one token": (
        "mistral",
        '[TOOL_CALLS]now[CALL_ID]a1b2c3d4e[ARGS]{}look[ARGS]{"at": "Rome"} Well.',
        [NOW, ROME, "Well."],
    ),
    "names and braces": (
        "mistral",
        'So:[TOOL_CALLS]look{"at": "[TOOL_CALLS]"}[TOOL_CALLS]now[ARGS][TOOL_CALLS]now',
        ["So:", ("look", {"at": "[TOOL_CALLS]"}), NOW, NOW],
    ),
    "arguments in a string, or null": (
        "mistral",
        '[TOOL_CALLS]look[ARGS]"{\\"at\\": \\"Rome\\"}"[TOOL_CALLS]now[ARGS]null null',
        [ROME, NOW, "null"],
    ),
    "a list with ids, then text that looks like a list": (
        "mistral",
        '[TOOL_CALLS] [{"name": "look", "arguments": {"at": "Rome"}, "id": "a1b2c3d4e"}]\n\n'
        "[1] says so.",
        [ROME, "[1] says so."],
    ),
    "a list without the token": ("mistral", ' [{"name": "now", "arguments": {}}]', [NOW]),
    # Llama
    "objects with text around": (
        "llama",
        'Let me look.\n{"type": "function", "name": "look", "parameters": {"at": "Rome"}}; '
        '{"name": "now", "parameters": null}\n\nWell.',
        ["Let me look.\n", ROME, NOW, "Well."],
    ),
    "Python after its token": (
        "llama",
        "<|python_tag|>look.call(at='Rome'); now()",
        [ROME, NOW],
    ),
    "a list of calls in Python": (
        "llama",
        "[look(at=\"Rome\", all=[{'a': None}, -1.5e3,]), get-in.touch()]\nWell.",
        [("look", {"at": "Rome", "all": [{"a": None}, -1500.0]}), ("get-in.touch", {}), "Well."],
    ),
    "objects that end with semicolons": (
        "llama",
        '{"name": "now", "parameters": {}};\n{"function": "look", "parameters": '
        '{"at": "Rome"}}; ok',
        [NOW, ROME, "ok"],
    ),
    "Python between tokens": (
        "llama",
        "<|python_start|>[now(), look(at='Rome')]<|python_end|>",
        [NOW, ROME],
    ),
    # sections
    "DeepSeek's fences": (
        "deepseek",
        "So.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n```json\n"
        '{"at": "Rome"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n'
        "```json\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>Well.",
        ["So.", ROME, NOW, "Well."],
    ),
    "DeepSeek's later form, without an end": (
        "deepseek-v3.1",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>{"at": "Rome"}'
        "<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}",
        [ROME, NOW],
    ),
    "Kimi's ids": (
        "kimi",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0"
        '<|tool_call_argument_begin|>{"at": "Rome"}<|tool_call_end|><|tool_call_begin|>'
        "functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        [ROME, NOW],
    ),
    # gpt-oss
    "calls in both channels, and text": (
        "gpt-oss",
        '<|channel|>analysis to=functions.look code<|message|>{"at": "Rome"}<|call|><|start|>'
        "assistant<|channel|>commentary<|message|>So.<|end|><|start|>assistant to=functions.now"
        "<|channel|>commentary <|constrain|>json<|message|><|call|><|start|>assistant"
        "<|channel|>final<|message|>Well.",
        [ROME, "So.", NOW, "Well."],
    ),
    "a control token in a string, and a name alone": (
        "gpt-oss",
        '<|channel|>commentary to=look<|message|>{"at": "<|call|>\n"}<|end|>',
        [("look", {"at": "<|call|>\n"})],
    ),
    "null, and no message": (
        "gpt-oss",
        "<|channel|>commentary to=functions.now<|message|>null<|call|><|start|>assistant",
        [NOW],
    ),
    "a message to another tool is a thought": (
        "gpt-oss",
        "<|channel|>analysis to=python code<|message|>1 + 1<|call|>",
        ["1 + 1"],
    ),
}


@pytest.mark.parametrize("name", REPLIES)
def test_a_form_is_read_in_the_same_way_however_it_is_cut(name: str) -> None:
    format, text, expected = REPLIES[name]
    assert plain(parts_of(format, text)) == expected
    assert plain(parts_of(format, text, *range(1, len(text)))) == expected
    for cut in range(1, len(text)):
        assert plain(parts_of(format, text, cut)) == expected


TEXTS = {
    "an unknown function": ("tags", '<tool_call>{"name": "delete", "arguments": {}}</tool_call> a'),
    "a known function in a string of an unknown one": (
        "tags",
        '<tool_call>{"name": "no", "arguments": {"a": "<tool_call>{\\"name\\": \\"now\\"}'
        '</tool_call>"}}</tool_call>',
    ),
    "a name and members that are no arguments": (
        "tags",
        '<tool_call>{"name": "now", "city": "Rome"}</tool_call>',
    ),
    "arguments in a list": ("tags", '<tool_call>{"name": "now", "arguments": [1]}</tool_call>'),
    "a number that JSON has not": (
        "tags",
        '<tool_call>{"name": "look", "arguments": {"at": 007}}</tool_call>',
    ),
    "a number too large": (
        "tags",
        '<tool_call>{"name": "look", "arguments": {"at": 1e999}}</tool_call>',
    ),
    "tags in prose": ("tags", "Write <tool_call> before and </tool_call> after, <function=x> not."),
    "half a call": ("tags", '<tool_call>{"name": "look", "arguments": {"at": "Ro'),
    "a nest without end": ("tags", '<tool_call>{"name": "look", "arguments": ' + "[" * 3000),
    "JSON in the text": ("tags", 'For example:\n{"name": "now", "arguments": {}}'),
    "another object": ("llama", '{"name": "Bob", "parameters": {}}'),
    "an object with a name": ("llama", '{"name": "now", "city": "Rome"}'),
    "a call in a line": ("llama", 'Write {"name": "now", "parameters": {}} or [now()].'),
    "positional arguments": ("llama", '[look("Rome")]'),
    "an expression": ("llama", "[look(at=__import__('os').getcwd())]"),
    "an empty list": ("mistral", "[TOOL_CALLS][]"),
    "an unknown name": ("mistral", "[TOOL_CALLS]delete[ARGS]{}"),
    "an empty section": ("deepseek", "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>"),
    "an unknown recipient": (
        "gpt-oss",
        '<|channel|>commentary to=functions.delete<|message|>{"a": "<|call|>"}<|call|>',
    ),
    "arguments that are no object": (
        "gpt-oss",
        "<|channel|>commentary to=functions.now<|message|>now!<|call|>",
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_no_call_stays_text(name: str) -> None:
    format, text = TEXTS[name]
    assert plain(parts_of(format, text)) == [text]
    assert plain(parts_of(format, text, *range(1, len(text)))) == [text]


MARKS = [
    *("<tool_call>", "</tool_call>", "<function=look>", "</function>", "<parameter=at>"),
    *("</parameter>", "<arg_key>at</arg_key>", "<arg_value>", "</arg_value>", "look", "now", "\n"),
    *('{"name": "now"}', '{"name": "look", "arguments": {"at": "', '"}}', "{", "}", "[", "]", '"'),
    *("now()", "look(at=1)", "(", ")", ";", ",", " ", "a", "```", "```json\n", "\\", "'", ":"),
    *("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]a", "<|python_tag|>", "<think>", "</think>", "<", "</"),
    *("<|channel|>", "commentary to=functions.now", "analysis", "<|message|>", "<|call|>"),
    *("<|end|>", "<|start|>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
    *("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "function", "{}", "1", "assistant"),
]


@given(
    format=st.sampled_from(sorted(FORMATS)),
    pieces=st.lists(st.sampled_from(MARKS) | st.text(max_size=3), max_size=14),
    is_cut=st.booleans(),
    data=st.data(),
)
@example("mistral", ["[TOOL_CALLS]", "now", " ", "[TOOL_CALLS]", "now"], False, None)
def test_no_text_is_taken_apart_in_another_way_for_how_it_is_cut(
    format: str, pieces: list[str], is_cut: bool, data: st.DataObject | None
) -> None:
    text = "".join(pieces)
    whole = parts_of(format, text, is_cut=is_cut)
    assert parts_of(format, text, *range(1, len(text)), is_cut=is_cut) == whole
    if data is not None:
        cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
        assert parts_of(format, text, *cuts, is_cut=is_cut) == whole


def test_a_reply_that_was_cut_calls_nothing_with_half_of_its_arguments() -> None:
    for text in (
        "<tool_call>\n<function=look>\n<parameter=at>\nRome\n</parameter>\n",
        "<tool_call>look\n<arg_key>at</arg_key>\n<arg_value>Rome</arg_value>",
    ):
        assert plain(parts_of("tags", text)) == [ROME]
        assert plain(parts_of("tags", text, is_cut=True)) == [text]
    text = "[TOOL_CALLS]now"
    assert plain(parts_of("mistral", text)) == [NOW]
    assert plain(parts_of("mistral", text, is_cut=True)) == [text]


@pytest.mark.parametrize("format", ["tags", "llama", "mistral", "deepseek"])
def test_text_waits_for_no_more_than_the_beginning_of_a_call(format: str) -> None:
    made = ReplyParts(FORMATS[format], names=NAMES)

    def says(text: str) -> str:
        return "".join(part.text for part in made.feed(text) if isinstance(part, TextPart))

    assert says('{"na') == ""
    assert says('tion": "Italy", "city": "Rome"') == '{"nation": "Italy", "city": "Rome"'
    assert says("} <tool_") == "} "
    assert says("box> 1 < 2\n[1") == "<tool_box> 1 < 2\n" + ("" if format == "llama" else "[1")
    assert says("] a") == ("[1] a" if format == "llama" else "] a")
    assert says("\n{") == "\n" + ("" if format == "llama" else "{")
    assert says("1, 2}\n") == ("{1, 2}\n" if format == "llama" else "1, 2}\n")


def test_calls_come_as_soon_as_they_end() -> None:
    made = ReplyParts(TAGS, names=NAMES)
    assert made.feed('<tool_call>{"name": "now"}') == []
    assert made.feed("</tool_call>") == [Call("now", "{}")]
    assert made.feed("\nWell") == [TextPart("content", "Well")]


@pytest.fixture(scope="module")
def grammar(plain_tokenizer: Tokenizer) -> Grammar:
    return Grammar(plain_tokenizer, end_id=3)


@pytest.mark.parametrize("format", FORMATS)
def test_what_a_format_writes_it_reads_and_its_grammar_allows(
    format: str, grammar: Grammar, plain_tokenizer: Tokenizer
) -> None:
    written = FORMATS[format].write("look", '{"at": "Rome"}')
    assert plain(parts_of(format, written)) == [ROME]
    schema = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
    functions = [FunctionDeclaration("now", schema), FunctionDeclaration("look", schema)]
    matcher = grammar.match(FORMATS[format].grammar(functions, {}))
    for id in plain_tokenizer.encode(written.removesuffix("<|call|>")).ids:
        assert matcher.allowed()[id]
        matcher.consume([id])
    assert matcher.has_ended or matcher.allowed()[3]


def test_a_value_keeps_its_type_in_json_whatever_the_schema_says() -> None:
    function = FunctionDeclaration(
        "look", {"properties": {"a": {"type": "string"}, "b": {"type": "number"}}}
    )
    made = ReplyParts(TAGS, functions=[function])
    (call,) = made.feed('<tool_call>{"name": "look", "arguments": {"a": 5, "b": "5"}}</tool_call>')
    assert call == Call("look", '{"a": 5, "b": "5"}')
