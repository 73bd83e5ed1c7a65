"""Calls between tags: JSON as Hermes and Qwen write it, and the tags of Qwen3-Coder and GLM.

    <tool_call>
    {"name": "weather", "arguments": {"city": "Rome"}}
    </tool_call>

    <tool_call>
    <function=weather>
    <parameter=city>
    Rome
    </parameter>
    </function>
    </tool_call>

    <tool_call>weather
    <arg_key>city</arg_key>
    <arg_value>Rome</arg_value>
    </tool_call>

Some models leave out the outer tags of the second one, or write JSON into it in place of
parameters, as Llama 3.1 does.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from agentkv.dialog.call_forms.arriving import ArrivingText, Malformed, Waits
from agentkv.dialog.call_forms.call import Call, Functions, call_with, find_function
from agentkv.dialog.call_forms.form import (
    FENCE,
    FoundCalls,
    Place,
    read_calls,
    skip_fence,
    skip_mark,
)
from agentkv.dialog.call_forms.typed import typed_value
from agentkv.dialog.call_forms.values import read_object

_FUNCTION, _END_FUNCTION = "<function=", "</function>"
_PARAMETER, _END_PARAMETER = "<parameter=", "</parameter>"
_KEY, _END_KEY = "<arg_key>", "</arg_key>"
_VALUE, _END_VALUE = "<arg_value>", "</arg_value>"
_NAME = re.compile(r"[^>\n]*")
_BARE_NAME = re.compile(r"[^<{\n]*")
_LEFT_OVER = re.compile(r"[\s,;}\]]*")
"""What may stand between a call and its closing tag; small models close too many brackets."""


@dataclass(frozen=True, slots=True)
class TagForm:
    """Calls between tags."""

    begin: str = "<tool_call>"
    end: str = "</tool_call>"
    has_lines: bool = True
    """True if the text of a parameter stands on lines of its own."""

    @property
    def tokens(self) -> Collection[str]:
        """The outer tags."""
        return (self.begin, self.end)

    def marks(self, functions: Functions) -> Mapping[str, Place]:
        """Return the opening tags; see `Form`."""
        return {self.begin: "anywhere", _FUNCTION: "anywhere"}

    def read(self, text: ArrivingText, at: int, functions: Functions) -> Waits[FoundCalls]:
        """Read the calls in one outer tag; see `Form`."""
        is_open = bool((yield from text.starts((self.begin,), at)))
        at = yield from text.skip_space(at + len(self.begin) if is_open else at)
        at = yield from skip_fence(text, at)
        match (yield from text.starts((_FUNCTION, "{", "["), at)):
            case "":
                call, at = yield from self._read_named(text, at, functions)
                calls = [] if call is None else [call]
            case mark if mark == _FUNCTION:
                calls, at = yield from self._read_functions(text, at, functions)
            case _:
                found = yield from read_calls(text, at, functions)
                calls, at = list(found.calls), found.end
        at = yield from skip_mark(text, at, FENCE)
        after = yield from text.skip(_LEFT_OVER, at)
        if (yield from text.starts((self.end,), after)):
            at = after + len(self.end)
        return FoundCalls(calls, at)

    def _read_functions(
        self, text: ArrivingText, at: int, functions: Functions
    ) -> Waits[tuple[list[Call], int]]:
        """Read calls in Qwen3-Coder's tags that follow one another."""
        calls = []
        while True:
            call, end = yield from self._read_function(text, at + len(_FUNCTION), functions)
            calls.append(call)
            at = yield from text.skip_space(end)
            if not (yield from text.starts((_FUNCTION,), at)):
                return [] if None in calls else [each for each in calls if each], end

    def _read_function(
        self, text: ArrivingText, at: int, functions: Functions
    ) -> Waits[tuple[Call | None, int]]:
        name, at = yield from _read_name(text, at)
        function = find_function(name, functions)
        arguments: dict[str, Any] = {}
        at = yield from text.skip_space(at)
        if (yield from text.char(at)) == "{":
            arguments, at = yield from read_object(text, at)
        while True:
            at = yield from text.skip_space(at)
            match (yield from text.starts((_PARAMETER, _END_FUNCTION, self.end), at)):
                case mark if mark == _PARAMETER:
                    key, at = yield from _read_name(text, at + len(_PARAMETER))
                    closings = {
                        _END_PARAMETER: (_PARAMETER, _END_FUNCTION, self.end),
                        _END_FUNCTION: (_FUNCTION, self.begin, self.end),
                    }
                    start, at = at, (yield from _find_end(text, at, closings))
                    value = text.text[start:at]
                    if self.has_lines:
                        value = value.removeprefix("\n").removesuffix("\n")
                    arguments[key] = typed_value(value, function, key)
                    at = yield from skip_mark(text, at, _END_PARAMETER)
                case "" if not text.is_finished(at):
                    raise Malformed(at)
                case mark:
                    at += len(mark) if mark == _END_FUNCTION else 0
                    return call_with(function, arguments), at

    def _read_named(
        self, text: ArrivingText, at: int, functions: Functions
    ) -> Waits[tuple[Call | None, int]]:
        """Read a call in GLM's tags, or a name and JSON."""
        start, at = at, (yield from text.skip(_BARE_NAME, at))
        name = text.text[start:at].strip()
        if not name:
            raise Malformed(at)
        function = find_function(name, functions)
        arguments: dict[str, Any] = {}
        at = yield from text.skip_space(at)
        if (yield from text.char(at)) == "{":
            arguments, at = yield from read_object(text, at)
            return call_with(function, arguments), at
        while (yield from text.starts((_KEY,), at)):
            start = at + len(_KEY)
            at, _ = yield from text.find((_END_KEY,), start)
            key = text.text[start:at].strip()
            at = yield from text.skip_space(at + len(_END_KEY))
            if not (yield from text.starts((_VALUE,), at)):
                raise Malformed(at)
            start = at + len(_VALUE)
            at = yield from _find_end(text, start, {_END_VALUE: (_KEY, self.begin, self.end)})
            arguments[key] = typed_value(text.text[start:at], function, key)
            at = yield from text.skip_space(at + len(_END_VALUE))
        if not (yield from text.starts((self.end, self.begin), at)) and not text.is_finished(at):
            raise Malformed(at)
        return call_with(function, arguments), at


def _read_name(text: ArrivingText, at: int) -> Waits[tuple[str, int]]:
    """Read the rest of a tag with a name, such as `weather>`."""
    end = yield from text.skip(_NAME, at)
    if (yield from text.char(end)) != ">":
        raise Malformed(end)
    return text.text[at:end].strip().strip("\"'"), end + 1


def _find_end(text: ArrivingText, at: int, closings: Mapping[str, tuple[str, ...]]) -> Waits[int]:
    """Return where a value ends: before a closing tag that one of its followers follows, or the
    end of the text, so that the value itself may hold such a tag.

    Raises:
        Malformed: it does not end.
    """
    while True:
        end, mark = yield from text.find(tuple(closings), at)
        at = end + len(mark)
        after = yield from text.skip_space(at)
        if (yield from text.starts(closings[mark], after)) or text.is_finished(after):
            return end
