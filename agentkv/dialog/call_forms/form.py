"""The protocol between a form of calls and the reader of a reply."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from agentkv.dialog.call_forms.arriving import ArrivingText, Malformed, Waits
from agentkv.dialog.call_forms.call import Call, Functions, calls_in
from agentkv.dialog.call_forms.values import read_value

Place = Literal["anywhere", "line", "start"]
"""Where a text begins a call: anywhere, at the beginning of a line, or of the reply."""


@dataclass(frozen=True, slots=True)
class FoundCalls:
    """Text in the form of calls."""

    calls: Sequence[Call]
    """Empty if it calls no function that is known."""
    end: int
    """Where it ends."""


class Form(Protocol):
    """A form in which models write calls."""

    @property
    def tokens(self) -> Collection[str]:
        """Texts of the form that may be control tokens of a model."""

    @property
    def end(self) -> str:
        """Text after which a malformed call is over; empty if there is none."""

    def marks(self, functions: Functions) -> Mapping[str, Place]:
        """Return the texts that begin calls, and where they do."""

    def read(self, text: ArrivingText, at: int, functions: Functions) -> Waits[FoundCalls]:
        """Read calls whose mark stands at `at`.

        Raises:
            Malformed: what stands there is not in this form.
        """


def read_calls(text: ArrivingText, at: int, functions: Functions) -> Waits[FoundCalls]:
    """Read the JSON of a call, or of a list of calls, and more of them as far as they are calls.

    Raises:
        Malformed: there is no JSON.
    """
    calls: list[Call] = []
    end = at
    while True:
        try:
            value, at = yield from read_value(text, at)
        except Malformed:
            if not calls:
                raise
            return FoundCalls(calls, end)
        found = calls_in([value], functions)
        if not calls or found:
            end = at
        calls += found
        at = yield from text.skip(BETWEEN, at)
        if not found or not (yield from text.starts(("{", "["), at)):
            return FoundCalls(calls, end)


def skip_fence(text: ArrivingText, at: int) -> Waits[int]:
    """Return where the text after a code fence with its language begins; `at` without one."""
    if not (yield from text.starts((FENCE,), at)):
        return at
    at = yield from text.skip(_LANGUAGE, at + len(FENCE))
    return (yield from text.skip_space(at))


def skip_mark(text: ArrivingText, at: int, mark: str) -> Waits[int]:
    """Return where the text after white space and a mark begins; `at` without that mark."""
    after = yield from text.skip_space(at)
    return after + len(mark) if (yield from text.starts((mark,), after)) else at


FENCE = "```"
BETWEEN = re.compile(r"[\s,;]*")
"""What may stand between calls."""
_LANGUAGE = re.compile(r"[A-Za-z_]*")
