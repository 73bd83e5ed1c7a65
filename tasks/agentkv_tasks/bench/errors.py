"""The error of all benchmarks."""

from collections.abc import Sequence


class BenchError(ValueError):
    """A measurement that cannot be made as requested; the message names what is possible."""


def require_positive(option: str, numbers: Sequence[int]) -> None:
    """Raise BenchError if there are no numbers, or one is less than 1."""
    if not numbers or min(numbers) < 1:
        raise BenchError(f"{option} must be 1 or more; found {', '.join(map(str, numbers))}")
