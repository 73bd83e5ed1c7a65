"""Comparison of an answer, or of text on a page, with references.

`compat` scoring follows VisualWebArena exactly, including its pitfalls. `mended` scoring differs:

* surrounding white space, Unicode compatibility forms and a final period are ignored;
* numbers compare by value (`170` and `000000170`, `$1,299.00` and `1299`);
* `<` and `>` are strict (VisualWebArena's tolerance makes them `<=` and `>=`), and values may have
  a currency sign and decimals;
* any answer but `N/A` to an impossible task scores 0 without a judge model.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from agentkv_tasks.evaluate.words import words
from agentkv_tasks.settings import Scoring
from agentkv_tasks.task import INEQUALITY, References

SCORINGS: tuple[Scoring, ...] = get_args(Scoring)

_TOLERANCE = 1e-8
_LARGEST = 10**300
_NUMBER = re.compile(r"[$€£]?\s*(-?)([\d,]*\.?\d+)")


class CannotScore(Exception):
    """Raised if scoring needs a judge model or an image; the message names what is missing."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """Who decides about meanings of answers to one task.

    `is_same` takes a reference and an answer, `is_reason` the reason why the task is impossible and
    an answer. Either raises CannotScore if it cannot tell.
    """

    is_same: Callable[[str, str], bool]
    is_reason: Callable[[str, str], bool]
    reason: str = ""
    """Why the task is impossible; empty if it is not, or if nobody wrote it down."""


def _nobody(reference: str, answer: str) -> bool:
    raise CannotScore("fuzzy_match compares meanings, which needs a judge model (--judge)")


def _nobody_knows_why(reason: str, answer: str) -> bool:
    raise CannotScore(
        "any answer but N/A to an impossible task needs a judge model (--judge) or mended scoring"
    )


UNDECIDED = Meaning(_nobody, _nobody_knows_why)
"""Nobody decides: whatever depends on a meaning is unjudged."""


def string_match(
    reference_answers: Mapping[str, object] | References,
    answer: str,
    *,
    scoring: Scoring = "compat",
    meaning: Meaning = UNDECIDED,
) -> float:
    """Return 1.0 if `answer` passes every comparison in `reference_answers`, else 0.0.

    Args:
        reference_answers: comparison name to reference, the fields of `References`.

    Raises:
        CannotScore: the result depends on a meaning that `meaning` cannot decide.
        ValueError: a comparison name is unknown.
    """
    if isinstance(reference_answers, References):
        reference_answers = reference_answers.model_dump(exclude_none=True)
    answer = clean(answer, scoring)
    score = 1.0
    for name, reference in reference_answers.items():
        if name == "fuzzy_match":
            score = _fuzzy_match(score, reference, answer, scoring, meaning)
        else:
            score *= compare(name, reference, answer, scoring=scoring)
    return score


def compare(
    name: str, reference: object, text: str, *, scoring: Scoring, meaning: Meaning = UNDECIDED
) -> float:
    """Return 1.0 if `text` passes one comparison with `reference`, else 0.0.

    Args:
        name: name of the comparison, a field of `References`.

    Raises:
        CannotScore: `name` is fuzzy_match, and `meaning` cannot decide.
        ValueError: `name` is unknown, or an inequality is malformed.
    """
    match name:
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
            entries = [reference] if isinstance(reference, str) else _strings(reference)
            holds = all(meaning.is_same(entry, text) for entry in entries)
        case _:
            raise ValueError(
                f"unknown comparison '{name}'; known: {', '.join(sorted(References.comparisons()))}"
            )
    return float(holds)


def describe(name: str, reference: object) -> str:
    """Describe a comparison to a person, as in `should include "Blue Kayak"`."""
    entries = [reference] if isinstance(reference, str) else _strings(reference)
    quoted = [" or ".join(f'"{each}"' for each in entry.split(" |OR| ")) for entry in entries]
    match name:
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
    """Lower `text` and strip one pair of outer quotes.

    `mended` scoring first strips white space and applies Unicode NFKC normalization.
    """
    if scoring == "mended":
        text = unicodedata.normalize("NFKC", text).strip()
    for quote in ("'", '"'):
        if text.startswith(quote) and text.endswith(quote):
            text = text[1:-1]
            break
    return text.lower()


def number(text: str, scoring: Scoring) -> float | None:
    """Parse `text` as a number, or return None.

    `compat` scoring reads integers only, with or without thousands separators.
    """
    if scoring == "compat":
        try:
            value = int(text.strip().replace(",", ""))
        except ValueError:
            return None
        # A larger integer cannot be compared with a float.
        return value if abs(value) < _LARGEST else None
    match = _NUMBER.fullmatch(text.strip().rstrip(".").strip())
    if match is None or "," in (match[2][:1], match[2][-1:]):
        return None
    return float(match[1] + match[2].replace(",", ""))


def satisfies(value: float, inequality: str, scoring: Scoring) -> bool:
    """Return True if `value` satisfies an inequality such as `>= 300`, within 1e-8.

    Raises:
        ValueError: `inequality` is malformed.
    """
    match = INEQUALITY.fullmatch(inequality)
    if match is None:
        raise ValueError(f"malformed inequality '{inequality}'; expected one such as '>= 300'")
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


def _fuzzy_match(
    score: float, reference: object, answer: str, scoring: Scoring, meaning: Meaning
) -> float:
    if reference == "N/A":
        score *= _equal("N/A", answer, scoring)
        if score == 1.0 or scoring == "mended":
            return score
        return float(meaning.is_reason(meaning.reason, answer))  # whatever came before it
    if score == 0.0:
        return score
    return score * compare("fuzzy_match", reference, answer, scoring=scoring, meaning=meaning)


def _strings(reference: object) -> Sequence[str]:
    assert isinstance(reference, (list, tuple)), f"expected a list of strings: {reference!r}"
    return reference
