"""Calls without delimiters: Llama's JSON object and its calls in Python, and GLM-4's lines.

    {"name": "weather", "parameters": {"city": "Rome"}}

    [weather(city="Rome"), weather(city="Oslo")]

    weather
    {"city": "Rome"}

Only where they stand, and that they call a function by its name, tells them from text.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from agentkv.dialog.call_forms.arriving import ArrivingText, Malformed, Waits
from agentkv.dialog.call_forms.call import (
    CALL_KEYS,
    Call,
    Functions,
    call_with,
    calls_in,
    find_function,
)
from agentkv.dialog.call_forms.form import (
    BETWEEN,
    FENCE,
    FoundCalls,
    Place,
    read_calls,
    skip_fence,
    skip_mark,
)
from agentkv.dialog.call_forms.values import read_object, read_value

_CODE, _END_CODE = ("<|python_tag|>", "<|python_start|>"), "<|python_end|>"
"""Tokens of Llama 3 and 4 before code, and the latter's after it."""
_NAME = re.compile(r"[^\s()\[\]{},;=\"']*")


@dataclass(frozen=True, slots=True)
class BareForm:
    """Calls without delimiters, also in a code fence that begins the reply."""

    place: Place = "start"
    """Where they begin."""
    end: str = ""

    @property
    def tokens(self) -> Collection[str]:
        """Llama's tokens around code."""
        return (*_CODE, _END_CODE)

    def marks(self, functions: Functions) -> Mapping[str, Place]:
        """Return brackets, and names on lines of their own; see `Form`."""
        lines: dict[str, Place] = {f"{name}\n": "start" for name in functions}
        return {
            "{": self.place,
            "[": self.place,
            FENCE: "start",
            **dict.fromkeys(_CODE, "anywhere"),
            **lines,
        }

    def read(self, text: ArrivingText, at: int, functions: Functions) -> Waits[FoundCalls]:
        """Read calls that follow one another; see `Form`."""
        code = yield from text.starts(_CODE, at)
        at = yield from text.skip_space(at + len(code))
        at = yield from skip_fence(text, at)
        char = yield from text.char(at)
        calls: list[Call] = []
        if char == "{" or (char == "[" and (yield from _holds_objects(text, at))):
            yield from _require_call(text, at, functions)
            found = yield from read_calls(text, at, functions)
            calls, at = list(found.calls), found.end
        elif char == "[":
            calls, at = yield from _read_python(text, at + 1, functions)
            at = yield from text.skip_space(at)
            if (yield from text.char(at)) != "]":
                raise Malformed(at)
            at += 1
        elif code:
            calls, at = yield from _read_python(text, at, functions)
        else:
            call, at = yield from _read_line(text, at, functions)
            calls = [] if call is None else [call]
        at = yield from skip_mark(text, at, ";")
        return FoundCalls(calls, (yield from skip_mark(text, at, _END_CODE if code else FENCE)))


def _holds_objects(text: ArrivingText, at: int) -> Waits[bool]:
    at = yield from text.skip_space(at + 1)
    return (yield from text.char(at)) == "{"


def _require_call(text: ArrivingText, at: int, functions: Functions) -> Waits[None]:
    """Raise Malformed as soon as the first object of JSON can be no call."""
    if (yield from text.char(at)) == "[":
        at = yield from text.skip_space(at + 1)
    value, end = yield from read_object(text, at, first_keys=CALL_KEYS)
    if not calls_in([value], functions):
        raise Malformed(end)


def _read_line(text: ArrivingText, at: int, functions: Functions) -> Waits[tuple[Call | None, int]]:
    """Read a name and JSON on the lines after it."""
    start, at = at, (yield from text.skip(_NAME, at))
    function = find_function(text.text[start:at], functions)
    at = yield from text.skip_space(at)
    if function is None:
        raise Malformed(at)
    arguments, at = yield from read_object(text, at)
    return call_with(function, arguments), at


def _read_python(
    text: ArrivingText, at: int, functions: Functions
) -> Waits[tuple[list[Call], int]]:
    """Read calls in Python with named arguments, such as `weather(city="Rome")`."""
    calls: list[Call] = []
    end = at
    while True:
        at = yield from text.skip(BETWEEN, at)
        start, at = at, (yield from text.skip(_NAME, at))
        function = find_function(text.text[start:at].removesuffix(".call"), functions)
        if function is None and calls:
            return calls, end
        if function is None or (yield from text.char(at)) != "(":
            raise Malformed(at)
        arguments: dict[str, Any] = {}
        at = yield from text.skip_space(at + 1)
        while (yield from text.char(at)) != ")":
            start, at = at, (yield from text.skip(_NAME, at))
            name = text.text[start:at]
            at = yield from text.skip_space(at)
            if not name or (yield from text.char(at)) != "=":
                raise Malformed(at)
            at = yield from text.skip_space(at + 1)
            arguments[name], at = yield from read_value(text, at)
            at = yield from text.skip_space(at)
            char = yield from text.char(at)
            if char == ",":
                at = yield from text.skip_space(at + 1)
            elif char != ")":
                raise Malformed(at)
        end = at = at + 1
        call = call_with(function, arguments)
        assert call is not None
        calls.append(call)
