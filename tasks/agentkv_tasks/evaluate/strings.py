"""Comparing an answer, or the text of a page, with references.

`compat` scores exactly as VisualWebArena does, traps included. `mended` repairs these:

* white space at the ends, unicode look-alikes and a closing full stop of an answer do not matter;
* a number equals the same number written otherwise (`170`, `000000170`, `$1,299.00`, `1299`);
* `<` and `>` are strict (upstream's tolerance makes them `<=` and `>=`), and values may carry a
  currency sign and decimals;
* an answer other than `N/A` to a task that cannot be done scores 0 instead of asking a judge.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Literal

from agentkv_tasks.evaluate.words import words
from agentkv_tasks.task import INEQUALITY, References

Scoring = Literal["compat", "mended"]
SCORINGS: tuple[Scoring, ...] = ("compat", "mended")

_TOLERANCE = 1e-8
_LARGEST = 10**300
_NUMBER = re.compile(r"[$€£]?\s*(-?)([\d,]*\.?\d+)")


class Unjudged(Exception):
    """This cannot be scored without a judge model or an image; the message says what is missing."""


def string_match(
    reference_answers: Mapping[str, object] | References,
    answer: str,
    *,
    scoring: Scoring = "compat",
) -> float:
    """1.0 if `answer` compares as every key of `reference_answers` asks, else 0.0.

    Raises:
        Unjudged: only a judge model could say.
        ValueError: a key names no comparison.
    """
    if isinstance(reference_answers, References):
        reference_answers = reference_answers.model_dump(exclude_none=True)
    answer = clean(answer, scoring)
    score = 1.0
    for way, reference in reference_answers.items():
        if way == "fuzzy_match":
            score = _fuzzy(score, reference, answer, scoring)
        else:
            score *= compare(way, reference, answer, scoring=scoring)
    return score


def compare(way: str, reference: object, text: str, *, scoring: Scoring) -> float:
    """One comparison of `text` with `reference`, 1.0 or 0.0; `way` is a field of `References`.

    Raises:
        Unjudged: `way` is fuzzy_match.
        ValueError: `way` names no comparison, or an inequality cannot be read.
    """
    match way:
        case "exact_match":
            assert isinstance(reference, str), "exact_match takes one string"
            holds = _equal(reference, text, scoring)
        case "must_include":
            holds = all(
                any(_occurs(option, text, scoring) for option in entry.split(" |OR| "))
                for entry in _strings(reference)
            )
        case "must_exclude":
            holds = not any(_occurs(entry, text, scoring) for entry in _strings(reference))
        case "one_of":
            holds = any(clean(entry, scoring) in text for entry in _strings(reference))
        case "required_values":
            value = number(text, scoring)
            holds = value is not None and all(
                any(satisfies(value, option, scoring) for option in entry.split(" |OR| "))
                for entry in _strings(reference)
            )
        case "fuzzy_match":
            raise Unjudged("fuzzy_match compares meanings and needs a judge model")
        case _:
            raise ValueError(
                f"unknown comparison '{way}'; known: {', '.join(sorted(References.ways()))}"
            )
    return float(holds)


def wording(way: str, reference: object) -> str:
    """What `compare` asks of a text, for a person: `should include "Blue Kayak"`."""
    entries = [reference] if isinstance(reference, str) else _strings(reference)
    quoted = [" or ".join(f'"{one}"' for one in entry.split(" |OR| ")) for entry in entries]
    match way:
        case "must_include":
            return f"should include {' and '.join(quoted)}"
        case "must_exclude":
            return f"should not include {' or '.join(quoted)}"
        case "one_of":
            return f"should include {' or '.join(quoted)}"
        case "required_values":
            bounds = " and ".join(entry.replace(" |OR| ", " or ") for entry in entries)
            return f"should be a number {bounds}"
        case "fuzzy_match":
            return f"should mean {' and '.join(quoted)}"
        case _:
            return f'should be "{reference}"'


def clean(text: str, scoring: Scoring) -> str:
    """`text` without one pair of outer quotes, in lower case; `mended` also trims and folds."""
    if scoring == "mended":
        text = unicodedata.normalize("NFKC", text).strip()
    for quote in ("'", '"'):
        if text.startswith(quote) and text.endswith(quote):
            text = text[1:-1]
            break
    return text.lower()


def number(text: str, scoring: Scoring) -> float | None:
    """The number that `text` is, or None; `compat` reads integers with thousands commas only."""
    if scoring == "compat":
        try:
            value = int(text.strip().replace(",", ""))
        except ValueError:
            return None
        # Larger ones cannot be compared with a float.
        return value if abs(value) < _LARGEST else None
    match = _NUMBER.fullmatch(text.strip().rstrip(".").strip())
    if match is None or "," in (match[2][:1], match[2][-1:]):
        return None
    return float(match[1] + match[2].replace(",", ""))


def satisfies(value: float, inequality: str, scoring: Scoring) -> bool:
    """Whether `value` satisfies e.g. `>= 300`, within 1e-8.

    Raises:
        ValueError: `inequality` cannot be read.
    """
    match = INEQUALITY.fullmatch(inequality)
    if match is None:
        raise ValueError(f"cannot read the inequality '{inequality}'; expected e.g. '>= 300'")
    bound = float(match[2])
    slack = _TOLERANCE if scoring == "compat" else -_TOLERANCE
    match match[1]:
        case "<=":
            return value <= bound + _TOLERANCE
        case ">=":
            return value >= bound - _TOLERANCE
        case "==":
            return abs(value - bound) <= _TOLERANCE
        case "<":
            return value < bound + slack
        case _:
            return value > bound - slack


def _equal(reference: str, text: str, scoring: Scoring) -> bool:
    reference, text = clean(reference, scoring), clean(text, scoring)
    if reference == text or scoring == "compat":
        return reference == text
    return text.rstrip(".") == reference.rstrip(".") or _same_number(reference, text)


def _occurs(reference: str, text: str, scoring: Scoring) -> bool:
    reference, text = clean(reference, scoring), clean(text, scoring)
    if len(words(reference)) != 1:
        return reference in text
    found = words(text)
    if reference in found or scoring == "compat":
        return reference in found
    return any(_same_number(reference, word) for word in found)


def _same_number(one: str, other: str) -> bool:
    value = number(one, "mended")
    return value is not None and value == number(other, "mended")


def _fuzzy(score: float, reference: object, answer: str, scoring: Scoring) -> float:
    if reference == "N/A":
        score *= _equal("N/A", answer, scoring)
        if score == 1.0 or scoring == "mended":
            return score
        raise Unjudged("whether another answer than N/A gives the right reason needs a judge model")
    if score == 0.0:
        return score
    raise Unjudged("fuzzy_match compares meanings and needs a judge model")


def _strings(reference: object) -> Sequence[str]:
    assert isinstance(reference, (list, tuple)), f"a list of strings, not {reference!r}"
    return reference
