"""Formats and patterns of strings: what a grammar of llguidance can enforce of them."""

import ipaddress
import json
import re
from collections.abc import Callable
from typing import Any

from llguidance import LLMatcher, LLTokenizer

_YEAR = r"(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP_YEAR = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    rf"|{_LEAP_YEAR}-02-29)"
)
_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
    r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_DURATION_TIME = (
    r"T(?:[0-9]{1,4}H(?:[0-9]{1,4}M(?:[0-9]{1,6}S)?)?|[0-9]{1,4}M(?:[0-9]{1,6}S)?|[0-9]{1,6}S)"
)
_DURATION = (
    r"^P(?:[0-9]{1,4}W|(?:[0-9]{1,4}Y(?:[0-9]{1,4}M(?:[0-9]{1,4}D)?)?|[0-9]{1,4}M(?:[0-9]{1,4}D)?"
    rf"|[0-9]{{1,4}}D)(?:{_DURATION_TIME})?|{_DURATION_TIME})$"
)
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"(?:{_OCTET}\.){{3}}{_OCTET}"
_GROUP = r"[0-9a-f]{1,4}"
_IPV6 = (
    rf"(?:(?:{_GROUP}:){{7}}{_GROUP}|(?:{_GROUP}:){{1,7}}:|(?:{_GROUP}:){{1,5}}(?::{_GROUP}){{1,2}}"
    rf"|::(?:{_GROUP}(?::{_GROUP}){{0,5}})?)"
)
_IPV4_BITS = r"(?:/(?:3[0-2]|[12]?[0-9]))?"
_IPV6_BITS = r"(?:/(?:12[0-8]|1[01][0-9]|[1-9]?[0-9]))?"
_WITH_BITS = {
    "ipv4": f"^{_IPV4}{_IPV4_BITS}$",
    "ipv6": f"^{_IPV6}{_IPV6_BITS}$",
    "ipvany": f"^(?:{_IPV4}{_IPV4_BITS}|{_IPV6}{_IPV6_BITS})$",
}
_BASE64 = r"^(?:[A-Za-z0-9{0}]{{4}})*(?:[A-Za-z0-9{0}]{{2}}==|[A-Za-z0-9{0}]{{3}}=)?$"

OF_LLGUIDANCE = ("email", "hostname", "ipv4", "ipv6", "uri", "uuid")
"""Formats that llguidance knows, and that are left to it."""
PATTERNS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "duration": _DURATION,
    "base64": _BASE64.format("+/"),
    "base64url": _BASE64.format("_-"),
    "byte": _BASE64.format("+/"),
    **{
        f"uuid{version}": f"^[0-9a-f]{{8}}-[0-9a-f]{{4}}-{version}[0-9a-f]{{3}}-"
        "[89ab][0-9a-f]{3}-[0-9a-f]{12}$"
        for version in range(1, 9)
    },
    "ipvanyaddress": f"^(?:{_IPV4}|{_IPV6})$",
    **{f"{kind}network": pattern for kind, pattern in _WITH_BITS.items()},
    **{f"{kind}interface": pattern for kind, pattern in _WITH_BITS.items()},
}
"""Further formats as patterns, which allow some of what they may be: dates are days that exist, and
numbers in durations are so short that programs can add them up."""
CHECKED: dict[str, Callable[[str], object]] = {
    "ipv4network": ipaddress.IPv4Network,
    "ipv6network": ipaddress.IPv6Network,
    "ipvanynetwork": ipaddress.ip_network,
}
"""Formats whose pattern allows too much, and functions that raise ValueError for a wrong string."""
FREE = (
    *("binary", "color", "directory-path", "file-path", "json-string", "multi-host-uri"),
    *("name-email", "password", "path", "regex", "unknown", "zoneinfo"),
)
"""Formats that describe a string and allow every one."""


class PatternError(ValueError):
    """A pattern that no grammar can enforce; the message says why."""


def split_pattern(pattern: str) -> tuple[list[str], list[str]]:
    """Return patterns without look-around that a string must match, and others that it must not.

    Pydantic's pattern of a Decimal, which allows too much, becomes that of the numbers it is meant
    to allow. Look-aheads at the beginning of a pattern become patterns of their own.

    Raises:
        PatternError: it has look-around elsewhere, or refers back.
    """
    if (decimal := _decimal_pattern(pattern)) is not None:
        return [decimal], []
    wanted: list[str] = []
    unwanted: list[str] = []
    rest = pattern.removeprefix("^")
    while pattern.startswith("^") and (found := re.match(r"\(\?([=!])", rest)):
        end = _end_of_group(rest)
        own = wanted if found[1] == "=" else unwanted
        own.append(f"^(?:{rest[found.end() : end]})")
        rest = rest[end + 1 :]
    if wanted or unwanted:
        if "|" in _outside_groups(rest):
            raise PatternError("it has a look-ahead in one of several alternatives")
        wanted.append(f"^{rest}")
    else:
        wanted = [pattern]
    for part in (*wanted, *unwanted):
        if found := _UNKNOWN.search(_WITHOUT_SENSE.sub("", part)):
            raise PatternError(
                f"{found[0]} is look-around or refers back, which a grammar cannot enforce; only "
                "look-aheads right after ^ are known"
            )
    return wanted, unwanted


_WITHOUT_SENSE = re.compile(r"\\[^bBZ1-9k]|\[\^?\]?(?:\\.|[^\]\\])*\]")
"""Escapes and sets of characters that cannot be look-around."""
_UNKNOWN = re.compile(r"\(\?<?[=!]|\(\?P=|\\[bBZ1-9k]")


def _end_of_group(pattern: str) -> int:
    """Return the place of the bracket that closes the group at the beginning of `pattern`."""
    depth = 0
    for found in _BRACKETS.finditer(pattern):
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        if depth == 0:
            return found.start()
    raise PatternError("a bracket is not closed")


def _outside_groups(pattern: str) -> str:
    """Return what of `pattern` stands outside of brackets."""
    depth, kept = 0, ""
    for found in _BRACKETS.finditer(pattern):
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        kept += found[0] if depth == 0 else ""
    return kept


_BRACKETS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)


def _decimal_pattern(pattern: str) -> str | None:
    """Return a pattern of the numbers that pydantic's pattern of a Decimal means; None for any
    other one."""
    head, _, rest = pattern.partition(r"^(?!^[-+.]*$)[+-]?0*")
    if head or not rest:
        return None
    if rest == r"\d*\.?\d*$":
        return rf"^[+-]?{_digits('1,', '0,', '1,')}$"
    if found := re.fullmatch(r"\\d\*\\\.\?\\d\{0,(\d+)\}0\*\$", rest):
        places = int(found[1])
        return rf"^[+-]?{_digits('1,', f'0,{places}', f'1,{places}')}$"
    found = re.fullmatch(
        r"\(\?:\\d\{0,(\d+)\}\|\(\?=\[\\d\.\]\{1,(\d+)\}0\*\$\)"
        r"(?:\\d\{0,\d+\}\\\.\\d\{0,(\d+)\}|\\d\*\\\.\\d\*)0\*\$\)",
        rest,
    )
    if found is None:
        return None
    before, places = int(found[1]), int(found[3] or 0)
    if found[3] is None:  # this many digits in all
        return rf"^[+-]?(?:[0-9]{{1,{before}}}|{'|'.join(_with_point(before))})$"
    return rf"^[+-]?{_digits(f'1,{before}', f'0,{places}', f'1,{places}')}$"


def _digits(before: str, after: str, alone: str) -> str:
    """Return a pattern of decimal numbers, given how many digits stand before the point, after it,
    and after it where none stands before."""
    parts = []
    if before != "1,0":
        parts.append(rf"[0-9]{{{before}}}(?:\.[0-9]{{{after}}})?")
    if alone != "1,0":
        parts.append(rf"\.[0-9]{{{alone}}}")
    return f"(?:{'|'.join(parts)})"


def _with_point(num_digits: int) -> list[str]:
    """Return patterns of numbers with a point and at most `num_digits` digits."""
    if num_digits > _MOST_DIGITS:
        raise PatternError(f"a Decimal has at most {_MOST_DIGITS} digits here")
    return [
        rf"[0-9]{{{before}}}\.[0-9]{{{0 if before else 1},{num_digits - before}}}"
        for before in range(num_digits)
    ]


_MOST_DIGITS = 100


class StringTests:
    """Tests strings against patterns and formats, by the grammars that enforce them: the time is
    bounded whatever the pattern is."""

    def __init__(self) -> None:
        self._tokenizer = LLTokenizer("byte")
        self._matchers: dict[tuple[str, str], LLMatcher] = {}

    def matches(self, pattern: str, text: str) -> bool:
        """Return whether `text` matches a pattern of a schema."""
        wanted, unwanted = split_pattern(pattern)
        return all(self._accepts("pattern", each, text) for each in wanted) and not any(
            self._accepts("pattern", each, text) for each in unwanted
        )

    def has_format(self, format: str, text: str) -> bool:
        """Return whether `text` has a format; True for those that allow every string."""
        if format in CHECKED:
            try:
                CHECKED[format](text)
            except ValueError:
                return False
        if format in PATTERNS:
            return self._accepts("pattern", PATTERNS[format], text)
        return format not in OF_LLGUIDANCE or self._accepts("format", format, text)

    def _accepts(self, keyword: str, value: str, text: str) -> bool:
        matcher = self._matchers.get((keyword, value))
        if matcher is None:
            schema: dict[str, Any] = {"type": "string", keyword: value}
            grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema))
            matcher = self._matchers[keyword, value] = LLMatcher(self._tokenizer, grammar)
        if matcher.is_error():
            return False
        matcher.reset()
        data = list(json.dumps(text, ensure_ascii=False).encode("utf-8", "replace"))
        return bool(matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting())
