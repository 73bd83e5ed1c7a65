"""Messages of gpt-oss: a header with a channel and a recipient, then thought, text or arguments.

<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>commentary
to=functions.weather <|constrain|>json<|message|>{"city": "Rome"}<|call|>
"""

import re
from dataclasses import dataclass
from typing import Any

from agentkv.dialog.call_forms.arriving import ArrivingText, Malformed, Waits
from agentkv.dialog.call_forms.call import Functions, call_with, find_function
from agentkv.dialog.call_forms.form import FoundCalls
from agentkv.dialog.call_forms.values import read_value

CHANNEL, MESSAGE = "<|channel|>", "<|message|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", CHANNEL)
"""What ends a message; the last one begins the next one's header."""
TOKENS = (MESSAGE, *ENDS, "<|constrain|>")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_KIND = re.compile(r"<\|channel\|>\s*(\w*)")


@dataclass(frozen=True, slots=True)
class Header:
    """What stands before a message."""

    is_thought: bool
    recipient: str
    """Name of the function that is called; empty if the message calls none."""
    start: int
    """Where its channel or its recipient is named."""
    end: int
    """Where the message begins."""


def read_header(text: ArrivingText, at: int) -> Waits[Header]:
    """Read the header that begins at `at`, or within which the text begins.

    Raises:
        Malformed: no message follows.
    """
    end, _ = yield from text.find((MESSAGE,), at)
    header = text.text[at:end]
    channel = _KIND.findall(header)
    recipient = _RECIPIENT.search(header)
    starts = [header.find(mark) for mark in (CHANNEL, " to=") if mark in header]
    return Header(
        is_thought=bool(channel) and channel[-1] == "analysis",
        recipient="" if recipient is None else recipient[1],
        start=at + min(starts, default=0),
        end=end + len(MESSAGE),
    )


def read_call(text: ArrivingText, header: Header, functions: Functions) -> Waits[FoundCalls]:
    """Read a message that calls a function, with what ends it.

    Raises:
        Malformed: its text is no JSON.
    """
    function = find_function(header.recipient, functions)
    at = yield from text.skip_space(header.end)
    arguments: Any = None
    if not (yield from text.starts(ENDS, at)) and not text.is_finished(at):
        arguments, at = yield from read_value(text, at)
        at = yield from text.skip_space(at)
        if not (yield from text.starts(ENDS, at)) and (yield from text.char(at)):
            raise Malformed(at)
    mark = yield from text.starts(ENDS, at)
    call = call_with(function, arguments)
    end = at if mark == CHANNEL else at + len(mark)
    return FoundCalls([] if call is None else [call], end)


def is_call(header: Header, functions: Functions) -> bool:
    """True if a message goes to a function rather than to the user or to a tool of gpt-oss."""
    is_named = find_function(header.recipient, functions) is not None
    return is_named or header.recipient.startswith("functions.")
