"""Take a reply apart as it is written: thought, text and calls of functions."""

import re
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from agentkv.dialog.call_forms import harmony
from agentkv.dialog.call_forms.arriving import ArrivingText, Malformed, Waits, overlap
from agentkv.dialog.call_forms.call import Call, Function
from agentkv.dialog.call_forms.form import Form, Place
from agentkv.dialog.calls import CallFormat

Kind = Literal["reasoning", "content"]


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a reply's text."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class _Mark:
    """A text that ends a stretch of text."""

    text: str
    place: Place = "anywhere"
    form: Form | None = None
    """The form of the calls that it begins."""
    opens: Kind | None = None
    """What follows it, if it begins no call."""


class ReplyParts:
    """Splits the text of one reply, control tokens included, into thought, text and calls.

    What it returns does not depend on how the text is cut into pieces. Text is returned as soon as
    it can belong to no call. What is not quite in the form of a call is text, and so are calls of
    unknown functions. A thought holds no calls, except in gpt-oss' channels. White space between a
    call and its neighbors is dropped, and so is that before a first call.

    Args:
        format: the form of calls; None if the model was given no functions, or must call none.
        names: names of functions without a schema.
        functions: the functions; calls of others are text.
        thoughts: texts that begin and end a thought, such as `<think>` and `</think>`.
        is_harmony: True if the reply has gpt-oss' channels.
        in_thought: True if the prompt has opened a thought already.
    """

    def __init__(
        self,
        format: CallFormat | None,
        *,
        names: Collection[str] = (),
        functions: Sequence[Function] = (),
        thoughts: Sequence[tuple[str, str]] = (),
        is_harmony: bool = False,
        in_thought: bool = False,
    ) -> None:
        self._functions = {name: Function(name) for name in names}
        self._functions |= {each.name: each for each in functions}
        self._forms = () if format is None or not self._functions else tuple(format.forms)
        self._thoughts = thoughts
        self._kind: Kind = "reasoning" if in_thought else "content"
        self._text = ArrivingText()
        self._at = 0
        """Where the text begins that is not taken apart yet."""
        self._found: list[Part | Call] = []
        self._space = ""
        """White space that is text unless a call follows."""
        self._has_begun = False
        """True once there is a call, or text other than white space."""
        self._at_line = True
        """True if only white space stands before, on the same line."""
        self._dropped = "\n" if in_thought else ""
        """Characters that are no text if they come next."""
        self._reading = self._read_messages() if is_harmony else self._read()
        next(self._reading, None)

    def feed(self, text: str) -> list[Part | Call]:
        """Return what `text` adds, as far as it is known what it is."""
        self._text.text += text
        return self._advance()

    def finish(self, *, is_cut: bool = False) -> list[Part | Call]:
        """Return what is left when the reply ends.

        Args:
            is_cut: the reply did not end by itself. So arguments may be missing, and a call that
                only its closing tag tells from half a call is text.
        """
        self._text.has_ended, self._text.is_cut = True, is_cut
        found = self._advance()
        if self._space:
            found.append(Part("content", self._space))
        return found

    def _advance(self) -> list[Part | Call]:
        next(self._reading, None)
        found, self._found = self._found, []
        return found

    def _read(self) -> Waits[None]:
        """Read a reply with thoughts and calls between marks."""
        while True:
            mark = yield from self._pass_text(list(self._marks()))
            if mark is None:
                return
            if mark.form is None:
                self._at += len(mark.text)
                self._kind, self._dropped = mark.opens or "content", "\n"
            else:
                yield from self._read_calls(mark, mark.form)

    def _marks(self) -> Iterator[_Mark]:
        """Yield the marks that may come next."""
        for begin, end in self._thoughts:
            yield _Mark(end, opens="content")
            if self._kind == "content":
                yield _Mark(begin, opens="reasoning")
        if self._kind == "content":
            for form in self._forms:
                for text, place in form.marks(self._functions).items():
                    yield _Mark(text, place, form)

    def _read_calls(self, mark: _Mark, form: Form) -> Waits[None]:
        start = self._at
        try:
            found = yield from form.read(self._text, start, self._functions)
        except Malformed as error:
            # What follows the closing tag may be a call again.
            after = start + len(mark.text)
            closing = self._text.text.find(form.end, after, error.at) if form.end else -1
            end = closing + len(form.end) if closing >= 0 else max(after, error.at)
            self._emit_text(end)
            return
        if found.calls:
            self._emit_calls(found.calls, found.end)
        else:
            self._emit_text(found.end)

    def _pass_text(self, marks: Sequence[_Mark]) -> Waits[_Mark | None]:
        """Emit text up to the first mark; return the mark, or None at the end of the reply."""
        by_text = {mark.text: mark for mark in reversed(marks)}
        inner, of_line, of_start = (
            [mark.text for mark in marks if mark.place == place]
            for place in ("anywhere", "line", "start")
        )
        while True:
            rest = self._text.text[self._at :]
            has_ended = self._text.has_ended
            stretch = [_Stretch.of(rest, inner, None, has_ended=has_ended)]
            if of_line:
                lines = [
                    found.end() for found in _LINE.finditer(rest) if found.start() or self._at_line
                ]
                stretch.append(_Stretch.of(rest, of_line, lines, has_ended=has_ended))
            if of_start and not self._has_begun:
                start = [len(rest) - len(rest.lstrip())]
                stretch.append(_Stretch.of(rest, of_start, start, has_ended=has_ended))
            end, _, mark = min(each.end for each in stretch)
            sure = min(each.sure for each in stretch)
            if end < sure:
                self._emit_text(self._at + end)
                return by_text[mark]
            self._emit_text(self._at + sure)
            if has_ended:
                return None
            yield

    def _read_messages(self) -> Waits[None]:
        """Read a reply in gpt-oss' messages."""
        text = self._text
        is_first = True
        while True:
            try:
                header = yield from harmony.read_header(text, self._at)
            except Malformed:
                if is_first and harmony.CHANNEL not in text.text:
                    self._emit_text(len(text.text))  # a reply without any header is text
                return
            is_first = False
            self._kind = "reasoning" if header.is_thought else "content"
            if self._functions and harmony.is_call(header, self._functions):
                yield from self._read_message_to_function(header)
                continue
            self._at, self._dropped = header.end, "\n"
            mark = yield from self._pass_text([_Mark(end) for end in harmony.ENDS])
            if mark is None:
                return
            if mark.text != harmony.CHANNEL:
                self._at += len(mark.text)

    def _read_message_to_function(self, header: harmony.Header) -> Waits[None]:
        self._kind = "content"
        try:
            found = yield from harmony.read_call(self._text, header, self._functions)
            end = found.end
        except Malformed as error:
            found = None
            try:
                end, mark = yield from self._text.find(harmony.ENDS, error.at)
                end += 0 if mark == harmony.CHANNEL else len(mark)
            except Malformed as missing:
                end = missing.at
        if found is not None and found.calls:
            self._emit_calls(found.calls, end)
        else:
            self._at = header.start
            self._emit_text(end)

    def _emit_calls(self, calls: Sequence[Call], end: int) -> None:
        """Return calls that end at `end`."""
        self._found += calls
        self._move(end)
        self._space, self._dropped = "", _SPACE
        self._has_begun = self._at_line = True

    def _emit_text(self, end: int) -> None:
        """Return the text up to `end`."""
        text = self._text.text[self._at : end]
        self._move(end)
        if self._dropped and text:
            text = text.lstrip(self._dropped)
            if text:
                self._dropped = ""
        if not text:
            return
        _, newline, line = text.rpartition("\n")
        self._at_line = not line.strip() and (bool(newline) or self._at_line)
        if self._kind == "content":
            text, self._space = self._space + text, ""
            if not self._has_begun and self._forms and not text.strip():
                self._space = text
                return
            self._has_begun = True
        self._found.append(Part(self._kind, text))

    def _move(self, end: int) -> None:
        """Forget the text before `end`."""
        self._text.text = self._text.text[end:]
        self._at = 0


_SPACE = " \t\r\n"
_LINE = re.compile(r"(?:\A|(?<=\n))[^\S\n]*")


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Text up to a mark."""

    end: tuple[int, int, str]
    """Where the first mark stands, its length, negated, and the mark; the largest number and no
    mark if there is none."""
    sure: int
    """Length of the text in which no mark can begin that is not there yet."""

    @classmethod
    def of(
        cls, text: str, marks: Sequence[str], places: Sequence[int] | None, *, has_ended: bool
    ) -> "_Stretch":
        """Look for marks.

        Args:
            places: where they may stand; None: anywhere.
            has_ended: no more text comes.
        """
        sure = len(text)
        if places is None:
            found = [(text.find(mark), mark) for mark in marks]
            if not has_ended:
                sure -= max((overlap(text, mark) for mark in marks), default=0)
        else:
            found = [(at, mark) for at in places for mark in marks if text.startswith(mark, at)]
            last = text[places[-1] :] if places else ""
            may_grow = any(mark.startswith(last) and mark != last for mark in marks)
            if last and may_grow and not has_ended:
                sure -= len(last)
        ends = ((at, -len(mark), mark) for at, mark in found if at >= 0)
        none = (sys.maxsize, 0, "")
        return cls(min(ends, default=none), sure)
