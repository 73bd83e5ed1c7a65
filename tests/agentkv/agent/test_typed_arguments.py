"""Arguments that a model writes as mere text have the types of their function's schema."""

import json
from typing import Any

import pytest

from agentkv.dialog.calls import TAGS, Call, FunctionDeclaration
from agentkv.dialog.reply_parts import ReplyParts

STRING: Any = {"type": "string"}
ROUND: Any = {"anyOf": [{"$ref": "#/$defs/round"}, {"type": "integer"}]}
"""A schema that contains itself."""
SCHEMA: dict[str, Any] = {
    "type": "object",
    "$defs": {
        "size": {"type": "object", "properties": {"unit": STRING}},
        "name/code": STRING,
        "round": ROUND,
    },
    "properties": {
        "string": STRING,
        "choice": {"enum": ["1", "2", "true"]},
        "constant": {"const": "7"},
        "referred": {"$ref": "#/$defs/name~1code"},
        "strict": {"allOf": [{"type": ["string", "integer"]}, {"minLength": 1, "type": "string"}]},
        "integer": {"type": "integer"},
        "number": {"type": "number"},
        "boolean": {"type": "boolean"},
        "object": {"$ref": "#/$defs/size"},
        "array": {"type": "array", "items": STRING},
        "null": {"type": "null"},
        "optional": {"anyOf": [STRING, {"type": "null"}]},
        "nullable": {"type": "string", "nullable": True},
        "either": {"type": ["string", "integer"]},
        "round": ROUND,
        "any": {"description": "anything"},
        "broken": {"$ref": "#/$defs/missing", "enum": 5},
    },
    "additionalProperties": STRING,
}
EXACT = [
    "5",
    "true",
    "null",
    "2026-01-01",
    "007",
    "1e5",
    '{"a": 1}',
    "[]",
    '"quoted"',
    "",
    " a \n b\n",
]
"""Texts that are other values in JSON, or that differ in white space alone."""


def arguments_of(text: str, schema: dict[str, Any] = SCHEMA) -> Any:
    made = ReplyParts(TAGS, functions=[FunctionDeclaration("look", schema)])
    (call,) = made.feed(text) + made.finish()
    assert isinstance(call, Call)
    return json.loads(call.arguments)


def as_glm(**values: str) -> str:
    written = (
        f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"
        for key, value in values.items()
    )
    return f"<tool_call>look\n{''.join(written)}</tool_call>"


def as_qwen(**values: str) -> str:
    written = (f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function=look>\n{''.join(written)}</function>\n</tool_call>"


@pytest.mark.parametrize(
    "key", ["string", "choice", "constant", "referred", "strict", "not in the schema"]
)
def test_a_string_is_the_text_that_was_written(key: str) -> None:
    for text in EXACT:
        assert arguments_of(as_glm(**{key: text})) == {key: text}
        assert arguments_of(as_qwen(**{key: text})) == {key: text}


def test_another_type_is_the_value_that_its_text_spells() -> None:
    texts = {
        "integer": "5",
        "number": " 1e5\n",
        "boolean": "true",
        "object": '\n{"unit": "5", "at": [1,\n2]}',
        "array": '["5"]',
        "null": "null",
    }
    values = {
        "integer": 5,
        "number": 1e5,
        "boolean": True,
        "object": {"unit": "5", "at": [1, 2]},
        "array": ["5"],
        "null": None,
    }
    assert arguments_of(as_qwen(**texts)) == values
    assert arguments_of(as_glm(**texts)) == values
    in_python = {"boolean": "False", "object": "{'unit': None}", "null": "None"}
    read = {"boolean": False, "object": {"unit": None}, "null": None}
    assert arguments_of(as_qwen(**in_python)) == read


def test_text_that_spells_no_value_stays_text() -> None:
    texts = {"integer": "five", "number": "007", "object": "{1}", "null": ""}
    assert arguments_of(as_glm(**texts)) == texts


def test_where_a_string_and_another_type_are_possible_json_of_the_other_is_read() -> None:
    texts = {"optional": "null", "nullable": "null", "either": "5", "round": "5", "any": "[5]"}
    values = {"optional": None, "nullable": None, "either": 5, "round": 5, "any": [5]}
    assert arguments_of(as_glm(**texts)) == values
    for text in ("5.5", "True", "None", '"5"', "five", " "):
        kept = {"optional": text, "either": text}
        assert arguments_of(as_glm(**kept)) == kept
    assert arguments_of(as_glm(any="True", broken='"5"')) == {"any": "True", "broken": '"5"'}


def test_a_schema_of_arguments_may_be_composed() -> None:
    composed = {
        "$ref": "#/$defs/all",
        "$defs": {"all": {"allOf": [{"properties": {"a": STRING}}, {"$ref": "#/$defs/rest"}]}},
    }
    composed["$defs"]["rest"] = {"properties": {"b": {"type": "integer"}}}  # type: ignore[index]
    assert arguments_of(as_glm(a="5", b="5"), composed) == {"a": "5", "b": 5}
    assert arguments_of(as_glm(a="5"), {}) == {"a": 5}


def test_a_schema_without_bounds_is_read_in_bounds() -> None:
    chain: dict[str, Any] = {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(5000)}
    wide: dict[str, Any] = {
        f"w{i}": {"anyOf": [{"$ref": f"#/$defs/w{i + 1}"} for _ in range(20)]} for i in range(40)
    }
    schema = {
        "$defs": {**chain, **wide},
        "allOf": [{"$ref": "#/$defs/0"}],
        "properties": {"a": {"$ref": "#/$defs/0"}, "b": {"$ref": "#/$defs/w0"}},
    }
    assert arguments_of(as_glm(a="5", b="x"), schema) == {"a": 5, "b": "x"}
