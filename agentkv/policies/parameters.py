"""Help texts of parameters, and checks: each returns the value.

All raise PolicyError with the name of the parameter, the value found and the values allowed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from agentkv.policies.entries import PolicyError


@dataclass(frozen=True, slots=True)
class Help:
    """The help text of a parameter, as metadata of its `Annotated` type."""

    text: str


MOST = 2**31 - 1
"""Largest number of tokens or entries: a cache counts positions in 32 bits."""


def require_positive(name: str, value: object) -> int:
    """Require a whole number of at least 1 and at most `MOST`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PolicyError(f"{name} must be a whole number of tokens, at least 1; found {value!r}")
    return _at_most(name, value)


def require_count(name: str, value: object) -> int:
    """Require a whole number of at least 0 and at most `MOST`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise PolicyError(f"{name} must be a whole number of entries, at least 0; found {value!r}")
    return _at_most(name, value)


def require_odd(name: str, value: object) -> int:
    """Require an odd kernel width."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or value % 2 == 0:
        raise PolicyError(f"{name} must be an odd whole number, 1 for none; found {value!r}")
    return value


def require_number(name: str, value: object) -> float:
    """Require a finite number."""
    if not _is_number(value):
        raise PolicyError(f"{name} must be a number; found {value!r}")
    return float(value)  # type: ignore[arg-type]


def require_above(name: str, value: object, least: float) -> float:
    """Require a finite number above `least`."""
    number = require_number(name, value)
    if number <= least:
        raise PolicyError(f"{name} must be more than {least:g}; found {value!r}")
    return number


def require_at_least(name: str, value: object, least: float) -> float:
    """Require a finite number of at least `least`."""
    number = require_number(name, value)
    if number < least:
        raise PolicyError(f"{name} must be at least {least:g}; found {value!r}")
    return number


def require_share(name: str, value: object) -> float:
    """Require a number in [0, 1]."""
    if not _is_number(value) or not 0 <= value <= 1:  # type: ignore[operator]
        raise PolicyError(f"{name} must be in [0, 1]; found {value!r}")
    return float(value)  # type: ignore[arg-type]


def require_part(name: str, value: object) -> float:
    """Require a number in [0, 1)."""
    if not _is_number(value) or not 0 <= value < 1:  # type: ignore[operator]
        raise PolicyError(f"{name} must be in [0, 1); found {value!r}")
    return float(value)  # type: ignore[arg-type]


def require_one_of(name: str, value: object, known: Sequence[str]) -> str:
    """Require one of the known words."""
    if not isinstance(value, str) or value not in known:
        raise PolicyError(f"{name} must be one of {', '.join(known)}; found {value!r}")
    return value


def require_flag(name: str, value: object) -> bool:
    """Require a bool."""
    if not isinstance(value, bool):
        raise PolicyError(f"{name} must be true or false; found {value!r}")
    return value


def require_numbers(name: str, value: object, count: int) -> tuple[float, ...]:
    """Require `count` finite numbers of at least 0."""
    given = tuple(value) if isinstance(value, (tuple, list)) else ()
    if len(given) != count or not all(_is_number(number) and number >= 0 for number in given):
        raise PolicyError(f"{name} must be {count} numbers, none below 0; found {value!r}")
    return tuple(float(number) for number in given)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _at_most(name: str, value: int) -> int:
    if value > MOST:
        bits = value.bit_length()  # such a number may be too long to print
        raise PolicyError(f"{name} must be at most {MOST:,}; found a number of {bits} bits")
    return value
