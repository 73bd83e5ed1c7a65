"""Secrets and how they are kept out of files and off the terminal.

A secret is what was typed into a password field, or what stands before the host of an address
(`http://user:secret@host/`). It may come back in many spellings: in an answer, in the address of a
form, in a page's markup. `Secrets` finds all of them.
"""

import base64
import html
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, quote_plus, unquote

MASK = "***"

SHORT = 4
"""Values of fewer characters are masked only where they are a whole value (our choice): an answer,
the text of a `type` action, a parameter of an address. Elsewhere they say nothing."""
LONG = 8
"""Values of fewer characters are masked only where they are a word of their own (our choice)."""

_USERINFO = re.compile(r"(?<![A-Za-z0-9+.-])([A-Za-z][A-Za-z0-9+.-]*:[/\\]{2,})([^\s/?#\\\"'<>]*)@")
_CUT = ("...", "…")
_PIECE = 200
_LEAST_CUT = 4  # characters of a secret that a text which was cut short may still show


class Secrets:
    """Values that must not be shown; collects them, and masks every spelling of them in a text.

    Addresses lose what stands before their host in any case, collected or not.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values: dict[str, re.Pattern[str]] = {}
        for value in values:
            self.add(value)

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: str) -> None:
        """Mask `value` from now on. White space around it does not count."""
        value = value.strip().encode(errors="replace").decode()
        while len(value) > 2 * _PIECE:  # a pattern grows with what it finds
            self.add(value[:_PIECE])
            value = value[_PIECE:]
        if value and value not in self._values:
            self._values[value] = re.compile(_pattern(value), re.IGNORECASE)

    def add_credentials(self, text: str) -> None:
        """Mask from now on the passwords that addresses in `text` carry before their host; where
        there is only a name, that is the secret."""
        for found in _USERINFO.finditer(text):
            name, colon, password = found[2].partition(":")
            self.add(unquote(password if colon and password else name))

    def update(self, other: "Secrets") -> None:
        """Mask also what `other` masks."""
        self._values |= other._values

    def mask(self, text: str) -> str:
        """`text` with `***` in the place of each secret."""
        text = _USERINFO.sub(rf"\1{MASK}@", text)
        for value, pattern in self._values.items():
            text = pattern.sub(_masked, text)
            if len(value) >= LONG:
                text = _without_cut(value, text)
        return text

    def mask_within(self, value: Any, *, keep: frozenset[str] = frozenset()) -> Any:
        """`value`, of lists, mappings and texts, with all its texts masked.

        Args:
            keep: names of a mapping whose values stay as they are.
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


def _masked(found: re.Match[str]) -> str:
    return (found.groupdict().get("before") or "") + MASK


def _pattern(value: str) -> str:
    """All spellings of `value`; what group `before` holds is not part of it."""
    spelt = _SPACE.join("".join(map(_spellings, word)) for word in _GAP.split(value))
    if len(value) < SHORT:
        places = (r"type \[\d+\] \[ ?", r"stop \[ ?", r"[?&][^=&#\s]*=")
        return rf"\A{spelt}\Z|(?P<before>{'|'.join(places)}){spelt}(?= ?\]|[&#\s]|\Z)"
    if len(value) < LONG:
        # an encoded character in front ends in a letter or a digit and is none
        edges = r"(?:(?<!\w)|(?<=%[0-9A-F]{2})|(?<=\\[bfnrt])|(?<=\\u[0-9A-F]{4}))"
        spelt = rf"{edges}{spelt}(?!\w)"
    return "|".join([spelt, *_in_base64(value)])


def _spellings(character: str) -> str:
    """A pattern of the ways in which texts, addresses, HTML and JSON write `character`."""
    number = ord(character)
    ways = {
        rf"\\*{re.escape(character)}" if character in "\"'\\/" else re.escape(character),
        "".join(f"%(?:25)*{byte:02X}" for byte in character.encode()),
        rf"&(?:amp;)?#0*{number};",
        rf"&(?:amp;)?#x0*{number:X};",
        "".join(rf"\\+u{unit}" for unit in _utf16(character)),
        re.escape(html.escape(character)),
        re.escape(character.translate(_NEUTRAL)),
    }
    return f"(?:{'|'.join(sorted(ways, key=len, reverse=True))})"


_GAP = re.compile(r"[\s\x00-\x20\x7f-\x9f]+")
_SPACE = (
    r"(?:[\s\x00-\x20\x7f-\x9f+]|%(?:25)*[0127][0-9A-F]|%(?:25)*C2%(?:25)*[89A][0-9A-F]|&nbsp;"
    r"|&(?:amp;)?#(?:32|x20|160|xA0);|\\+(?:[nrt]|[ux]?00[0-9A][0-9A-F]))+"
)
"""What a gap between words comes to; each way begins otherwise, so that matching takes no time."""
_NEUTRAL = str.maketrans("[]`", "()'")  # as pages are shown to models


def _utf16(character: str) -> list[str]:
    data = character.encode("utf-16-be").hex()
    return [data[start : start + 4] for start in range(0, len(data), 4)]


def _in_base64(value: str) -> list[str]:
    """Patterns of what `value` comes to in base64, wherever in the encoded bytes it begins."""
    found = []
    for offset, first in ((0, 0), (1, 2), (2, 3)):
        data = b"\0" * offset + value.encode()
        sure = base64.b64encode(data)[first : len(data) * 8 // 6].decode()  # its neighbours' not
        if len(sure) > SHORT:
            sure = sure.replace("+", "(?:[+-]|%2[Bb])").replace("/", r"(?:\\*[/_]|%2[Ff])")
            found.append(f"(?-i:{sure})")
    return found


def _without_cut(value: str, text: str) -> str:
    """`text` without the beginnings of `value` that something cut short."""
    for end in _CUT:
        if end in text:
            for form in {value, quote(value, safe=""), quote_plus(value)}:
                for stop in range(len(form) - 1, _LEAST_CUT - 1, -1):
                    text = text.replace(form[:stop] + end, MASK + end)
    return text
