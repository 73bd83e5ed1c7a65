"""Replies follow JSON schemas: by their grammar or by a check of the whole reply. What they cannot
follow is refused by name."""

import ipaddress
import json
import random
import re
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar
from uuid import UUID

import jsonschema
import numpy as np
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer
from pydantic import (
    UUID4,
    AwareDatetime,
    Base64Bytes,
    BaseModel,
    Discriminator,
    Field,
    IPvAnyInterface,
    IPvAnyNetwork,
    SecretStr,
    Tag,
    TypeAdapter,
)

from agentkv.dialog.schema import prepared, strings
from agentkv.dialog.schema.check import CheckTooLong, violation
from agentkv.dialog.schema.prepared import prepare, rule_of
from agentkv.dialog.schema.references import SchemaError
from agentkv.models.local import LocalModel
from tests.agentkv.serve.conftest import TOOL_TEMPLATE, Served, serving

BYTES = LLTokenizer("byte")
DOCS = Path(__file__).parents[3] / "docs/serve.md"
Item = TypeVar("Item")


class Size(Enum):
    small = "small"
    large = "large"


class Point(NamedTuple):
    x: int
    y: Annotated[int, Field(ge=0, le=9)] = 3


class Tree(BaseModel):
    name: Annotated[str, Field(max_length=3)]
    children: Annotated[list["Tree"], Field(max_length=2)] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, Field(gt=0, multiple_of=3)] = 9


class Dog(BaseModel):
    kind: Literal["dog", "wolf"]
    owner: "Person | None"


class Person(BaseModel):
    """Three definitions deep, and back to itself."""

    pets: Annotated[list[Annotated[Cat | Dog, Field(discriminator="kind")]], Field(max_length=2)]
    size: Size | None = None
    scores: dict[Literal["a", "b"], Cat]


class Page(BaseModel, Generic[Item]):
    items: Annotated[list[Item], Field(max_length=2)]
    next: "Page[Item] | None" = None


def kind_of(value: Any) -> str:
    return "few" if isinstance(value, list) else "one"


Tagged = Annotated[
    Annotated[Cat, Tag("one")] | Annotated[list[Cat], Field(max_length=1), Tag("few")],
    Discriminator(kind_of),
]
Text = Annotated[str, Field(pattern="^[a-c]+$", max_length=4)]
PYDANTIC: list[Any] = [
    *(int, float, bool, None, Size, Literal["a", 1, True, None], Tree, Person, Tagged, Point),
    *(Page[int], Page[Tree], Cat | int | None, tuple[int, Text], tuple[()], tuple[int, ...]),
    *(set[Literal["a", "b"]], frozenset[int], Annotated[set[bool], Field(min_length=1)]),
    *(dict[str, Cat], dict[Size, int], dict[UUID, int], dict[date, int], dict[Text, int]),
    *(dict[Annotated[str, Field(min_length=2, max_length=3)], int],),
    Annotated[dict[str, int], Field(min_length=1, max_length=2)],
    *(Text, Annotated[int, Field(gt=3, le=30, multiple_of=5)], Annotated[float, Field(gt=0, lt=1)]),
    *(date, datetime, AwareDatetime, time, timedelta, UUID, UUID4, bytes, Path, SecretStr),
    *(Base64Bytes, ipaddress.IPv4Address, ipaddress.IPv6Address, ipaddress.IPv4Interface),
    *(ipaddress.IPv6Interface, IPvAnyInterface, ipaddress.IPv4Network, IPvAnyNetwork),
]


def write(schema: Any, draw: random.Random) -> str:
    """A random reply that the grammar of a schema allows."""
    matcher = LLMatcher(BYTES, LLMatcher.grammar_from_lark(f"start: v\nv: {rule_of(schema)}"))
    assert not matcher.is_error(), matcher.get_error()
    written = bytearray()
    while not matcher.is_stopped():
        mask = np.unpackbits(
            np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8), bitorder="little"
        )
        allowed = np.flatnonzero(mask[:256]).tolist()
        if not allowed or (matcher.is_accepting() and draw.random() < 0.5):
            break
        closing = [byte for byte in allowed if byte in b'"]}']
        plain = [byte for byte in allowed if 32 <= byte < 127] or allowed
        written.append(draw.choice(closing if closing and len(written) > 30 else plain))
        assert matcher.consume_token(written[-1]) and len(written) < 3000
    return written.decode()


@pytest.mark.parametrize("type", PYDANTIC, ids=[str(each)[:40] for each in PYDANTIC])
def test_what_pydantic_describes_is_what_replies_are(type: Any) -> None:
    adapter = TypeAdapter(type)
    schema = adapter.json_schema()
    made, draw = prepare(schema), random.Random(0)
    num_right = 0
    for _ in range(8):
        reply = write(made.grammar, draw)
        value = json.loads(reply)
        is_right = jsonschema.Draft202012Validator(schema).is_valid(value)
        if made.violation(value) is None:
            assert is_right
            adapter.validate_json(reply)
            num_right += 1
        else:
            assert not is_right or "format" in str(made.violation(value))
    assert num_right > 0


def test_objects_have_no_members_that_nobody_named() -> None:
    draw = random.Random(0)
    tree = prepare(Tree.model_json_schema()).grammar
    assert all(json.loads(write(tree, draw)).keys() <= {"name", "children"} for _ in range(10))
    part = {"properties": {"a": {"const": 1}}, "required": ["a"]}
    other = {"properties": {"b": {"const": 2}}, "required": ["b"], "type": "object"}
    for schema in (
        {"allOf": [part, other]},
        {**part, "anyOf": [other]},
        {"$ref": "#/$defs/A", "if": {}, "then": other, "$defs": {"A": part}},
    ):
        matcher = LLMatcher(
            BYTES, LLMatcher.grammar_from_lark(f"start: v\nv: {rule_of(prepare(schema).grammar)}")
        )
        assert matcher.consume_tokens(list(b'{"a": 1, "b": 2}')) and matcher.is_accepting()


class Bag(BaseModel):
    sizes: set[Size]
    signs: Annotated[frozenset[bool], Field(min_length=1)]
    some: Annotated[set[Literal["a", "b", "c", "d"]], Field(max_length=2)] | None


def test_sets_of_a_few_values_have_each_once() -> None:
    schema = Bag.model_json_schema()
    made, draw = prepare(schema), random.Random(0)
    for _ in range(10):
        reply = write(made.grammar, draw)
        assert made.violation(json.loads(reply)) is None
        Bag.model_validate_json(reply)
    items = {"type": "array", "items": {"enum": [1, 2, 3, 4]}, "uniqueItems": True}
    assert len(prepare({**items, "maxItems": 2}).grammar["enum"]) == 1 + 4 + 12
    many = {**items, "items": {"enum": [*range(9)]}}
    assert prepare(many).grammar["maxItems"] == 9


DECIMALS = {
    r"\d*\.?\d*$": ["12", "-0.5", ".5", "7."],
    r"\d*\.?\d{0,2}0*$": ["12", "1.25", "-.5"],
    r"\d*\.?\d{0,0}0*$": ["12", "-3."],
    r"(?:\d{0,3}|(?=[\d.]{1,6}0*$)\d{0,3}\.\d{0,2}0*$)": ["123", "123.45", ".5"],
    r"(?:\d{0,0}|(?=[\d.]{1,3}0*$)\d{0,0}\.\d{0,2}0*$)": [".25", "-.5"],
    r"(?:\d{0,4}|(?=[\d.]{1,5}0*$)\d*\.\d*0*$)": ["1234", "12.34", "+.1234"],
}
"""What other versions of pydantic put after the beginning of a Decimal's pattern."""


@pytest.mark.parametrize("rest", DECIMALS)
def test_the_pattern_of_a_decimal_allows_decimals(rest: str) -> None:
    whole = rf"^(?!^[-+.]*$)[+-]?0*{rest}"
    ([pattern], unwanted) = strings.split_pattern(whole)
    assert not unwanted
    assert all(re.fullmatch(pattern, each) for each in DECIMALS[rest])

    @settings(database=None)
    @given(st.from_regex(pattern.replace("$", r"\Z"), fullmatch=True))
    def check(number: str) -> None:
        Decimal(number)
        assert re.search(whole, number)

    check()


def test_a_function_may_have_a_decimal_as_text() -> None:
    schema = {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}
    draw = random.Random(0)
    for _ in range(10):
        Decimal(json.loads(write(prepare(schema).grammar, draw)))


def test_look_aheads_at_the_beginning_are_followed() -> None:
    schema = {"type": "string", "pattern": r"^(?=.*[0-9])(?=.*[a-z])(?!.*\.\.)[a-z0-9.]{4,6}$"}
    made, draw = prepare(schema), random.Random(0)
    for _ in range(10):
        value = json.loads(write(made.grammar, draw))
        assert (made.violation(value) is None) == bool(re.search(schema["pattern"], value))
    assert made.violation("a1..") is not None and made.violation("a1.b") is None


LEAVES = st.sampled_from(
    [True, {"type": "integer"}, {"type": "string"}, {"const": 1}, {"enum": ["a", None, 1.0]}]
    + [{"minimum": 1}, {"exclusiveMaximum": 2, "multipleOf": 0.5}, {"minLength": 1}, False]
    + [
        {"type": ["number", "null"]},
        {"pattern": "^a"},
        {"uniqueItems": True},
        {"$ref": "#/$defs/A"},
    ]
    + [
        {"maxItems": 1},
        {"required": ["a"]},
        {"maxProperties": 1},
        {"dependentRequired": {"a": ["b"]}},
    ]
)


def nested(leaves: Any, extend: Any) -> Any:
    """Values in which others are nested up to three deep."""
    made = leaves
    for _ in range(3):
        made = leaves | extend(made)
    return made


SCHEMAS = nested(
    LEAVES,
    lambda inner: (
        st.builds(
            lambda keyword, each: {keyword: each},
            st.sampled_from(
                ["items", "additionalProperties", "not", "contains", "propertyNames", "if"]
            ),
            inner,
        )
        | st.builds(
            lambda keyword, each: {keyword: each},
            st.sampled_from(["allOf", "anyOf", "oneOf", "prefixItems"]),
            st.lists(inner, min_size=1, max_size=3),
        )
        | st.builds(
            lambda a, b: {"properties": {"a": a}, "patternProperties": {"^b": b}}, inner, inner
        )
        | st.builds(
            lambda a, b, c: {"if": a, "then": b, "else": c, "dependentSchemas": {"a": c}},
            *(inner, inner, inner),
        )
        | st.builds(
            lambda a, b: {"contains": a, "minContains": 0, "maxContains": 1, "items": b},
            *(inner, inner),
        )
    ),
)
VALUES = nested(
    st.sampled_from([None, True, False, 0, 1, 1.0, 1.5, 2, "", "a", "ab", "b"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "bb", "c"]), inner, max_size=3)
    ),
)


@settings(database=None)
@given(schema=SCHEMAS, value=VALUES)
def test_the_check_of_a_whole_reply_agrees_with_jsonschema(schema: Any, value: Any) -> None:
    whole = {"allOf": [schema], "$defs": {"A": {"type": "array", "items": {"$ref": "#"}}}}
    expected = jsonschema.Draft202012Validator(whole).is_valid(value)
    assert (violation(whole, value) is None) == expected


def test_a_check_that_would_take_too_long_says_so() -> None:
    schema: dict[str, Any] = {"anyOf": [{"items": {"$ref": "#"}, "type": "array"}] * 30}
    assert violation(schema, [[[[1]]]]) is not None  # as many comparisons as places
    nested: Any = 1
    for _ in range(600):
        nested = [nested]
    with pytest.raises(CheckTooLong, match="too deeply"):
        violation(schema, nested)
    with pytest.raises(CheckTooLong, match="too long"):
        violation({"items": {"allOf": [{"minimum": i} for i in range(500)]}}, list(range(500, 999)))


@pytest.mark.parametrize(
    ("schema", "reply"),
    [
        ({"$ref": "#/$defs/A~1b", "$defs": {"A/b": {"const": 1}}}, "1"),
        ({"$ref": "#/$defs/A[int]", "$defs": {"A[int]": {"const": 1}}}, "1"),
        ({"$ref": "#/$defs/A%20b", "$defs": {"A b": {"const": 1}}}, "1"),
        ({"$ref": "#/definitions/A", "definitions": {"A": {"const": 1}}}, "1"),
        ({"$ref": "#/components/schemas/A", "components": {"schemas": {"A": {"const": 1}}}}, "1"),
        ({"$ref": "#here", "$defs": {"A": {"$anchor": "here", "const": 1}}}, "1"),
        ({"$ref": "a.json", "$defs": {"A": {"$id": "a.json", "const": 1}}}, "1"),
        ({"$id": "http://a/b", "$ref": "http://a/b#/$defs/A", "$defs": {"A": {"const": 1}}}, "1"),
        ({"$schema": "http://mine/", "allOf": [{"$ref": "#/x/0"}], "x": [{"const": 1}]}, "1"),
        ({"type": "array", "maxItems": 1, "items": {"anyOf": [{"$ref": "#"}, {"const": 1}]}}, None),
        ({"$ref": "#/$defs/A", "maxLength": 1, "$defs": {"A": {"enum": ["ab", "c"]}}}, '"c"'),
        ({"not": {}, "const": 1, "$defs": {"unused": {"$ref": "#/nowhere"}}}, ""),
    ],
)
def test_references_lead_to_their_definitions(schema: Any, reply: str | None) -> None:
    made = prepare(schema)
    if reply == "":
        assert made.grammar is False
        return
    written = write(made.grammar, random.Random(1))
    assert reply in (None, written)
    assert violation(schema, json.loads(written)) is None


REFUSED: list[tuple[Any, str, str]] = [
    ({"properties": {"a": {"unevaluatedItems": False}}}, "/properties/a/unevaluatedItems", "items"),
    ({"items": {"$dynamicRef": "#x"}}, "/items/$dynamicRef", r"\$ref"),
    ({"$ref": "#/$defs/No", "$defs": {"A": {}}}, "/$ref", r"#/\$defs/A"),
    ({"$ref": "http://elsewhere/x"}, "/$ref", "no part of this schema"),
    ({"anyOf": [{"format": "phone"}]}, "/anyOf/0/format", "'phone'.*date"),
    ({"properties": {"a/b": {"pattern": r"a(?!b)"}}}, "/properties/a~1b/pattern", r"\(\?!"),
    ({"pattern": r"(a)\1"}, "/pattern", "refers back"),
    ({"pattern": r"\bword"}, "/pattern", "look-around"),
    ({"pattern": r"^(?=a)b|c$"}, "/pattern", "alternatives"),
    ({"type": "STRING"}, "/type", "there is no type 'STRING'; the types are null"),
    ({"properties": []}, "/properties", "expected an object"),
    ({"anyOf": {}}, "/anyOf", "expected a list"),
    ({"minLength": "3"}, "/minLength", "expected a number"),
    ({"not": {"contains": 5}}, "/not/contains", "a schema is an object"),
]


@pytest.mark.parametrize(("schema", "at", "message"), REFUSED, ids=[at for _, at, _ in REFUSED])
def test_what_cannot_be_followed_is_named_with_its_place(
    schema: Any, at: str, message: str
) -> None:
    with pytest.raises(SchemaError, match=message) as caught:
        prepare(schema)
    assert caught.value.at == at


def _accepts(schema: Any) -> bool:
    """Whether llguidance takes a schema as it is."""
    return not LLMatcher(BYTES, LLMatcher.grammar_from_json_schema(json.dumps(schema))).is_error()


def test_the_documentation_lists_what_is_enforced_checked_and_refused() -> None:
    rows = {
        found[1]: set(re.findall(r"`([^`]+)`", found[2]))
        for found in re.finditer(r"^\| ([^|]+?) \| (.+) \|$", DOCS.read_text(), re.MULTILINE)
    }
    assert rows["keywords that the grammar enforces"] == set(prepared.ENFORCED)
    assert rows["keywords that are checked afterwards"] == set(prepared.CHECKED_LATER)
    assert rows["keywords that are refused"] == set(prepared.REFUSED)
    assert rows["formats that the grammar enforces"] == (
        set(strings.OF_LLGUIDANCE) | set(strings.PATTERNS)
    )
    assert rows["formats that allow every string"] == set(strings.FREE)


def test_llguidance_enforces_what_is_left_to_it_and_no_more() -> None:
    """An update that enforces more, or less, is noticed here."""
    for format in strings.OF_LLGUIDANCE:
        assert _accepts({"type": "string", "format": format})
    for format in set(strings.FREE) - {"unknown"}:
        assert not _accepts({"type": "string", "format": format})
    values: dict[str, Any] = {
        **dict.fromkeys(("not", "if", "then", "else", "contains", "propertyNames"), {}),
        **dict.fromkeys(("dependentRequired", "dependentSchemas", "dependencies"), {}),
        **dict.fromkeys(("minContains", "maxContains"), 1),
        **dict.fromkeys(prepared.REFUSED, "#"),
        "uniqueItems": True,
        "oneOf": [{"minimum": 1}, {"maximum": 2}],
        **dict.fromkeys(("minProperties", "maxProperties"), 2),
    }
    assert values.keys() == {*prepared.CHECKED_LATER, *prepared.REFUSED}
    for keyword, value in values.items():
        assert not _accepts({"properties": {"a": {}, "b": {}}, keyword: value}), keyword


# ---- with a server


@pytest.fixture(scope="module")
def served(chat_model: Callable[[str], LocalModel]) -> Iterator[Served]:
    with serving(chat_model(TOOL_TEMPLATE), budget=512) as served:
        yield served


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with served.client() as client:
        yield client
    served.idle()


ASKED: Any = {"model": "tiny", "messages": [{"role": "user", "content": "Go"}], "max_tokens": 200}


def function(name: str, parameters: Any) -> Any:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def test_functions_keep_to_definitions_of_their_own(client: openai.OpenAI) -> None:
    """Two functions whose definitions have the same name and say different things."""
    tools = [
        function(
            name,
            {
                "type": "object",
                "properties": {"it": {"$ref": "#/$defs/It"}},
                "required": ["it"],
                "additionalProperties": False,
                "$defs": {"It": {"$ref": "#/$defs/Its"}, "Its": {"enum": [name.upper()]}},
            },
        )
        for name in ("one", "two")
    ]
    called = set()
    for seed in range(8):
        answer = client.chat.completions.create(
            **ASKED, tools=tools, tool_choice="required", temperature=2, seed=seed
        )
        (call,) = answer.choices[0].message.tool_calls or ()
        assert call.type == "function"
        assert json.loads(call.function.arguments) == {"it": call.function.name.upper()}
        called.add(call.function.name)
    assert called == {"one", "two"}


def test_a_model_of_pydantic_is_a_function_and_a_format(client: openai.OpenAI) -> None:
    class Basket(BaseModel):
        first: Cat
        size: Size
        pair: tuple[Literal[1], Literal[2]]

    tool: Any = openai.pydantic_function_tool(Basket)
    asked = {**ASKED, "seed": 1}  # by chance, a reply may be cut off
    answer = client.chat.completions.parse(**asked, tools=[tool], tool_choice="required")
    (call,) = answer.choices[0].message.tool_calls or ()
    assert isinstance(call.function.parsed_arguments, Basket)
    parsed = client.chat.completions.parse(**asked, response_format=Basket)
    assert isinstance(parsed.choices[0].message.parsed, Basket)


TWICE: Any = {
    "type": "array",
    "items": {"const": 1},
    "minItems": 2,
    "maxItems": 2,
    "uniqueItems": True,
}
"""A schema that no reply follows, which only its end can tell."""


def test_a_reply_that_breaks_its_schema_is_an_error(client: openai.OpenAI) -> None:
    format: Any = {"type": "json_schema", "json_schema": {"name": "t", "schema": TWICE}}
    with pytest.raises(openai.UnprocessableEntityError, match="/1 is the same as /0") as caught:
        client.chat.completions.create(**ASKED, response_format=format)
    assert caught.value.code == "schema_violated"
    stream = client.chat.completions.create(**ASKED, response_format=format, stream=True)
    with pytest.raises(openai.APIError, match="/1 is the same as /0"):
        list(stream)
    tool = function("f", {"properties": {"a": TWICE}, "required": ["a"]})
    with pytest.raises(openai.UnprocessableEntityError, match="arguments of f .* /a/1 is"):
        client.chat.completions.create(**ASKED, tools=[tool], tool_choice="required")
    # a reply that its length has cut says so itself
    cut = client.chat.completions.create(**{**ASKED, "max_tokens": 2}, response_format=format)
    assert cut.choices[0].finish_reason == "length"


def test_a_schema_is_refused_before_anything_is_written(client: openai.OpenAI) -> None:
    tools = [function("f", {}), function("g", {"properties": {"a": {"unevaluatedItems": False}}})]
    with pytest.raises(openai.BadRequestError, match="unevaluatedItems") as caught:
        client.chat.completions.create(**ASKED, tools=tools, tool_choice="required")
    assert caught.value.param == "tools.1.function.parameters"
    with pytest.raises(openai.BadRequestError, match="arguments are an object; found 'string'"):
        client.chat.completions.create(
            **ASKED, tools=[function("f", {"type": "string"})], tool_choice="required"
        )


def test_a_function_without_parameters_is_called_with_none(client: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "function": {"name": "f"}}
    answer = client.chat.completions.create(**ASKED, tools=[tool], tool_choice="required")
    (call,) = answer.choices[0].message.tool_calls or ()
    assert call.type == "function" and call.function.arguments == "{}"
