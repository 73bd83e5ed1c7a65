"""What people may give as parameters: each check returns the value or says what it must be.

All raise PolicyError, naming the parameter and what was found.
"""

import math
from collections.abc import Sequence

from agentkv.policies.entries import PolicyError


def require_rows(name: str, value: object) -> int:
    """A number of rows that holds something."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PolicyError(f"{name} must be a whole number of tokens, at least 1; found {value!r}")
    return value


def require_count(name: str, value: object) -> int:
    """A number of rows, perhaps none."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise PolicyError(f"{name} must be a whole number of rows, at least 0; found {value!r}")
    return value


def require_odd(name: str, value: object) -> int:
    """The width of a pooling kernel."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or value % 2 == 0:
        raise PolicyError(f"{name} must be an odd whole number, 1 for none; found {value!r}")
    return value


def require_number(name: str, value: object) -> float:
    """Any finite number."""
    if not _is_number(value):
        raise PolicyError(f"{name} must be a number; found {value!r}")
    return float(value)  # type: ignore[arg-type]


def require_above(name: str, value: object, least: float) -> float:
    """A finite number above `least`."""
    number = require_number(name, value)
    if number <= least:
        raise PolicyError(f"{name} must be more than {least:g}; found {value!r}")
    return number


def require_at_least(name: str, value: object, least: float) -> float:
    """A finite number, `least` or more."""
    number = require_number(name, value)
    if number < least:
        raise PolicyError(f"{name} must be at least {least:g}; found {value!r}")
    return number


def require_share(name: str, value: object) -> float:
    """A number from 0 to 1."""
    if not _is_number(value) or not 0 <= value <= 1:  # type: ignore[operator]
        raise PolicyError(f"{name} must be in [0, 1]; found {value!r}")
    return float(value)  # type: ignore[arg-type]


def require_part(name: str, value: object) -> float:
    """A number from 0 to 1, 1 left out."""
    if not _is_number(value) or not 0 <= value < 1:  # type: ignore[operator]
        raise PolicyError(f"{name} must be in [0, 1); found {value!r}")
    return float(value)  # type: ignore[arg-type]


def require_one_of(name: str, value: object, known: Sequence[str]) -> str:
    """One of the known words."""
    if not isinstance(value, str) or value not in known:
        raise PolicyError(f"{name} must be one of {', '.join(known)}; found {value!r}")
    return value


def require_flag(name: str, value: object) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise PolicyError(f"{name} must be true or false; found {value!r}")
    return value


def require_numbers(name: str, value: object, count: int) -> tuple[float, ...]:
    """That many finite numbers, none below 0."""
    given = tuple(value) if isinstance(value, (tuple, list)) else ()
    if len(given) != count or not all(_is_number(number) and number >= 0 for number in given):
        raise PolicyError(f"{name} must be {count} numbers, none below 0; found {value!r}")
    return tuple(float(number) for number in given)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
