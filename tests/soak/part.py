"""What a long run consists of: parts, each of many cases, each with a verdict."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["held", "broken", "unproven"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one case ended."""

    case: str
    """Names the case; unique in its part, so that a result file can be compared with another."""
    outcome: Outcome
    """`unproven`: nothing went wrong, but the case's control did not show that it could have."""
    detail: str = ""
    """What was found, where it did not hold."""


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of attack or input, and all its cases."""

    name: str
    about: str
    """What holds in every case, in one sentence."""
    run: Callable[[], Iterator[Verdict]]
    """Yields a verdict per case as soon as it is known. Raises nothing for a case that fails."""
