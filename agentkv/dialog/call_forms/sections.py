"""Calls in sections of control tokens: DeepSeek's and Kimi's.

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather
```json
{"city": "Rome"}
```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Rome"}<｜tool▁call▁end｜>
<｜tool▁calls▁end｜>

<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>
{"city": "Rome"}<|tool_call_end|><|tool_calls_section_end|>
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
from agentkv.dialog.call_forms.values import read_value

_NAME = re.compile(r"[^\s`{<]*")


@dataclass(frozen=True, slots=True)
class SectionForm:
    """Calls in sections."""

    begin: str
    """Begins all calls."""
    begin_call: str
    separator: str
    """Stands after a name, or after the word `function` and before the name."""
    end_call: str
    end: str
    """Ends all calls."""

    @property
    def tokens(self) -> Collection[str]:
        """All delimiters."""
        return (self.begin, self.begin_call, self.separator, self.end_call, self.end)

    def marks(self, functions: Functions) -> Mapping[str, Place]:
        """Return what begins a section or a call; see `Form`."""
        return {self.begin: "anywhere", self.begin_call: "anywhere"}

    def read(self, text: ArrivingText, at: int, functions: Functions) -> Waits[FoundCalls]:
        """Read the calls in a section; see `Form`."""
        if (yield from text.starts((self.begin,), at)):
            at = yield from text.skip_space(at + len(self.begin))
        calls: list[Call] = []
        is_known = True
        if not (yield from text.starts((self.begin_call,), at)):
            raise Malformed(at)
        while True:
            at = yield from text.skip_space(at + len(self.begin_call))
            if (yield from text.char(at)) == "{":
                found = yield from read_calls(text, at, functions)
            else:
                found = yield from self._read_named(text, at, functions)
            calls += found.calls
            is_known = is_known and bool(found.calls)
            end = yield from skip_mark(text, found.end, self.end_call)
            at = yield from text.skip_space(end)
            if not (yield from text.starts((self.begin_call,), at)):
                end = yield from skip_mark(text, end, self.end)
                return FoundCalls(calls if is_known else [], end)

    def _read_named(self, text: ArrivingText, at: int, functions: Functions) -> Waits[FoundCalls]:
        start, at = at, (yield from text.skip(_NAME, at))
        name = text.text[start:at]
        at = yield from text.skip_space(at)
        if (yield from text.starts((self.separator,), at)):
            at = yield from text.skip_space(at + len(self.separator))
            if not (yield from text.starts((FENCE, "{", self.end_call), at)):
                start, at = at, (yield from text.skip(_NAME, at))
                name = text.text[start:at]
        at = yield from text.skip_space(at)
        at = yield from skip_fence(text, at)
        arguments: Any = None
        if not (yield from text.starts((FENCE, self.end_call), at)):
            arguments, at = yield from read_value(text, at)
        at = yield from skip_mark(text, at, FENCE)
        call = call_with(find_function(name, functions), arguments)
        return FoundCalls([] if call is None else [call], at)
