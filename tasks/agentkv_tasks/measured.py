"""Committed measurements of the suites: how much their solutions see and how far back they look.

`agentkv_lab.reach` measures them in a browser and writes `measured.json` beside each suite.
"""

import json
from dataclasses import dataclass
from pathlib import Path

FAR_TOKENS = 6000
"""Tokens of pages from which on a need is far back."""
FAR_PAGES = 16
"""Pages from which on a need is far back."""


@dataclass(frozen=True, slots=True)
class Measurements:
    """Measurements of one task's solution, with every page within the agent's budget of tokens."""

    tokens: int
    """Tokens of all pages together."""
    total: int
    """Tokens of the goal, all pages and all replies: what the full cache holds at the end."""
    steps: int
    page: int
    """Tokens of the median page."""
    cut: int
    """Lines of all pages that the budget cut."""
    sources: int
    """Number of different pages that the task's needs come from."""
    distances: tuple[int, ...]
    """For each use of a need, the tokens of the pages after its source up to its use."""
    pages: tuple[int, ...]
    """For each use of a need, the number of pages after its source up to its use."""

    @property
    def reach(self) -> int:
        """Largest distance of a need in tokens; 0 if the task needs nothing."""
        return max(self.distances, default=0)

    @property
    def num_far(self) -> int:
        """Number of needs whose source is `FAR_TOKENS` or more tokens back."""
        return sum(distance >= FAR_TOKENS for distance in self.distances)

    @property
    def num_pages_far(self) -> int:
        """Number of needs whose source is `FAR_PAGES` or more pages back."""
        return sum(pages >= FAR_PAGES for pages in self.pages)


def path_of(suite: str) -> Path:
    """Return the file of a suite's measurements."""
    return Path(__file__).parent / suite.replace("-", "_") / "measured.json"


def read(suite: str) -> dict[int, Measurements]:
    """Return the committed measurements of a suite by task id."""
    rows = json.loads(path_of(suite).read_text())
    return {int(number): _measurements(**row) for number, row in rows.items()}


def _measurements(*, distances: list[int], pages: list[int], **counts: int) -> Measurements:
    return Measurements(distances=tuple(distances), pages=tuple(pages), **counts)
