"""Take a reply apart as it is written: thought, text and calls of functions."""

import re
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from agentkv.dialog.call_forms import harmony
from agentkv.dialog.call_forms.arriving import ArrivingText, Malformed, Waits, overlap
from agentkv.dialog.call_forms.call import Call, FunctionDeclaration
from agentkv.dialog.call_forms.form import Form, Place
from agentkv.dialog.calls import CallFormat

Kind = Literal["reasoning", "content"]


@dataclass(frozen=True, slots=True)
class TextPart:
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
        functions: Sequence[FunctionDeclaration] = (),
        thoughts: Sequence[tuple[str, str]] = (),
        is_harmony: bool = False,
        in_thought: bool = False,
    ) -> None:
        self._functions = {name: FunctionDeclaration(name) for name in names}
        self._functions |= {each.name: each for each in functions}
        self._forms = () if format is None or not self._functions else tuple(format.forms)
        self._thoughts = thoughts
        self._kind: Kind = "reasoning" if in_thought else "content"
        self._text = ArrivingText()
        self._at = 0
        """Where the text begins that is not taken apart yet."""
        self._found: list[TextPart | Call] = []
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

    def feed(self, text: str) -> list[TextPart | Call]:
        """Return what `text` adds, as far as it is known what it is."""
        self._text.text += text
        return self._advance()

    def finish(self, *, is_cut: bool = False) -> list[TextPart | Call]:
        """Return what is left when the reply ends.

        Args:
            is_cut: the reply did not end by itself. So arguments may be missing, and a call that
                only its closing tag tells from half a call is text.
        """
        self._text.has_ended, self._text.is_cut = True, is_cut
        found = self._advance()
        if self._space:
            found.append(TextPart("content", self._space))
        return found

    def _advance(self) -> list[TextPart | Call]:
        next(self._reading, None)
        found, self._found = self._found, []
        return found

    def _read(self) -> Waits[None]:
        """Read a reply with thoughts and calls between marks."""
        expected = {
            "content": _Expected(list(self._marks("content"))),
            "reasoning": _Expected(list(self._marks("reasoning"))),
        }
        while True:
            mark = yield from self._pass_text(expected[self._kind])
            if mark is None:
                return
            if mark.form is None:
                self._at += len(mark.text)
                self._kind, self._dropped = mark.opens or "content", "\n"
            else:
                yield from self._read_calls(mark, mark.form)

    def _marks(self, kind: Kind) -> Iterator[_Mark]:
        """Yield the marks that end text of a kind."""
        for begin, end in self._thoughts:
            yield _Mark(end, opens="content")
            if kind == "content":
                yield _Mark(begin, opens="reasoning")
        if kind == "content":
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

    def _pass_text(self, marks: "_Expected") -> Waits[_Mark | None]:
        """Emit text up to the first mark; return the mark, or None at the end of the reply."""
        text = self._text
        while True:
            at = self._at
            ways = [marks.inner.anywhere(text.text, at)]
            if marks.of_line:
                ways.append(marks.of_line.of_line(text.text, at, self._at_line))
            if marks.of_start and not self._has_begun:
                ways.append(marks.of_start.of_start(text.text, at))
            end, _, mark = min(way.first for way in ways)
            sure = len(text.text) if text.has_ended else min(way.sure for way in ways)
            if end < sure:
                self._emit_text(end)
                return marks.by_text[mark]
            self._emit_text(sure)
            if text.has_ended:
                return None
            text.text, self._at = text.text[self._at :], 0
            yield

    def _read_messages(self) -> Waits[None]:
        """Read a reply in gpt-oss' messages."""
        text = self._text
        ends = _Expected([_Mark(end) for end in harmony.ENDS])
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
            mark = yield from self._pass_text(ends)
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
        self._at = end
        self._space, self._dropped = "", _SPACE
        self._has_begun = self._at_line = True

    def _emit_text(self, end: int) -> None:
        """Return the text up to `end`."""
        text = self._text.text[self._at : end]
        self._at = end
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
        self._found.append(TextPart(self._kind, text))


_SPACE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class _Ahead:
    """What a text shows of marks."""

    first: tuple[int, int, str]
    """Where the first mark stands, its length, negated, and the mark; a number beyond every text
    and no mark if there is none."""
    sure: int
    """Where a mark may begin of which only a part is there; the text's length if there is none."""


class _Marks:
    """Finds texts that end a stretch of text."""

    def __init__(self, marks: Sequence[str]) -> None:
        self._marks = marks
        longest_first = "|".join(map(re.escape, sorted(marks, key=len, reverse=True)))
        self._anywhere = re.compile(f"({longest_first or '(?!)'})")
        self._after_space = re.compile(rf"\s*{self._anywhere.pattern}")
        self._in_line = re.compile(rf"[^\S\n]*{self._anywhere.pattern}")
        self._of_line = re.compile(rf"(?<=\n)[^\S\n]*{self._anywhere.pattern}")
        self._longest = max(map(len, marks), default=0)

    def anywhere(self, text: str, at: int) -> _Ahead:
        """Look for marks from `at` on."""
        tail = text[max(at, len(text) - self._longest) :]
        held = max((overlap(tail, mark) for mark in self._marks), default=0)
        return _Ahead(_first(self._anywhere.search(text, at)), len(text) - held)

    def of_line(self, text: str, at: int, at_line: bool) -> _Ahead:
        """Look for marks at the beginning of a line.

        Args:
            at_line: only white space stands before `at`, on the same line.
        """
        found = self._in_line.match(text, at) if at_line else None
        line = text.rfind("\n", at) + 1
        start = line or (at if at_line else len(text))
        return _Ahead(_first(found or self._of_line.search(text, at)), self._held(text, start))

    def of_start(self, text: str, at: int) -> _Ahead:
        """Look for marks at `at`, after white space."""
        return _Ahead(_first(self._after_space.match(text, at)), self._held(text, at))

    def _held(self, text: str, start: int) -> int:
        """Return where text after `start` and white space begins if it may grow to a mark."""
        rest = text[start:].lstrip()
        may_grow = any(mark.startswith(rest) and mark != rest for mark in self._marks)
        return len(text) - len(rest) if may_grow else len(text)


class _Expected:
    """Marks that may end a stretch of text, by the places where they do."""

    def __init__(self, marks: Sequence[_Mark]) -> None:
        self.by_text = {mark.text: mark for mark in reversed(marks)}
        of: dict[Place, list[str]] = {"anywhere": [], "line": [], "start": []}
        for mark in marks:
            of[mark.place].append(mark.text)
        self.inner = _Marks(of["anywhere"])
        self.of_line = _Marks(of["line"]) if of["line"] else None
        self.of_start = _Marks(of["start"]) if of["start"] else None


def _first(found: re.Match[str] | None) -> tuple[int, int, str]:
    return (sys.maxsize, 0, "") if found is None else (found.start(1), -len(found[1]), found[1])
