"""Moving averages that entries carry from step to step."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ema:
    """Update rule of a number that each entry carries: new = keep * old + gain * mass.

    A moving average with decay d has keep d and gain 1 - d; a running sum has keep 1 and gain 1.
    """

    keep: float
    gain: float
    starts_at_mass: bool
    """True if a new entry takes its first mass unweighted."""
