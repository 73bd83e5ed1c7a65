"""Take a reply apart as it is written: thought, text and calls of functions."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from agentkv.dialog.calls import HARMONY, LLAMA, Call, CallFormat

Kind = Literal["reasoning", "content"]


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a reply's text."""

    kind: Kind
    text: str


class ReplyParts:
    """Splits the text of one reply, control tokens included, into thought, text and calls.

    Args:
        format: the form of calls; None if the model was given no functions, or must call none.
        names: names of the functions; calls of others are text.
        thoughts: texts that begin and end a thought, such as `<think>` and `</think>`.
        is_harmony: True if the reply has gpt-oss' channels.
        in_thought: True if the prompt has opened a thought already.
    """

    def __init__(
        self,
        format: CallFormat | None,
        *,
        names: Collection[str] = (),
        thoughts: Sequence[tuple[str, str]] = (),
        is_harmony: bool = False,
        in_thought: bool = False,
    ) -> None:
        self._format, self._names = format, names
        self._thoughts, self._is_harmony = thoughts, is_harmony
        self._kind: Kind = "reasoning" if in_thought else "content"
        self._rest = ""
        """Text that may be the beginning of a delimiter, or the inside of a call or a header."""
        self._is_call = False
        self._is_header = is_harmony
        """True between messages of gpt-oss, where the text is no part of a message."""
        self._has_text = False
        """True once text was returned."""
        self._has_passed = False
        """True after the first delimiter."""
        self._strips = in_thought
        """True after a delimiter: the line breaks that follow it are no text."""

    def feed(self, text: str) -> list[Part | Call]:
        """Return what `text` adds, as far as it is known what it is."""
        self._rest += text
        found: list[Part | Call] = []
        while True:
            if self._holds_whole_reply:
                return found
            marks = self._marks()
            at = [(self._rest.find(mark), -len(mark), mark) for mark in marks if mark in self._rest]
            if not at:
                break
            start, _, mark = min(at)
            found += self._text(self._rest[:start])
            inside, self._rest = self._rest[:start], self._rest[start + len(mark) :]
            found += self._pass(mark, inside)
        if not self._is_call and not self._is_header:
            held = max((overlap(self._rest, mark) for mark in self._marks()), default=0)
            cut = len(self._rest) - held
            found += self._text(self._rest[:cut])
            self._rest = self._rest[cut:]
        return found

    def finish(self) -> list[Part | Call]:
        """Return what is left when the reply ends."""
        rest, self._rest = self._rest, ""
        if self._is_call or self._holds_whole_reply_of(rest):
            assert self._format is not None
            calls = self._calls(rest.strip().removeprefix(_PYTHON_TAG))
            if calls:
                return list(calls)
            rest = (self._format.begin if self._is_call else "") + rest
            self._is_call = False
        if self._is_header and not self._has_passed:
            self._is_header = False  # a reply without any header is text
        return self._text(rest)

    @property
    def _holds_whole_reply(self) -> bool:
        return self._holds_whole_reply_of(self._rest)

    def _holds_whole_reply_of(self, text: str) -> bool:
        """True if the reply may be a call without delimiters, which only its end can tell."""
        if self._format != LLAMA or self._has_text or self._kind == "reasoning":
            return False
        text = text.lstrip()
        return text.startswith(("{", _PYTHON_TAG)) or _PYTHON_TAG.startswith(text)

    def _marks(self) -> list[str]:
        """Return the delimiters that may come next."""
        if self._is_call:
            assert self._format is not None
            return [self._format.end] if self._format.end else []
        if self._is_harmony:
            if not self._is_header:
                return ["<|channel|>", "<|end|>", "<|start|>", "<|return|>"]
            calls = [] if self._format is None else [HARMONY.begin, _TO_FUNCTIONS]
            return [*calls, "<|channel|>", "<|message|>"]
        if self._kind == "reasoning":
            return [end for _, end in self._thoughts]
        marks = [mark for pair in self._thoughts for mark in pair]
        if self._format is not None and self._format.begin:
            marks.append(self._format.begin)
        return marks

    def _pass(self, mark: str, inside: str) -> list[Part | Call]:
        """Move past a delimiter; `inside` is the text before it."""
        self._strips = self._has_passed = True
        if self._is_call:
            assert self._format is not None
            self._is_call, self._is_header = False, self._is_harmony
            calls = self._calls(inside)
            if calls:
                return list(calls)
            return self._text(f"{self._format.begin}{inside}{mark}", is_header=False)
        if self._is_harmony:
            self._pass_harmony(mark, inside)
        elif self._format is not None and mark == self._format.begin:
            self._is_call, self._kind = True, "content"
        else:
            opens = mark in (begin for begin, _ in self._thoughts)
            self._kind = "reasoning" if opens else "content"
        return []

    def _pass_harmony(self, mark: str, inside: str) -> None:
        if mark in (HARMONY.begin, _TO_FUNCTIONS):
            self._is_call = True
        elif mark == "<|message|>":
            self._kind = "reasoning" if inside.strip().startswith("analysis") else "content"
            self._is_header = False
        else:
            self._is_header = True

    def _calls(self, text: str) -> list[Call]:
        """Return the calls in the inside of a call; none if they call unknown functions."""
        assert self._format is not None
        calls = self._format.parse(text) or []
        return calls if all(call.name in self._names for call in calls) else []

    def _text(self, text: str, *, is_header: bool | None = None) -> list[Part | Call]:
        if self._is_call or (self._is_header if is_header is None else is_header):
            return []
        if self._strips:
            text = text.lstrip("\n")
        if not text:
            return []
        self._has_text, self._strips = self._has_text or self._kind == "content", False
        return [Part(self._kind, text)]


_PYTHON_TAG = "<|python_tag|>"
"""May precede a call of Llama's."""
_TO_FUNCTIONS = " to=functions."
"""Another place of the function's name, in the header before the channel."""


def overlap(text: str, mark: str) -> int:
    """Return the length of the longest suffix of `text` that is a prefix of `mark`."""
    longest = min(len(text), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(mark[:n])), 0)
