"""Fit what is worth fetching: `draw` of a policy whose tokens all look back."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from agentkv.cache.cache import Cache
from agentkv.policies.policy import Policy
from agentkv.policies.recall import Always, Forget, LookBack
from agentkv_tasks.calibrate.looks import recall_slot
from agentkv_tasks.calibrate.trial import Outcome, Trial

DRAWS = (0.0, 0.03, 0.1, 0.2, 0.4)
"""Shares of attention to try (our choice)."""


@dataclass(slots=True)
class Fetches:
    """Counts the tokens that could look back, and those that have fetched something.

    Args:
        recall: says of which inputs tokens may look back. Those that read the cold tier have none;
            of others all do if the input is short and not repaired, and else the last one.
    """

    recall: LookBack
    could_look: int = 0
    num_looks: int = 0
    _seen: int = 0
    _looks: int = 0

    def note(self, cache: Cache) -> None:
        """Count what a cache was fed since the last call."""
        if cache.seen < self._seen:  # another recording has begun, with a new cache
            self._seen = self._looks = 0
        num_new = cache.seen - self._seen
        if any(cache.evictor.num_cold):
            self.could_look += self._num_able(num_new)
        self.num_looks += cache.num_looks - self._looks
        self._seen, self._looks = cache.seen, cache.num_looks

    def _num_able(self, num_new: int) -> int:
        """Return how many tokens of an input may look back."""
        if num_new == 1:
            return 1
        if self.recall.reads == "all":
            return 0
        is_single = num_new <= self.recall.short and not self.recall.repair
        return num_new if is_single else 1

    @property
    def share(self) -> float:
        return self.num_looks / max(1, self.could_look)


@dataclass(frozen=True, slots=True)
class Draws:
    """Chooses the share of attention at which a block is fetched; every token looks back."""

    alarms: ClassVar[tuple[str, str] | None] = ("fetch", "share of the tokens that fetch blocks")
    suffix: ClassVar[str] = "draw"

    def check(self, policy: Policy) -> None:
        """Every policy that evicts can look back."""

    def outcomes(self, trial: Trial, policy: Policy, share: float) -> list[Outcome]:
        """Return the outcome without looks, then those of all shares of attention."""
        start = policy.recall if isinstance(policy.recall, LookBack) else LookBack(Always())
        without = trial.run("without looks", replace(policy, recall=Forget()))
        found = [replace(without, is_candidate=False)]
        for draw in DRAWS:
            recall = replace(start, when=Always(), draw=draw)
            fetches = Fetches(recall)
            outcome = trial.run(f"draw {draw:g}", replace(policy, recall=recall), fetches.note)
            found.append(replace(outcome, share=fetches.share))
        return found

    def parameters(self, chosen: Policy) -> dict[str, Any]:
        """The base keeps its parameters."""
        return {}

    def slot(self, chosen: Policy) -> tuple[str, str, dict[str, Any]]:
        """Return the recall."""
        assert isinstance(chosen.recall, LookBack)
        return recall_slot(chosen.recall, {"when": "always"})
