"""Sanitize untrusted text for observations: clean, neutralize and quote it."""

import re
import unicodedata
from functools import lru_cache

NUMBER_BRACKETS = "⟦⟧"
"""Brackets around a number of the page's. They are mathematical white square brackets, which no
normal form maps to the square brackets that enclose element ids in observations."""

TAB_WIDTH = 4  # columns of a tab in a line of preformatted text; browsers show 8

# Backticks enclose actions in replies.
_REPLACEMENTS = {"`": "'"}
_OPENING, _CLOSING = (
    f"[{re.escape(''.join(alike))}]" for alike in (("[", "［", "﹇"), ("]", "］", "﹈"))
)
_BRACKETED = re.compile(rf"{_OPENING}((?:(?!{_OPENING}|{_CLOSING}).)*){_CLOSING}")
_NUMBER = re.compile(r"[\W_]*\d+[\W_]*")
_NUMBER_OR_NONE = re.compile(r"[\W_]*\d*[\W_]*")
_IN_NUMBER_BRACKETS = re.compile("⟦([^⟦⟧]*)(⟧|$)")
# Invisible, though Unicode classifies these as letters, marks or unassigned.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u3164\uffa0\U000e0000-\U000e0fff]"
)


def clean(text: str, *, is_code: bool = False) -> str:
    """Return `text` on one line, with collapsed white space and no invisible characters.

    Control characters become spaces. Format characters (bidirectional controls, zero-width
    joiners), unpaired surrogates and other invisible characters are removed. With `is_code`, a line
    of preformatted text, only the white space at the end is removed.
    """
    if is_code:
        text = text.expandtabs(TAB_WIDTH)
    if not text.isascii() or not text.isprintable():
        text = "".join(map(_visible_character, text))
    return text.rstrip() if is_code else " ".join(text.split())


def neutralize(text: str, *, is_code: bool = False) -> str:
    """Clean `text` and make it unable to forge an element id or a fence.

    Square brackets around a single number become `NUMBER_BRACKETS`; others stay, because they
    enclose no id. So does one before a number or nothing at the end, because a later part of the
    line may close it; a line of code has no other part. Backticks become apostrophes. The same
    holds for characters that a Unicode normal form maps to these. `is_code`: see `clean`.
    """
    text = clean(text, is_code=is_code)
    if text.isascii():
        text = text.translate(_TABLE)
    else:
        text = "".join(map(_neutral_character, text))
    text = _BRACKETED.sub(_neutral_brackets, text)
    return text if is_code else _neutral_end(text)


def original_brackets(text: str) -> str:
    """Return `text`, copied from an observation, with the page's own square brackets."""
    return _IN_NUMBER_BRACKETS.sub(lambda found: f"[{found[1]}" + "]" * bool(found[2]), text)


def _neutral_brackets(found: re.Match[str]) -> str:
    is_number = any(map(_NUMBER.fullmatch, normal_forms(found[1])))
    return NUMBER_BRACKETS[0] + found[1] + NUMBER_BRACKETS[1] if is_number else found[0]


def _neutral_end(text: str) -> str:
    """Return `text` with neutral unclosed brackets if a number or nothing follows the last."""
    tail = re.split(_CLOSING, text)[-1]
    _, *after = re.split(_OPENING, tail)
    if not after or not any(map(_NUMBER_OR_NONE.fullmatch, normal_forms(after[-1]))):
        return text
    return text.removesuffix(tail) + re.sub(_OPENING, NUMBER_BRACKETS[0], tail)


@lru_cache(maxsize=4096)  # consecutive pages share most of their texts
def normal_forms(text: str) -> tuple[str, ...]:
    """Return the texts as which a tolerant reader may read `text`; for comparisons only.

    Texts that Unicode's normal forms or case folding make equal are equal here; white space is
    collapsed. Combining marks and invisible characters are removed in the first form and become
    spaces in the second. The third form is not normalized, so symbols do not become letters.
    """
    if text.isascii():
        return (" ".join(text.lower().split()),)
    return _normal_form(text, ""), _normal_form(text, " "), " ".join(text.casefold().split())


def quote(text: str, *, is_code: bool = False) -> str:
    """Return `text` in double quotes; double quotes inside become apostrophes.

    `is_code`: see `clean`.
    """
    text = neutralize(text, is_code=is_code)
    if not text.isascii():
        text = "".join("'" if '"' in unicodedata.normalize("NFKD", c) else c for c in text)
    return '"' + text.replace('"', "'") + '"'


_TABLE = str.maketrans(_REPLACEMENTS)


def _normal_form(text: str, gap: str) -> str:
    for _ in range(2):  # case folding may produce characters that normalize again
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
    # NFKD is the widest of the four normal forms for a single character.
    form = unicodedata.normalize("NFKD", character)
    return form.translate(_TABLE) if not _REPLACEMENTS.keys().isdisjoint(form) else character
