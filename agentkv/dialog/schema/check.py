"""Whether a finished value follows a JSON schema, keyword by keyword."""

import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from agentkv.dialog.schema.references import SchemaReferences, escaped
from agentkv.dialog.schema.strings import StringTests

_MOST_STEPS = 200_000
"""Subschemas that are compared with values before a check is given up (our choice: a second)."""


class CheckTooLong(RuntimeError):
    """Comparing a schema and a value takes more than `_MOST_STEPS`."""


def violation(schema: Mapping[str, Any], value: Any) -> str | None:
    """Return how and where `value` violates `schema`; None if it follows it.

    Annotations and unknown keywords are ignored.

    Raises:
        CheckTooLong: it would take too long.
        SchemaError: a reference leads nowhere.
    """
    try:
        return _Check(schema).first(schema, value, "")
    except RecursionError:
        raise CheckTooLong("the reply is nested too deeply to be compared") from None


class _Check:
    """One comparison of a value with a schema."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._references = SchemaReferences(root)
        self._strings = StringTests()
        self._num_steps = 0
        self._known: dict[tuple[int, str], str | None] = {}
        """What is known of a subschema, by its id, at a place in the value."""

    def first(self, schema: Any, value: Any, at: str) -> str | None:
        """Return the first violation in the value at the pointer `at`."""
        if isinstance(schema, bool):
            return None if schema else f"{at or 'the value'} is not allowed"
        pair = (id(schema), at)
        if pair not in self._known:
            self._num_steps += 1
            if self._num_steps > _MOST_STEPS:
                raise CheckTooLong("the reply and its schema take too long to compare")
            self._known[pair] = None  # a reference that comes back to itself asks for nothing more
            self._known[pair] = next(self._all(schema, value, at), None)
        return self._known[pair]

    def holds(self, schema: Any, value: Any, at: str) -> bool:
        return self.first(schema, value, at) is None

    def _all(self, schema: Mapping[str, Any], value: Any, at: str) -> Iterator[str]:
        for keyword, wanted in schema.items():
            if keyword == "$ref":
                _, target = self._references.find(wanted, "")
                found = self.first(target, value, at)
            else:
                found = _KEYWORDS.get(keyword, _ignored)(self, wanted, value, at, schema)
            if found is not None:
                yield found

    # ---- one method per keyword; each ignores values of types that it says nothing about

    def type(self, wanted: Any, value: Any, at: str, schema: Any) -> str | None:
        names = wanted if isinstance(wanted, list) else [wanted]
        if any(_TYPES.get(name, _never)(value) for name in names):
            return None
        return f"{at or 'the value'} is no {' or '.join(map(str, names))}"

    def enum(self, wanted: Any, value: Any, at: str, schema: Any) -> str | None:
        if _key(value) in map(_key, wanted):
            return None
        return f"{at or 'the value'} is none of the allowed values"

    def const(self, wanted: Any, value: Any, at: str, schema: Any) -> str | None:
        return self.enum([wanted], value, at, schema)

    def all_of(self, wanted: Any, value: Any, at: str, schema: Any) -> str | None:
        return next((found for each in wanted if (found := self.first(each, value, at))), None)

    def any_of(self, wanted: Any, value: Any, at: str, schema: Any) -> str | None:
        found = [self.first(each, value, at) for each in wanted]
        return found[0] if found and None not in found else None

    def one_of(self, wanted: Any, value: Any, at: str, schema: Any) -> str | None:
        found = [self.first(each, value, at) for each in wanted]
        if found.count(None) > 1:
            numbers = " and ".join(str(i) for i, each in enumerate(found) if each is None)
            return f"{at or 'the value'} follows several alternatives: {numbers} (oneOf)"
        return found[0] if found and None not in found else None

    def not_(self, wanted: Any, value: Any, at: str, schema: Any) -> str | None:
        return f"{at or 'the value'} is excluded (not)" if self.holds(wanted, value, at) else None

    def if_(self, wanted: Any, value: Any, at: str, schema: Any) -> str | None:
        branch = schema.get("then" if self.holds(wanted, value, at) else "else", True)
        return self.first(branch, value, at)

    def properties(self, wanted: Any, value: Any, at: str, schema: Any) -> str | None:
        members = [] if not isinstance(value, dict) else [name for name in wanted if name in value]
        return self._members(((name, wanted[name]) for name in members), value, at)

    def pattern_properties(self, wanted: Any, value: Any, at: str, schema: Any) -> str | None:
        members = (
            (name, each)
            for name in (value if isinstance(value, dict) else ())
            for pattern, each in wanted.items()
            if self._strings.matches(pattern, name)
        )
        return self._members(members, value, at)

    def additional_properties(self, wanted: Any, value: Any, at: str, schema: Any) -> str | None:
        if not isinstance(value, dict):
            return None
        patterns = schema.get("patternProperties", ())
        others = (
            (name, wanted)
            for name in value
            if name not in schema.get("properties", ())
            and not any(self._strings.matches(pattern, name) for pattern in patterns)
        )
        return self._members(others, value, at)

    def _members(self, members: Iterator[tuple[str, Any]], value: Any, at: str) -> str | None:
        checked = (self.first(each, value[name], f"{at}/{escaped(name)}") for name, each in members)
        return next((found for found in checked if found), None)

    def property_names(self, wanted: Any, value: Any, at: str, schema: Any) -> str | None:
        names = value if isinstance(value, dict) else ()
        wrong = next(
            (
                name
                for name in names
                if not self.holds(wanted, name, f"{at}/{escaped(name)} (name)")
            ),
            None,
        )
        return None if wrong is None else f"{at}/{escaped(wrong)} has a wrong name (propertyNames)"

    def required(self, wanted: Any, value: Any, at: str, schema: Any) -> str | None:
        if not isinstance(value, dict):
            return None
        missing = next((name for name in wanted if name not in value), None)
        return None if missing is None else f"{at or 'the value'} lacks {missing!r}"

    def dependent_required(self, wanted: Any, value: Any, at: str, schema: Any) -> str | None:
        given = [name for name in wanted if isinstance(value, dict) and name in value]
        checked = (self.required(wanted[name], value, at, schema) for name in given)
        return next((found for found in checked if found), None)

    def dependent_schemas(self, wanted: Any, value: Any, at: str, schema: Any) -> str | None:
        given = [name for name in wanted if isinstance(value, dict) and name in value]
        return self.all_of([wanted[name] for name in given], value, at, schema)

    def dependencies(self, wanted: Any, value: Any, at: str, schema: Any) -> str | None:
        lists = {name: each for name, each in wanted.items() if isinstance(each, list)}
        others = {name: each for name, each in wanted.items() if name not in lists}
        return self.dependent_required(lists, value, at, schema) or self.dependent_schemas(
            others, value, at, schema
        )

    def items(self, wanted: Any, value: Any, at: str, schema: Any) -> str | None:
        if not isinstance(value, list):
            return None
        if isinstance(wanted, list):
            return self._items(wanted, value, at) or self._rest(
                schema.get("additionalItems", True), len(wanted), value, at
            )
        return self._rest(wanted, len(schema.get("prefixItems", ())), value, at)

    def prefix_items(self, wanted: Any, value: Any, at: str, schema: Any) -> str | None:
        return self._items(wanted, value, at) if isinstance(value, list) else None

    def _items(self, wanted: list[Any], value: list[Any], at: str) -> str | None:
        pairs = enumerate(zip(wanted, value, strict=False))
        checked = (self.first(each, item, f"{at}/{i}") for i, (each, item) in pairs)
        return next((found for found in checked if found), None)

    def _rest(self, wanted: Any, start: int, value: list[Any], at: str) -> str | None:
        rest = enumerate(value[start:], start)
        checked = (self.first(wanted, item, f"{at}/{i}") for i, item in rest)
        return next((found for found in checked if found), None)

    def contains(self, wanted: Any, value: Any, at: str, schema: Any) -> str | None:
        if not isinstance(value, list):
            return None
        count = sum(self.holds(wanted, item, f"{at}/{i}") for i, item in enumerate(value))
        least, most = schema.get("minContains", 1), schema.get("maxContains", count)
        if least <= count <= most:
            return None
        return f"{at or 'the value'} has {count} of the items that it must contain (contains)"

    def unique_items(self, wanted: Any, value: Any, at: str, schema: Any) -> str | None:
        if not wanted or not isinstance(value, list):
            return None
        seen: dict[Any, int] = {}
        for i, item in enumerate(value):
            if (first := seen.setdefault(_key(item), i)) != i:
                return f"{at}/{i} is the same as {at}/{first} (uniqueItems)"
        return None

    def pattern(self, wanted: Any, value: Any, at: str, schema: Any) -> str | None:
        if not isinstance(value, str) or self._strings.matches(wanted, value):
            return None
        return f"{at or 'the value'} does not match its pattern"

    def format(self, wanted: Any, value: Any, at: str, schema: Any) -> str | None:
        if not isinstance(value, str) or self._strings.has_format(wanted, value):
            return None
        return f"{at or 'the value'} does not have the format {wanted!r}"


def _bound(holds: Callable[[Any, Any], bool], of: Callable[[Any], Any], name: str) -> Any:
    """Return the check of a keyword that compares the size of a value with a number."""

    def check(check: _Check, wanted: Any, value: Any, at: str, schema: Any) -> str | None:
        if isinstance(wanted, bool) or (size := of(value)) is None or holds(size, wanted):
            return None
        return f"{at or 'the value'} is not within its {name} of {wanted}"

    return check


def _number(value: Any) -> Any:
    return value if _TYPES["number"](value) else None


def _is_multiple(value: Any, of: Any) -> bool:
    try:
        return not of or Decimal(str(value)) % Decimal(str(of)) == 0
    except InvalidOperation:
        return True  # more digits than are compared


def _length_of(
    kind: type[str] | type[list[Any]] | type[dict[str, Any]],
) -> Callable[[Any], int | None]:
    return lambda value: len(value) if isinstance(value, kind) else None


def _never(value: Any) -> bool:
    return False


def _ignored(check: _Check, wanted: Any, value: Any, at: str, schema: Any) -> None:
    return None


def _key(value: Any) -> Any:
    """Return a hashable value that is equal for equal JSON values, in which 1 is 1.0 and not
    true."""
    match value:
        case bool() | None:
            return ("constant", value)
        case list():
            return ("array", tuple(map(_key, value)))
        case dict():
            return ("object", frozenset((name, _key(each)) for name, each in value.items()))
        case _:
            return value


_TYPES: dict[Any, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: (
        not isinstance(value, bool)
        and (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))
    ),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
_NAMES = {"not": "not_", "if": "if_"}
_METHODS = (
    *("type", "enum", "const", "allOf", "anyOf", "oneOf", "not", "if", "properties"),
    *("patternProperties", "additionalProperties", "propertyNames", "required"),
    *("dependentRequired", "dependentSchemas", "dependencies", "items", "prefixItems"),
    *("contains", "uniqueItems", "pattern", "format"),
)
_KEYWORDS: dict[str, Any] = {
    keyword: getattr(
        _Check, _NAMES.get(keyword, re.sub("[A-Z]", lambda c: f"_{c[0].lower()}", keyword))
    )
    for keyword in _METHODS
} | {
    "minimum": _bound(lambda size, wanted: size >= wanted, _number, "minimum"),
    "maximum": _bound(lambda size, wanted: size <= wanted, _number, "maximum"),
    "exclusiveMinimum": _bound(lambda size, wanted: size > wanted, _number, "exclusiveMinimum"),
    "exclusiveMaximum": _bound(lambda size, wanted: size < wanted, _number, "exclusiveMaximum"),
    "multipleOf": _bound(_is_multiple, _number, "multipleOf"),
    "minLength": _bound(lambda size, wanted: size >= wanted, _length_of(str), "minLength"),
    "maxLength": _bound(lambda size, wanted: size <= wanted, _length_of(str), "maxLength"),
    "minItems": _bound(lambda size, wanted: size >= wanted, _length_of(list), "minItems"),
    "maxItems": _bound(lambda size, wanted: size <= wanted, _length_of(list), "maxItems"),
    "minProperties": _bound(lambda size, wanted: size >= wanted, _length_of(dict), "minProperties"),
    "maxProperties": _bound(lambda size, wanted: size <= wanted, _length_of(dict), "maxProperties"),
}
