"""Text of strangers made fit to stand among lines of ours: cleaned, folded, quoted. Pure."""

import re
import unicodedata
from functools import lru_cache

_REPLACEMENTS = {"[": "(", "]": ")", "`": "'"}
"""Brackets hold the numbers of elements, and backticks the actions."""
# Drawn as nothing, though Unicode counts them among the letters, the marks or the unassigned.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u3164\uffa0\U000e0000-\U000e0fff]"
)


def clean(text: str) -> str:
    """`text` on one line, white space collapsed, without what nobody sees.

    Control characters become spaces; format characters (bidirectional controls, joiners of no
    width), unpaired surrogates and other characters that are drawn as nothing go.
    """
    if not text.isascii() or not text.isprintable():
        text = "".join(map(_visible_character, text))
    return " ".join(text.split())


def neutralize(text: str) -> str:
    """`text` as `clean` has it, and unable to forge an id or a fence.

    Square brackets become round ones and backticks become apostrophes; so do the characters that
    one of Unicode's normal forms would turn into them.
    """
    text = clean(text)
    return "".join(map(_neutral_character, text)) if not text.isascii() else text.translate(_TABLE)


@lru_cache(maxsize=4096)  # pages are much like the ones before
def normal_forms(text: str) -> tuple[str, ...]:
    """What `text` is to whoever reads generously; for comparing only.

    What Unicode's normal forms and case folding make equal is equal here, and white space is
    collapsed. Marks on letters, and characters nobody sees, count for nothing in the first reading
    and for a gap in the second. The third is not normalised: a symbol there is no letters yet.
    """
    if text.isascii():
        return (" ".join(text.lower().split()),)
    return _normal_form(text, ""), _normal_form(text, " "), " ".join(text.casefold().split())


def quote(text: str) -> str:
    """`text` in double quotes, as one word of a line: no double quote is inside."""
    text = neutralize(text)
    if not text.isascii():
        text = "".join("'" if '"' in unicodedata.normalize("NFKD", c) else c for c in text)
    return '"' + text.replace('"', "'") + '"'


_TABLE = str.maketrans(_REPLACEMENTS)


def _normal_form(text: str, gap: str) -> str:
    for _ in range(2):  # folding may bring forth what normalises once more
        text = unicodedata.normalize("NFKD", text)
        text = "".join(_base_character(character) or gap for character in text).casefold()
    return " ".join(text.split())


@lru_cache(maxsize=4096)
def _base_character(character: str) -> str:
    return "" if unicodedata.category(character)[0] == "M" else _visible_character(character)


@lru_cache(maxsize=4096)
def _visible_character(character: str) -> str:
    category = unicodedata.category(character)
    if category in ("Cc", "Zl", "Zp"):
        return " "
    return "" if category in ("Cf", "Cs") or _INVISIBLE.match(character) else character


@lru_cache(maxsize=4096)
def _neutral_character(character: str) -> str:
    # The widest of the four forms: what any of them makes of one character is in it.
    form = unicodedata.normalize("NFKD", character)
    return form.translate(_TABLE) if not _REPLACEMENTS.keys().isdisjoint(form) else character
