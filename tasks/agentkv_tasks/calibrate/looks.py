"""Fit looks: threshold, stretch and blocks of a policy that looks back."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from agentkv.cache.cache import Cache
from agentkv.policies.policy import Policy
from agentkv.policies.recall import Forget, LookBack, Unsure, Unsurest
from agentkv.policies.slots import Occasion, Signal
from agentkv_tasks.calibrate.trial import MOST_RUNS, Outcome, Trial, is_near, nearest

BLOCKS = (4, 8, 16)
"""Numbers of blocks to try, without a stretch."""
STRETCHES = (4, 16)
"""Stretches to try, with the best number of blocks."""


@dataclass(frozen=True, slots=True)
class Heard:
    """The confidences of tokens, or their ranks, in order, recording by recording."""

    positions: list[int] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    could_look: list[bool] = field(default_factory=list)
    """True where the cold tier held anything."""

    def note(self, *, could_look: bool) -> None:
        """Say whether the tokens heard since the last call could look back."""
        self.could_look.extend([could_look] * (len(self.positions) - len(self.could_look)))

    def share(self, when: Occasion) -> float:
        """Return which share of the tokens that could look back would do so."""
        last, looks = None, 0
        for place, confidence, could in zip(
            self.positions, self.confidences, self.could_look, strict=True
        ):
            if last is not None and place < last:
                last = None  # another recording has begun
            if when.is_alarm(confidence, place, last):
                last = place
            looks += could and when.looks(place, last)
        return looks / max(1, sum(self.could_look))

    def threshold(self, share: float, stretch: int) -> float:
        """Return the lowest threshold at which at least this share of the tokens looks back."""
        # just above each confidence, so that its own token is an alarm
        choices = [min(1.0, value + 1e-9) for value in sorted(set(self.confidences))]
        place = bisect_left(choices, share, key=lambda t: self.share(Unsure(t, stretch)))
        return choices[min(place, len(choices) - 1)]


@dataclass(frozen=True, slots=True)
class _Listening:
    """An occasion, and what it heard."""

    when: Unsure | Unsurest
    heard: Heard

    @property
    def hears(self) -> Signal:
        return self.when.hears

    def is_alarm(self, signal: float, position: int, last_alarm: int | None) -> bool:
        self.heard.positions.append(position)
        self.heard.confidences.append(signal)
        return self.when.is_alarm(signal, position, last_alarm)

    def looks(self, position: int, last_alarm: int | None) -> bool:
        return self.when.looks(position, last_alarm)


@dataclass(frozen=True, slots=True)
class Looks:
    """Chooses which tokens look back, and how many blocks each of them fetches.

    Every candidate but one gets the threshold at which the wanted share of its tokens looks back.
    What a token fetches changes the confidence of later ones, so a threshold is tried out. The last
    one, `Unsurest`, holds the share by itself.
    """

    alarms: ClassVar[tuple[str, str] | None] = ("looks", "share of the tokens that look back")
    suffix: ClassVar[str] = "lookback"

    def check(self, policy: Policy) -> None:
        """Every policy that evicts can look back."""

    def outcomes(self, trial: Trial, policy: Policy, share: float) -> list[Outcome]:
        """Return the outcome without looks, then those of all candidates."""
        start = policy.recall if isinstance(policy.recall, LookBack) else LookBack(Unsure())
        without = trial.run("without looks", replace(policy, recall=Forget()))
        without = replace(without, is_candidate=False)

        def fitted(blocks: int, stretch: int) -> Outcome:
            recall = replace(start, blocks=blocks)
            return self._fitted(trial, replace(policy, recall=recall), stretch, share)

        candidates = [fitted(blocks, 0) for blocks in BLOCKS]
        best = min(candidates, key=lambda outcome: outcome.nll).policy.recall
        assert isinstance(best, LookBack)
        candidates += [fitted(best.blocks, stretch) for stretch in STRETCHES]
        candidates.append(self._unsurest(trial, replace(policy, recall=best), share))
        return [without, *candidates]

    def parameters(self, chosen: Policy) -> dict[str, Any]:
        """The base keeps its parameters."""
        return {}

    def slot(self, chosen: Policy) -> tuple[str, str, dict[str, Any]]:
        """Return the recall."""
        recall = chosen.recall
        assert isinstance(recall, LookBack)
        match recall.when:
            case Unsurest(share):
                return recall_slot(recall, {"when": "unsurest", "share": share})
            case Unsure(threshold, stretch):
                return recall_slot(recall, {"threshold": threshold, "stretch": stretch})
            case other:
                raise AssertionError(f"{other} is no candidate")

    def _unsurest(self, trial: Trial, policy: Policy, share: float) -> Outcome:
        """Run a policy whose tokens look back if they are among the wanted share."""
        recall, when, heard = policy.recall, Unsurest(share), Heard()
        assert isinstance(recall, LookBack)

        def note(cache: Cache) -> None:
            heard.note(could_look=any(cache.evictor.num_cold))

        listening = replace(policy, recall=replace(recall, when=_Listening(when, heard)))
        outcome = trial.run(f"{recall.blocks} blocks, unsurest", listening, note)
        policy = replace(policy, recall=replace(recall, when=when))
        return replace(outcome, policy=policy, share=heard.share(when))

    def _fitted(self, trial: Trial, policy: Policy, stretch: int, share: float) -> Outcome:
        """Run a policy that looks back until as many of its tokens look back as wanted."""
        recall = policy.recall
        assert isinstance(recall, LookBack)
        unsure = Unsure(0.99, stretch)
        tried: list[Outcome] = []
        for _ in range(MOST_RUNS):
            heard = Heard()

            def note(cache: Cache, heard: Heard = heard) -> None:
                heard.note(could_look=any(cache.evictor.num_cold))

            listening = replace(policy, recall=replace(recall, when=_Listening(unsure, heard)))
            outcome = trial.run(f"{recall.blocks} blocks, stretch {stretch}", listening, note)
            tried.append(
                replace(
                    outcome,
                    policy=replace(policy, recall=replace(recall, when=unsure)),
                    threshold=unsure.threshold,
                    share=heard.share(unsure),
                )
            )
            if is_near(tried[-1].share or 0.0, share):
                break
            unsure = Unsure(heard.threshold(share, stretch), stretch)
        return nearest(tried, share)


def recall_slot(recall: LookBack, own: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Return the slot of a recall, the named policy that has it, and its parameters.

    Args:
        own: parameters that say which tokens look back.
    """
    names = (
        *("blocks", "block", "promotes", "format", "digests", "representatives", "reads"),
        *("short", "draw", "repair", "cold"),
    )
    options = {name: getattr(recall, name) for name in names}
    # a file of a policy cannot say None
    given = {name: value for name, value in options.items() if value is not None}
    return "recall", "lookback", {**own, **given}
