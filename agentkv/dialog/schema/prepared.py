"""A JSON schema as a grammar of replies, and the keywords that only a finished reply can tell.

llguidance enforces most keywords token by token. Others become keywords that it knows, or are
checked when the reply is complete (`check`). What can be neither is refused by name.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from agentkv.dialog.schema.check import violation
from agentkv.dialog.schema.references import SchemaError, SchemaReferences, escaped, shown
from agentkv.dialog.schema.strings import (
    CHECKED,
    FREE,
    OF_LLGUIDANCE,
    PATTERNS,
    PatternError,
    split_pattern,
)

ENFORCED = (
    *("$ref", "type", "enum", "const", "allOf", "anyOf"),
    *("properties", "required", "additionalProperties", "patternProperties"),
    *("items", "prefixItems", "additionalItems", "minItems", "maxItems"),
    *("minLength", "maxLength", "pattern", "format"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
)
"""Keywords that the grammar enforces."""
CHECKED_LATER = (
    *("oneOf", "not", "if", "then", "else"),
    *("uniqueItems", "contains", "minContains", "maxContains"),
    *("propertyNames", "minProperties", "maxProperties"),
    *("dependentRequired", "dependentSchemas", "dependencies"),
)
"""Keywords that are checked when the reply is complete; the grammar enforces some of them where it
can: names and numbers of properties, items that differ, and one of several alternatives."""
REFUSED = {
    "$dynamicRef": "$ref",
    "$recursiveRef": "$ref",
    "unevaluatedItems": "items",
    "unevaluatedProperties": "additionalProperties",
}
"""Keywords that are refused, and what can be written instead."""

_AS_JSON_DUMPS = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": True,
}
"""White space of JSON in replies: as `json.dumps` writes it, on which models were trained. Free
white space would let a small model write nothing else."""

_MEMBERS = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies"})
_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SINGLE = frozenset(
    {"additionalProperties", "additionalItems", "contains", "else", "if", "not"}
    | {"propertyNames", "then"}
)
_TEXTS = frozenset({"pattern", "format"})
_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


@dataclass(frozen=True, slots=True)
class PreparedSchema:
    """A schema that replies can be made to follow."""

    source: Mapping[str, Any]
    grammar: Mapping[str, Any]
    """The schema that llguidance enforces."""
    is_checked_later: bool
    """True if a value of the grammar may still violate the schema."""

    def violation(self, value: Any) -> str | None:
        """Return how a finished value violates the schema; None if it follows it.

        Raises:
            CheckTooLong: it would take too long to say.
        """
        return violation(self.source, value) if self.is_checked_later else None


def prepare(schema: Mapping[str, Any], *, is_object: bool = False) -> PreparedSchema:
    """Prepare a schema for replies.

    Args:
        is_object: the value is an object even if the schema allows others, as arguments are.

    Raises:
        SchemaError: the schema is malformed, or has what can be neither enforced nor checked.
    """
    if is_object:
        schema = _for_objects(schema)
    preparation = _Preparation(schema)
    return PreparedSchema(schema, preparation.whole(), preparation.is_checked_later)


def rule_of(schema: Mapping[str, Any]) -> str:
    """Return the right side of a Lark rule (llguidance's dialect) for values of a schema, whose
    references are resolved within it wherever the rule is used."""
    whole = {**schema, "x-guidance": _AS_JSON_DUMPS}
    return f"%json {json.dumps(whole, ensure_ascii=False)}"


def _for_objects(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    type = schema.get("type", "object")
    if type != "object" and not (isinstance(type, list) and "object" in type):
        raise SchemaError("/type", f"arguments are an object; found {str(type)[:100]!r}")
    return {**schema, "type": "object"}


class _Preparation:
    """Prepares a schema and those that it refers to, which move to `$defs` under new names."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root, self._references = root, SchemaReferences(root)
        self._names: dict[str, str] = {}
        """Names of the definitions by the pointer to where they stand."""
        self._waiting: list[tuple[str, str, Any]] = []
        self._num_schemas = 0
        self._open: list[dict[str, Any]] = []
        """Objects as the grammar gets them, of which the schema leaves further members open."""
        self._merges = False
        """True if several schemas describe one object, none of which may close it."""
        self.is_checked_later = False

    def whole(self) -> dict[str, Any]:
        made: dict[str, Any] = self._schema(self._root, "")
        definitions = {}
        while self._waiting:
            name, at, found = self._waiting.pop()
            definitions[name] = self._schema(found, at)
        if not self._merges:
            for each in self._open:
                each["additionalProperties"] = False
        return {**made, "$defs": definitions} if definitions else made

    def _schema(self, schema: Any, at: str) -> Any:
        """Return the schema at the pointer `at` as the grammar gets it."""
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise SchemaError(at, f"a schema is an object, true or false; found {shown(schema)}")
        self._num_schemas += 1
        if self._num_schemas > _MOST_SCHEMAS:
            raise SchemaError(at, f"there are more than {_MOST_SCHEMAS} subschemas")
        made: dict[str, Any] = {}
        further: list[dict[str, Any]] = []
        for keyword, value in schema.items():
            here = f"{at}/{escaped(keyword)}"
            if keyword in REFUSED and value not in (True, {}):
                raise SchemaError(
                    here,
                    f"{keyword} can be neither enforced nor checked; use {REFUSED[keyword]}",
                )
            prepared = self._value(keyword, value, here)
            if keyword == "pattern":
                further += self._pattern(value, here)
            elif keyword == "format" and _may_be_text(schema):
                further += self._format(value, here)
            elif keyword in ENFORCED and keyword != "format":
                made[keyword] = prepared
            elif keyword in CHECKED_LATER:
                self.is_checked_later |= keyword != "uniqueItems" or value is True
                if keyword == "oneOf":
                    made[keyword] = prepared
        self._limit_items(schema, made)
        self._limit_numbers(schema, made)
        self._limit_names(schema, made)
        if schema.get("not") == {}:
            return False
        if len(further) == 1 and not further[0].keys() & made.keys():
            made |= further[0]
        elif further:
            made["allOf"] = [*made.get("allOf", ()), *further]
        self._leave_open(schema, made)
        return made

    def _leave_open(self, schema: Mapping[str, Any], made: dict[str, Any]) -> None:
        """Note whether a schema describes an object, and whether it does so beside others.

        Replies have the members that a schema names, unless it says what others are: a small model
        would invent members without end.
        """
        named = made.get("properties")
        self._merges |= len(schema.keys() & _DESCRIBING) + len(schema.get("allOf", ())) > 1
        is_plain = not schema.keys() & {*_DESCRIBING - {"properties"}, *_ABOUT_OTHERS}
        if isinstance(named, dict) and is_plain and named.keys() >= set(schema.get("required", ())):
            self._open.append(made)

    def _value(self, keyword: str, value: Any, at: str) -> Any:
        """Return the value of a keyword as the grammar gets it, after a look at its form."""
        if keyword in _MEMBERS:
            _require(value, Mapping, "an object", at)
            return {
                name: each
                if keyword == "dependencies" and isinstance(each, list)
                else self._schema(each, f"{at}/{escaped(name)}")
                for name, each in value.items()
            }
        if keyword in _LISTS or (keyword == "items" and isinstance(value, list)):
            _require(value, list, "a list", at)
            return [self._schema(each, f"{at}/{i}") for i, each in enumerate(value)]
        if keyword in _SINGLE or keyword == "items":
            return self._schema(value, at)
        if keyword == "$ref":
            return self._reference(value, at)
        if keyword in _TEXTS:
            _require(value, str, "text", at)
        elif keyword in ("enum", "required"):
            _require(value, list, "a list", at)
        elif keyword == "type":
            names = value if isinstance(value, list) else [value]
            if wrong := [name for name in names if name not in _TYPES]:
                raise SchemaError(
                    at, f"there is no type {shown(wrong[0])}; the types are {', '.join(_TYPES)}"
                )
        elif keyword in _NUMBERS and not isinstance(value, int | float):
            raise SchemaError(at, f"expected a number; found {shown(value)}")
        elif keyword == "dependentRequired":
            _require(value, Mapping, "an object of lists", at)
            for name, each in value.items():
                _require(each, list, "a list", f"{at}/{escaped(name)}")
        return value

    def _reference(self, reference: Any, at: str) -> str:
        pointer, target = self._references.find(reference, at)
        if not pointer:
            return "#"
        if pointer not in self._names:
            name = self._names[pointer] = str(len(self._names))
            self._waiting.append((name, pointer, target))
        return f"#/$defs/{self._names[pointer]}"

    def _pattern(self, pattern: str, at: str) -> list[dict[str, Any]]:
        """Return schemas that stand for a pattern."""
        try:
            wanted, unwanted = split_pattern(pattern)
        except PatternError as error:
            raise SchemaError(at, f"the pattern {shown(pattern)} is not known: {error}") from None
        self.is_checked_later |= bool(unwanted)
        return [{"pattern": each} for each in wanted]

    def _format(self, format: str, at: str) -> list[dict[str, Any]]:
        """Return schemas that stand for a format of strings."""
        self.is_checked_later |= format in CHECKED
        if format in PATTERNS:
            return [{"pattern": PATTERNS[format]}]
        if format in OF_LLGUIDANCE:
            return [{"format": format}]
        if format in FREE:
            return []
        known = sorted({*OF_LLGUIDANCE, *PATTERNS, *FREE})
        raise SchemaError(
            at,
            f"there is no format {shown(format)} here; leave it out, write a pattern, or one of "
            f"{', '.join(known)}",
        )

    def _limit_items(self, schema: Mapping[str, Any], made: dict[str, Any]) -> None:
        """Let the grammar enforce that items differ where their values are enumerated and few."""
        if schema.get("uniqueItems") is not True or schema.get("type") != "array":
            return
        values = self._enumerated(schema.get("items"))
        if values is None or not made.keys() <= {"type", "items", "minItems", "maxItems"}:
            return
        least, most = schema.get("minItems", 0), schema.get("maxItems", len(values))
        made["maxItems"] = most = min(most, len(values))
        if len(values) <= _MOST_LISTED:
            made.clear()
            made["enum"] = [
                list(items)
                for size in range(least, most + 1)
                for items in permutations(values, size)
            ]

    def _enumerated(self, schema: Any) -> list[Any] | None:
        """Return the values that a schema enumerates; None if it does not."""
        if isinstance(schema, Mapping) and "$ref" in schema:
            schema = self._references.find(schema["$ref"], "")[1]
        if not isinstance(schema, Mapping):
            return None
        limits = {key for key in schema if key in (*ENFORCED, *CHECKED_LATER)} - {"type"}
        if limits == {"enum"}:
            return list(
                {json.dumps(each, sort_keys=True): each for each in schema["enum"]}.values()
            )
        is_boolean = not limits and schema.get("type") == "boolean"
        return [False, True] if is_boolean else None

    def _limit_numbers(self, schema: Mapping[str, Any], made: dict[str, Any]) -> None:
        """Let the grammar enforce limits of the number of properties where llguidance can."""
        limits = {key: schema[key] for key in ("minProperties", "maxProperties") if key in schema}
        is_each_required = set(schema.get("properties", ())) <= set(schema.get("required", ()))
        is_any_required = limits == {"minProperties": 1} and (
            schema.get("additionalProperties") is False
        )
        if is_each_required or is_any_required:
            made |= limits

    def _limit_names(self, schema: Mapping[str, Any], made: dict[str, Any]) -> None:
        """Let the grammar enforce names of properties where they are enumerated, or have one
        pattern."""
        names = schema.get("propertyNames")
        if isinstance(names, Mapping) and "$ref" in names:
            names = self._references.find(names["$ref"], "")[1]
        if not isinstance(names, Mapping) or "patternProperties" in made:
            return
        others = made.get("additionalProperties", True)
        allowed = [names["const"]] if "const" in names else names.get("enum")
        if isinstance(allowed, list):
            given = made.get("properties", {})
            made["properties"] = {
                **{name: each for name, each in given.items() if name in allowed},
                **{name: others for name in allowed if isinstance(name, str) and name not in given},
            }
            made["additionalProperties"] = False
        elif pattern := _pattern_of_names(names):
            made["patternProperties"] = {pattern: others}
            made["additionalProperties"] = False


_DESCRIBING = frozenset({"properties", "anyOf", "oneOf", "$ref", "if"})
"""Keywords that may describe the members of an object, beside `allOf`."""
_ABOUT_OTHERS = frozenset(
    {"additionalProperties", "patternProperties", "propertyNames", "minProperties", "not"}
    | {"maxProperties", "dependentRequired", "dependentSchemas", "dependencies", "allOf"}
)
"""Keywords that may be about members that `properties` does not name."""
_MOST_LISTED = 5
"""Values whose 326 orders are listed (our choice); more may come twice, which is checked later."""
_MOST_SCHEMAS = 50_000
"""As many as llguidance takes."""
_NUMBERS = frozenset(
    {"minItems", "maxItems", "minLength", "maxLength", "minContains", "maxContains"}
    | {"minProperties", "maxProperties", "multipleOf"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
)


def _pattern_of_names(names: Mapping[str, Any]) -> str | None:
    """Return a pattern of exactly the names that a schema allows; None where there is none."""
    limits = {key: value for key, value in names.items() if key in (*ENFORCED, *CHECKED_LATER)}
    limits.pop("type", None)
    match limits:
        case {"pattern": str(pattern)} if len(limits) == 1:
            wanted, unwanted = split_pattern(pattern)
            return wanted[0] if len(wanted) == 1 and not unwanted else None
        case {"format": str(format)} if len(limits) == 1:
            return _UUID if format == "uuid" else PATTERNS.get(format)
        case {"minLength": int()} | {"maxLength": int()} if limits.keys() <= _LENGTHS:
            least, most = limits.get("minLength", 0), limits.get("maxLength", "")
            return f"^(?s:.{{{least},{most}}})$"
    return None


_LENGTHS = {"minLength", "maxLength"}
_UUID = "^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$"


def _may_be_text(schema: Mapping[str, Any]) -> bool:
    types = schema.get("type", "string")
    return "string" in (types if isinstance(types, list) else [types])


def _require(value: Any, kind: Any, name: str, at: str) -> None:
    if not isinstance(value, kind):
        raise SchemaError(at, f"expected {name}; found {shown(value)}")
