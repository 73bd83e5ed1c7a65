"""Calls, the functions that they call, and the JSON objects that models write for them."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentkv.dialog.call_forms.arriving import Malformed
from agentkv.dialog.call_forms.values import whole_value


@dataclass(frozen=True, slots=True)
class Call:
    """A call that a model wrote."""

    name: str
    """Name of the function."""
    arguments: str
    """Arguments as JSON."""


@dataclass(frozen=True, slots=True)
class FunctionDeclaration:
    """A function that a model may call."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """JSON schema of the arguments."""


Functions = Mapping[str, FunctionDeclaration]
"""Functions by their names."""

ARGUMENTS = ("arguments", "parameters")
"""Members of a call's object that may hold the arguments."""
CALL_KEYS = frozenset({"name", "function", "type", "id", "index", *ARGUMENTS})
"""Members of a call's object. One without arguments has no others."""


def find_function(name: str, functions: Functions) -> FunctionDeclaration | None:
    """Return the function of a written name, which may have Kimi's additions
    (`functions.weather:0`); None if there is none."""
    name = name.strip()
    if name in functions:
        return functions[name]
    return functions.get(_ADDITIONS.sub("", name))


_ADDITIONS = re.compile(r"^functions\.|:[0-9]+$")


def call_with(function: FunctionDeclaration | None, arguments: Any) -> Call | None:
    """Return a call with arguments as a value: an object, an object's JSON in a string, or nothing.

    None if they are anything else, or there is no function.
    """
    if isinstance(arguments, str):
        try:
            arguments = whole_value(arguments) if arguments.strip() else {}
        except Malformed:
            return None
    if arguments is None or arguments == []:
        arguments = {}
    if function is None or not isinstance(arguments, dict):
        return None
    return Call(function.name, json.dumps(arguments))


def calls_in(values: Sequence[Any], functions: Functions) -> list[Call]:
    """Return the calls that objects and lists of objects describe; none if one describes no call
    of `functions`."""
    calls = []
    for value in values:
        for each in value if isinstance(value, list) else [value]:
            call = _call_in(each, functions)
            if call is None:
                return []
            calls.append(call)
    return calls


def _call_in(value: Any, functions: Functions) -> Call | None:
    """Return the call in an object with a name and arguments, also one level deeper, as in
    `{"type": "function", "function": {...}}`."""
    if not isinstance(value, dict):
        return None
    inner = value.get("function")
    if isinstance(inner, dict):
        value = inner
    name = value.get("name", inner)
    given = [value[key] for key in ARGUMENTS if key in value]
    if not isinstance(name, str) or (not given and not value.keys() <= CALL_KEYS):
        return None
    arguments = next((each for each in given if each not in (None, "")), None)
    return call_with(find_function(name, functions), arguments)
