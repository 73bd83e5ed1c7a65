"""Values of arguments that a model wrote as mere text, by the schema of their function.

Text is what it says where the schema allows only strings. Where it allows no string, the text is
the value that it spells. Where both are possible, or the schema names no type, JSON of a type other
than string is that value, and all else is the text.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from agentkv.dialog.call_forms.arriving import Malformed
from agentkv.dialog.call_forms.call import FunctionDeclaration
from agentkv.dialog.call_forms.values import whole_value
from agentkv.dialog.schema.references import SchemaError, SchemaReferences

Types = frozenset[str]
_ALL: Types = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
_TYPES: Mapping[type, Types] = {
    type(None): frozenset({"null"}),
    bool: frozenset({"boolean"}),
    int: frozenset({"integer", "number"}),
    float: frozenset({"integer", "number"}),
    str: frozenset({"string"}),
    list: frozenset({"array"}),
    dict: frozenset({"object"}),
}
_MAX_DEPTH = 50
"""Schemas in schemas that are looked into (our choice)."""


def typed_value(text: str, function: FunctionDeclaration | None, name: str) -> Any:
    """Return the value that `text` means as the argument `name`."""
    allowed = _ALL if function is None else _types_of_argument(function.parameters, name)
    if allowed == {"string"}:
        return text
    try:
        value = whole_value(text)
    except Malformed:
        return text
    if "string" in allowed and not (_types_of(value) & (allowed - {"string"}) and _is_json(text)):
        return text
    return value


def _is_json(text: str) -> bool:
    try:
        json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return False
    return True


def _types_of(value: Any) -> Types:
    if isinstance(value, float) and not value.is_integer():
        return frozenset({"number"})
    return _TYPES.get(type(value), _ALL)


def _types_of_argument(parameters: Mapping[str, Any], name: str) -> Types:
    """Return the types that a schema of arguments allows for one of them."""
    schemas = _Schemas(parameters)
    found = [schemas.types(each) for each in schemas.of_member(parameters, name)]
    return frozenset().union(*found) or _ALL


class _Schemas:
    """Reads a JSON schema with its references; each part is looked at once, to a limited depth."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._references = SchemaReferences(root)
        self._types: dict[int, Types] = {}
        self._members: set[int] = set()

    def of_member(self, schema: Any, name: str, depth: int = 0) -> Iterator[Any]:
        """Yield the schemas that an object's schema has for one of its members."""
        if not isinstance(schema, Mapping) or id(schema) in self._members or depth > _MAX_DEPTH:
            return
        self._members.add(id(schema))
        properties = schema.get("properties")
        if isinstance(properties, Mapping) and name in properties:
            yield properties[name]
        elif isinstance(schema.get("additionalProperties"), Mapping):
            yield schema["additionalProperties"]
        for part in (*self._parts(schema, "allOf", "anyOf", "oneOf"), *self._target(schema)):
            yield from self.of_member(part, name, depth + 1)

    def types(self, schema: Any, depth: int = 0) -> Types:
        """Return the types that a schema allows."""
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return _ALL
        if id(schema) not in self._types:
            self._types[id(schema)] = _ALL  # for schemas that contain themselves
            self._types[id(schema)] = self._find_types(schema, depth + 1)
        return self._types[id(schema)]

    def _find_types(self, schema: Mapping[str, Any], depth: int) -> Types:
        types = _ALL
        named = schema.get("type")
        if named is not None:
            names = frozenset(each for each in _as_list(named) if isinstance(each, str))
            types &= names | ({"integer"} if "number" in names else frozenset())
            if schema.get("nullable") is True:
                types |= {"null"}
        if isinstance(schema.get("enum"), list):
            types &= frozenset().union(*map(_types_of, schema["enum"]))
        if "const" in schema:
            types &= _types_of(schema["const"])
        for part in (*self._parts(schema, "allOf"), *self._target(schema)):
            types &= self.types(part, depth)
        for keyword in ("anyOf", "oneOf"):
            if parts := self._parts(schema, keyword):
                types &= frozenset().union(*(self.types(part, depth) for part in parts))
        return types or _ALL

    @staticmethod
    def _parts(schema: Mapping[str, Any], *keywords: str) -> list[Any]:
        return [part for keyword in keywords for part in _as_list(schema.get(keyword, []))]

    def _target(self, schema: Mapping[str, Any]) -> list[Any]:
        """Return the schema that a reference names, in a list; an empty one without it."""
        try:
            return [self._references.find(schema["$ref"], "")[1]] if "$ref" in schema else []
        except SchemaError:
            return []


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
