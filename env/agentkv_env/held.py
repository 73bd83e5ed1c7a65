"""Whether a field holds a text, perhaps in a form of its own."""

import re
import unicodedata
from collections import Counter
from decimal import Decimal

MAX_PREFIX = 3
"""Digits that a field may put before a number of a telephone, ..."""
MIN_TELEPHONE = 7
"""... which itself has this many digits or more."""
MAX_DIGITS = 40
"""Characters of a number; a longer text is none."""

_NUMBER = re.compile(r"([+-]?)(\d[\d.,]*|[.,]\d+)")
_GROUPED = re.compile(r"\d{1,3}(?:([.,])\d{2,3})*([.,])\d{3}")


def is_same(text: str, held: str) -> bool:
    """Return whether `held` is `text`, but for white space and invisible characters."""
    return _plain(text) == _plain(held)


def is_formatted(text: str, held: str, *, before: str = "") -> bool:
    """Return whether `held` is `text` in another form, such as `(555) 123-4567` for `5551234567`.

    A field may change case and punctuation, put words around a text or units around a number, and
    write a number with separators, decimals or leading zeros. It may not leave a part out.

    Args:
        text: what was typed.
        held: what the field holds.
        before: what the field held before; a text put after it is not in the field by itself.
    """
    wanted, found = _numbers(text), _numbers(_without_words(held))
    if wanted and found:
        return bool(wanted & found)
    letters, others = _letters(text), _letters(held)
    if not letters:
        return False
    if letters == others:
        return letters.isdigit() or not _is_dropped(text, held)
    if _parts(text) == _parts(held):
        return True
    if letters.isdigit() and len(letters) >= MIN_TELEPHONE:
        return others.endswith(letters) and len(others) <= len(letters) + MAX_PREFIX
    return _is_within(text, held, before)


def has_same_letters(text: str, held: str) -> bool:
    """Return whether two texts have the same letters and digits in the same order."""
    return _letters(text) == _letters(held)


def to_number(text: str) -> float | None:
    """Return the number in a text such as `$1,250` or `50 %`, or None if it is no single number."""
    plain = "".join(_without_words(text).split()).replace(",", "")
    return float(plain) if re.fullmatch(r"[+-]?(?:\d+\.?\d*|\.\d+)", plain, re.ASCII) else None


def _plain(text: str) -> str:
    visible = (each for each in text if unicodedata.category(each) != "Cf")
    return " ".join("".join(visible).split())


def _letters(text: str) -> str:
    normal = unicodedata.normalize("NFKC", text).casefold()
    return "".join(filter(str.isalnum, normal))


def _without_words(text: str) -> str:
    """Return a number without unit and currency."""
    return "".join(each for each in text if not each.isalpha() and not _is_unit(each))


def _is_unit(character: str) -> bool:
    return character == "%" or unicodedata.category(character) == "Sc"  # $, €, ₩ ...


def _parts(text: str) -> list[str]:
    """Return the words and numbers of a text, without leading zeros: 03/04 is 3/4."""
    normal = unicodedata.normalize("NFKC", text).casefold()
    return [each.lstrip("0") or "0" for each in re.findall(r"\d+|[^\W\d_]+", normal)]


def _numbers(text: str) -> set[Decimal]:
    """Return the numbers that a text may be; `1.500` is two, in different countries."""
    text = "".join(text.replace("\N{MINUS SIGN}", "-").split()).replace("'", "")
    text = "".join(each for each in text if not _is_unit(each))
    match = _NUMBER.fullmatch(text) if text.isascii() else None
    if not match or len(text) > MAX_DIGITS:
        return set()
    sign, body = match.groups()
    marks = re.findall(r"[.,]", body)
    found = set()
    if _GROUPED.fullmatch(body) and len({*marks}) == 1:
        found.add(re.sub(r"[.,]", "", body))
    if not marks or marks.count(marks[-1]) == 1:
        whole, _, rest = body.rpartition(marks[-1]) if marks else (body, "", "")
        if not re.search(r"[.,]", whole) or _GROUPED.fullmatch(whole):
            found.add(f"{re.sub('[.,]', '', whole) or 0}.{rest or 0}")
    return {Decimal(f"{sign}{each}") for each in found}


def _is_dropped(text: str, held: str) -> bool:
    """Return whether the field has rejected punctuation, rather than written another."""
    typed, left = (
        Counter(c for c in each if not c.isalnum() and not c.isspace()) for each in (text, held)
    )
    return bool(typed - left) and not left - typed


def _is_within(text: str, held: str, before: str) -> bool:
    """Return whether `held` is `text` with more words around it, none of them from `before`."""
    plain, whole = _plain(text).casefold(), _plain(held).casefold()
    match = re.search(rf"(?<![^\W_]){re.escape(plain)}(?![^\W_])", whole)
    if not match:
        return False
    rest = _letters(whole[: match.start()] + whole[match.end() :])
    return not (old := _letters(before)) or old not in rest
