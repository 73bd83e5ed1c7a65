"""Mask secrets in text for files, the terminal and models.

A secret is text typed into a password field, the credentials in an address
(`http://user:secret@host/`), or a text that the agent types by name. It may reappear in many
spellings: in an answer, in the address of a form, in a page's markup. `Secrets` finds them all.
"""

import base64
import html
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote, quote_plus, unquote

MASK = "***"
"""Replacement for a secret."""

MIN_WORD_CHARS = 4
"""Shorter secrets are masked only where they are an entire value (our choice): an answer, the text
of a `type` action, a parameter of an address. Elsewhere they reveal nothing."""
MIN_SUBSTRING_CHARS = 8
"""Shorter secrets are masked only where they are an entire word (our choice)."""

_USERINFO = re.compile(r"(?<![A-Za-z0-9+.-])([A-Za-z][A-Za-z0-9+.-]*:[/\\]{2,})([^\s/?#\\\"'<>]*)@")
_ELLIPSES = ("...", "…")
_MAX_PATTERN_CHARS = 200
_MASKED = re.compile(r"\*\*\*|<secret:[\w.+-]+>", re.ASCII)
"""What stands in place of a secret, or of one with a name."""
_MIN_PREFIX_CHARS = 4
"""Truncated secrets are masked if at least this many of their characters are left (our choice)."""


class Secrets:
    """Collects secrets and masks every spelling of them in texts.

    Credentials in addresses are always masked, even if they were never added.

    Args:
        values: the first secrets.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values: dict[str, tuple[re.Pattern[str], str]] = {}
        for value in values:
            self.add(value)

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: str, *, shown: str = MASK) -> None:
        """Add a secret, without the white space around it, and what is shown in its place.

        A secret that was added before keeps what is shown, unless that is `MASK`.
        """
        value = value.strip().encode(errors="replace").decode()
        while len(value) > 2 * _MAX_PATTERN_CHARS:  # patterns grow with their secret
            self.add(value[:_MAX_PATTERN_CHARS], shown=shown)
            value = value[_MAX_PATTERN_CHARS:]
        if not value:
            return
        known = self._values.get(value)
        if known is None:
            self._values[value] = re.compile(_pattern(value), re.IGNORECASE), shown
        elif known[1] == MASK:
            self._values[value] = known[0], shown

    def add_credentials(self, text: str) -> None:
        """Add the passwords of all addresses in `text`; without a password, the user name."""
        for found in _USERINFO.finditer(text):
            name, colon, password = found[2].partition(":")
            self.add(unquote(password if colon and password else name))

    def update(self, other: "Secrets") -> None:
        """Add all secrets of `other`."""
        for value, (pattern, shown) in other._values.items():
            if shown != MASK or value not in self._values:
                self._values[value] = pattern, shown

    def mask(self, text: str) -> str:
        """Return `text` with `***`, or what else is shown, in place of each secret."""
        text = _USERINFO.sub(rf"\1{MASK}@", text)
        names = {shown for _, shown in self._values.values()} - {MASK}
        # A secret may be a part of a name, which stays as it is.
        parts = re.compile("|".join(map(re.escape, names)) or "(?!)")
        for value in sorted(self._values, key=len, reverse=True):  # one may begin another
            text = _map_between(parts, partial(self._mask_one, value), text)
        return text

    def _mask_one(self, value: str, text: str) -> str:
        pattern, shown = self._values[value]
        text = pattern.sub(lambda found: (found.groupdict().get("before") or "") + shown, text)
        return _mask_truncated(value, text, shown) if len(value) >= MIN_SUBSTRING_CHARS else text

    def mask_within(self, value: Any, *, keep: frozenset[str] = frozenset()) -> Any:
        """Return a copy of `value` with every text in it masked; tuples become lists.

        Args:
            value: texts in mappings and sequences, nested in any way; other values are returned
                as they are.
            keep: keys whose values are not masked, in every mapping.
        """
        match value:
            case str():
                return self.mask(value)
            case Mapping():
                return {
                    name: each if name in keep else self.mask_within(each, keep=keep)
                    for name, each in value.items()
                }
            case list() | tuple():
                return [self.mask_within(each, keep=keep) for each in value]
        return value


def ends_in_masked(text: str, masked: str, ends: Sequence[int]) -> tuple[int, ...]:
    """Return the places in `masked` of places in `text`; empty if the two do not correspond.

    A place inside a secret moves to the end of its mask.

    Args:
        masked: what `Secrets.mask` made of `text`.
        ends: numbers of characters of `text`.
    """
    if masked == text:
        return tuple(ends)
    kept = _MASKED.split(masked)
    widths = [len(found) for found in _MASKED.findall(masked)]
    at = 0
    starts = []
    for number, part in enumerate(kept):
        is_last = number == len(kept) - 1
        start = len(text) - len(part) if is_last else text.find(part, at)
        if start < at or not text.startswith(part, start) or (not number and start):
            return ()
        starts.append(start)
        at = start + len(part)
    moved, place, number = [], 0, 0
    for end in ends:
        while number + 1 < len(kept) and starts[number + 1] < end:
            place += len(kept[number]) + widths[number]
            number += 1
        inside = end - starts[number]
        is_secret = inside > len(kept[number])
        moved.append(place + (len(kept[number]) + widths[number] if is_secret else inside))
    return tuple(moved)


def _map_between(kept: re.Pattern[str], change: Callable[[str], str], text: str) -> str:
    """Return `text` with `change` applied to all that stands between the matches of `kept`."""
    changed, end = [], 0
    for found in kept.finditer(text):
        changed += [change(text[end : found.start()]), found[0]]
        end = found.end()
    return "".join([*changed, change(text[end:])])


def _pattern(value: str) -> str:
    """Return a pattern of all spellings of `value`; group `before` is not part of the secret."""
    spelt = _WHITE_SPACE_SPELLINGS.join(
        "".join(map(_character_pattern, word)) for word in _WHITE_SPACE.split(value)
    )
    if len(value) < MIN_WORD_CHARS:
        places = (r"type \[\d+\] \[ ?", r"stop \[ ?", r"[?&][^=&#\s]*=")
        return rf"\A{spelt}\Z|(?P<before>{'|'.join(places)}){spelt}(?= ?\]|[&#\s]|\Z)"
    if len(value) < MIN_SUBSTRING_CHARS:
        # An encoded character before the word ends in a letter or digit but does not belong to it.
        edges = r"(?:(?<!\w)|(?<=%[0-9A-F]{2})|(?<=\\[bfnrt])|(?<=\\u[0-9A-F]{4}))"
        spelt = rf"{edges}{spelt}(?!\w)"
    return "|".join([spelt, *_base64_patterns(value)])


def _character_pattern(character: str) -> str:
    """Return a pattern of `character` as written in text, addresses, HTML and JSON."""
    number = ord(character)
    spellings = {
        rf"\\*{re.escape(character)}" if character in "\"'\\/" else re.escape(character),
        "".join(f"%(?:25)*{byte:02X}" for byte in character.encode()),
        rf"&(?:amp;)?#0*{number};",
        rf"&(?:amp;)?#x0*{number:X};",
        "".join(rf"\\+u{unit}" for unit in _utf16(character)),
        re.escape(html.escape(character)),
        re.escape(character.translate(_NEUTRAL)),
    }
    return f"(?:{'|'.join(sorted(spellings, key=len, reverse=True))})"


_WHITE_SPACE = re.compile(r"[\s\x00-\x20\x7f-\x9f]+")
_WHITE_SPACE_SPELLINGS = (
    r"(?:[\s\x00-\x20\x7f-\x9f+]|%(?:25)*[0127][0-9A-F]|%(?:25)*C2%(?:25)*[89A][0-9A-F]|&nbsp;"
    r"|&(?:amp;)?#(?:32|x20|160|xA0);|\\+(?:[nrt]|[ux]?00[0-9A][0-9A-F]))+"
)
"""Pattern of the white space between words. Its alternatives begin differently, which keeps
matching fast."""
_NEUTRAL = str.maketrans("[]`", "()'")
"""Characters that pages show to models in another form."""


def _utf16(character: str) -> list[str]:
    data = character.encode("utf-16-be").hex()
    return [data[start : start + 4] for start in range(0, len(data), 4)]


def _base64_patterns(value: str) -> list[str]:
    """Return patterns of `value` in base64, for each of its three alignments."""
    patterns = []
    for offset, first in ((0, 0), (1, 2), (2, 3)):
        data = b"\0" * offset + value.encode()
        # The first and last characters would also encode bits of the neighboring bytes.
        encoded = base64.b64encode(data)[first : len(data) * 8 // 6].decode()
        if len(encoded) > MIN_WORD_CHARS:
            encoded = encoded.replace("+", "(?:[+-]|%2[Bb])").replace("/", r"(?:\\*[/_]|%2[Ff])")
            patterns.append(f"(?-i:{encoded})")
    return patterns


def _mask_truncated(value: str, text: str, shown: str) -> str:
    """Mask beginnings of `value` that end in an ellipsis."""
    for end in _ELLIPSES:
        if end in text:
            for form in {value, quote(value, safe=""), quote_plus(value)}:
                for stop in range(len(form) - 1, _MIN_PREFIX_CHARS - 1, -1):
                    text = text.replace(form[:stop] + end, shown + end)
    return text
