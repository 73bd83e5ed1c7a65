"""The parts of a long run, with a verdict for each case."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["held", "broken", "unproven"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one case."""

    case: str
    """Name of the case, unique in its part, so that result files can be compared."""
    outcome: Outcome
    """`unproven`: the case held, but its control did not show that it could have broken."""
    detail: str = ""
    """The finding, if the case did not hold."""


@dataclass(frozen=True, slots=True)
class Part:
    """All cases of one kind of attack or input."""

    name: str
    about: str
    """The property that holds in every case, in one sentence."""
    run: Callable[[], Iterator[Verdict]]
    """Yields a verdict per case as soon as it is known; failing cases do not raise."""
