"""Calls after Mistral's token: a list in JSON, or names with their arguments.

[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Rome"}, "id": "a1b2c3d4e"}]

[TOOL_CALLS]weather[CALL_ID]a1b2c3d4e[ARGS]{"city": "Rome"}
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from agentkv.dialog.call_forms.arriving import ArrivingText, Malformed, Waits
from agentkv.dialog.call_forms.call import Call, Functions, call_with, find_function
from agentkv.dialog.call_forms.form import FoundCalls, Place, read_calls, skip_mark
from agentkv.dialog.call_forms.values import read_value

_BEGIN, _ID, _ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_NAME = re.compile(r"[^\s\[{]*")


@dataclass(frozen=True, slots=True)
class MistralForm:
    """Calls after `[TOOL_CALLS]`."""

    end: str = ""

    @property
    def tokens(self) -> Collection[str]:
        """Mistral's tokens."""
        return (_BEGIN, _ID, _ARGUMENTS)

    def marks(self, functions: Functions) -> Mapping[str, Place]:
        """Return the token that begins calls; see `Form`."""
        return {_BEGIN: "anywhere"}

    def read(self, text: ArrivingText, at: int, functions: Functions) -> Waits[FoundCalls]:
        """Read the calls after one token; see `Form`."""
        at = yield from text.skip_space(at + len(_BEGIN))
        mark = yield from text.starts(("{", "[", _BEGIN, _ARGUMENTS), at)
        if mark in ("{", "["):
            return (yield from read_calls(text, at, functions))
        calls: list[Call] = []
        end = at
        while True:
            start, at = at, (yield from text.skip(_NAME, at))
            function = find_function(text.text[start:at], functions)
            if at == start or (calls and function is None):
                if calls:
                    return FoundCalls(calls, end)
                raise Malformed(at)
            at = yield from text.skip_space(at)
            if mark := (yield from text.starts((_ID,), at)):
                at = yield from text.skip_space(at + len(mark))
                at = yield from text.skip_space((yield from text.skip(_NAME, at)))
            if mark := (yield from text.starts((_ARGUMENTS,), at)):
                at = yield from text.skip_space(at + len(mark))
            arguments: Any = None
            if (yield from text.starts(("{", '"', "null") if mark else ("{",), at)):
                arguments, at = yield from read_value(text, at)
            elif not (yield from text.starts((_BEGIN,), at)) and not text.is_finished(at):
                if calls:
                    return FoundCalls(calls, end)
                raise Malformed(at)
            call = call_with(function, arguments)
            if call is None:
                return FoundCalls([], at)
            calls.append(call)
            end = yield from skip_mark(text, at, "[/TOOL_CALLS]")
            at = yield from text.skip_space(end)
