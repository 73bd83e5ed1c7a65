"""JSON values as models write them, read as they arrive.

Beside JSON this reads line breaks and other control characters in strings, strings in single
quotes, backslashes that escape nothing, commas after the last item, and Python's True, False and
None. It guesses nothing: a quote or a brace too few is malformed, and so are numbers that JSON has
not, such as 007 and NaN.
"""

import math
import re
from collections.abc import Collection
from typing import Any

from agentkv.dialog.call_forms.arriving import ArrivingText, Malformed, Waits

_MAX_DEPTH = 100
"""Levels of lists and objects (our choice)."""
_MAX_DIGITS = 400
"""Characters of a number; a double has at most 309 digits before its point."""
_TO_QUOTE = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")}
_OF_NUMBER = re.compile(r"[-+.\w]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", '"': '"', "'": "'"}
_ESCAPES |= {"\\": "\\", "/": "/"}
_HEX = re.compile(r"[0-9a-fA-F]+")
_SURROGATES = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def read_value(text: ArrivingText, at: int, depth: int = 0) -> Waits[tuple[Any, int]]:
    """Return the value that begins at `at`, and where it ends.

    Raises:
        Malformed: there is none.
    """
    char = yield from text.char(at)
    if char == "{":
        return (yield from read_object(text, at, depth))
    if char == "[":
        return (yield from _read_list(text, at, depth))
    if char in _TO_QUOTE:
        return (yield from _read_string(text, at))
    end = yield from text.skip(_OF_NUMBER, at)
    word = text.text[at:end]
    if word in _WORDS:
        return _WORDS[word], end
    if len(word) > _MAX_DIGITS or not _NUMBER.fullmatch(word):
        raise Malformed(at)
    number = int(word) if word.lstrip("-").isdigit() else float(word)
    if not math.isfinite(number):
        raise Malformed(at)
    return number, end


def read_object(
    text: ArrivingText, at: int, depth: int = 0, *, first_keys: Collection[str] | None = None
) -> Waits[tuple[dict[str, Any], int]]:
    """Return the object that begins at `at`, and where it ends.

    Args:
        first_keys: names that the first member may have; None allows all.

    Raises:
        Malformed: there is none.
    """
    if (yield from text.char(at)) != "{" or depth > _MAX_DEPTH:
        raise Malformed(at)
    made: dict[str, Any] = {}
    at = yield from text.skip_space(at + 1)
    while (char := (yield from text.char(at))) != "}":
        if char not in _TO_QUOTE:
            raise Malformed(at)
        key, at = yield from _read_string(text, at)
        if first_keys is not None and not made and key not in first_keys:
            raise Malformed(at)
        at = yield from text.skip_space(at)
        if (yield from text.char(at)) != ":":
            raise Malformed(at)
        at = yield from text.skip_space(at + 1)
        made[key], at = yield from read_value(text, at, depth + 1)
        at = yield from _read_comma(text, at, "}")
    return made, at + 1


def _read_list(text: ArrivingText, at: int, depth: int) -> Waits[tuple[list[Any], int]]:
    if depth > _MAX_DEPTH:
        raise Malformed(at)
    made = []
    at = yield from text.skip_space(at + 1)
    while (yield from text.char(at)) != "]":
        value, at = yield from read_value(text, at, depth + 1)
        made.append(value)
        at = yield from _read_comma(text, at, "]")
    return made, at + 1


def _read_comma(text: ArrivingText, at: int, closing: str) -> Waits[int]:
    """Return where the next item or the closing bracket stands."""
    at = yield from text.skip_space(at)
    char = yield from text.char(at)
    if char == ",":
        return (yield from text.skip_space(at + 1))
    if char != closing:
        raise Malformed(at)
    return at


def _read_string(text: ArrivingText, at: int) -> Waits[tuple[str, int]]:
    quote = text.text[at]
    parts = []
    at += 1
    while True:
        end = yield from text.skip(_TO_QUOTE[quote], at)
        parts.append(text.text[at:end])
        char = yield from text.char(end)
        if not char:
            raise Malformed(end)
        if char == quote:
            break
        part, at = yield from _read_escape(text, end)
        parts.append(part)
    # halves of a character beyond 16 bits, escaped one by one
    whole = _SURROGATES.sub(lambda pair: _joined(pair[0]), "".join(parts))
    return whole, end + 1


def _read_escape(text: ArrivingText, at: int) -> Waits[tuple[str, int]]:
    char = yield from text.char(at + 1)
    num_digits = {"u": 4, "x": 2}.get(char)
    if num_digits is None:
        return _ESCAPES.get(char, f"\\{char}"), at + 2
    end = at + 2 + num_digits
    yield from text.char(end - 1)
    digits = text.text[at + 2 : end]
    if len(digits) < num_digits or not _HEX.fullmatch(digits):
        return f"\\{char}", at + 2
    return chr(int(digits, 16)), end


def _joined(pair: str) -> str:
    return pair.encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def whole_value(text: str) -> Any:
    """Return the value that is all of `text`, white space around it aside.

    Raises:
        Malformed: `text` is no value, or more than one.
    """
    arriving = ArrivingText()
    arriving.text, arriving.has_ended = text.strip(), True
    reading = read_value(arriving, 0)
    try:
        next(reading)
    except StopIteration as done:
        value, end = done.value
        if end < len(arriving.text):
            raise Malformed(end) from None
        return value
    raise AssertionError("a text that has ended makes nobody wait")
