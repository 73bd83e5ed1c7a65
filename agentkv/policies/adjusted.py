"""Scorers that change how another scorer ranks the entries.

Shapes: H key-value heads, T entries, S segments.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from agentkv.policies.entries import Entries, PolicyError
from agentkv.policies.parameters import require_at_least
from agentkv.policies.slots import Phased, Scorer, Tracker


@dataclass(frozen=True, slots=True)
class _Around:
    """A scorer that changes another one, and reads and tracks what the other does."""

    of: Scorer

    @property
    def window(self) -> int:
        return self.of.window

    @property
    def tracker(self) -> Tracker | None:
        return self.of.tracker

    @property
    def by_age(self) -> bool:
        return self.of.by_age

    @property
    def comparable(self) -> bool:
        return self.of.comparable

    @property
    def segmentwise(self) -> bool:
        return self.of.segmentwise


@dataclass(frozen=True, slots=True)
class ByPhase(_Around):
    """Scores as another scorer does, by the last queries of replies and as many of pages.

    The scorer's window holds the last queries of the phase that the model is in, which is reading
    after a page and writing in a reply. Here the last `window` queries of either phase count alike,
    whichever came last. A forward of one token belongs to a reply, a forward of several to a page.

    The other scorer must read a window of queries.

    Source: our choice, after the idea of AgentKV (OpenReview s80e8otSxP), which has four phases.
    """

    phases: ClassVar[tuple[str, str]] = ("written", "read")

    def __post_init__(self) -> None:
        if self.of.window == 0 or isinstance(self.of, Phased):
            raise PolicyError(
                f"phases are told apart by windows of queries, and {type(self.of).__name__} keeps "
                "none, or one for each already; take a scorer such as snapkv's"
            )

    def scores(self, entries: Entries) -> Tensor:
        return self.of.scores(entries)


@dataclass(frozen=True, slots=True)
class BySpan(_Around):
    """Multiplies the scores of another scorer by a factor for the span that an entry is in.

    Spans are told apart by the first word of their label: an entry of any "page" but the latest
    gets the factor `left`, an entry of a "reply" the factor `replies`, any other 1. The other
    scorer's scores must not be negative. Of a scorer that ranks by age, the score is the
    reciprocal of the age, so that an entry with the factor 1/2 counts as twice as old.

    Source: our choice.
    """

    left: float
    replies: float

    def __post_init__(self) -> None:
        require_at_least("left", self.left, 0)
        require_at_least("replies", self.replies, 0)

    @property
    def by_age(self) -> bool:
        return False

    def scores(self, entries: Entries) -> Tensor:
        if not self.of.by_age:
            scores = self.of.scores(entries)
            factors = self._factors(entries)
            return scores * factors.repeat_interleave(scores.shape[0] // factors.shape[0], dim=0)
        # one rounding, so that entries of equal worth have equal scores
        return self._factors(entries) / (entries.num_seen - entries.positions).clamp_min(1)

    def _factors(self, entries: Entries) -> Tensor:
        positions = entries.positions
        pages = [span for span in entries.spans if span.label.partition(" ")[0] == "page"]
        replies = [span for span in entries.spans if span.label.partition(" ")[0] == "reply"]
        begun = [page for page in pages if page.start < entries.num_seen]
        factors = torch.ones_like(positions, dtype=torch.float32)
        for spans, factor in ((begun[:-1], self.left), (replies, self.replies)):
            for span in spans:
                stop = entries.num_seen if span.stop is None else span.stop
                factors.masked_fill_((positions >= span.start) & (positions < stop), factor)
        return factors
