"""Bytes counted where they are taken and given back."""

from dataclasses import dataclass


@dataclass(slots=True)
class Meter:
    """Bytes that a cache's storage holds now, and the most it ever held."""

    live: int = 0
    peak: int = 0

    def add(self, num_bytes: int) -> None:
        self.live += num_bytes
        if self.live > self.peak:
            self.peak = self.live
