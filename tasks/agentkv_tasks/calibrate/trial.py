"""Run policies on the same recordings, and judge how well they predict what was written."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from rich.progress import Progress

from agentkv.build import budget_for
from agentkv.cache.cache import Cache
from agentkv.models.local import LocalModel
from agentkv.policies.policy import Policy
from agentkv_tasks.calibrate.recorded import CalibrationError, Recording
from agentkv_tasks.settings import RunSettings

MOST_RUNS = 3
"""Runs of a candidate until its share of alarms is as wanted."""
TOLERANCE = 0.1
"""Accepted difference from the wanted share, as a part of it."""

AfterFeed = Callable[[Cache], None]
"""Called after each forward."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One policy on all recordings."""

    label: str
    policy: Policy
    nll: float
    """Mean negative log-likelihood of a written token, in nats, once something was evicted."""
    agreement: float
    """Share of these tokens that were the likeliest."""
    peak_bytes: int
    """Largest peak of a cache."""
    cold_bytes: int
    """Largest cold tier at the end of a recording."""
    threshold: float | None = None
    """Threshold of confidence; None for a policy without a fitted one."""
    share: float | None = None
    """Share of the tokens that were alarms at that threshold; None without one."""
    is_candidate: bool = True
    """False for a policy that others are compared with."""


def nearest(tried: Iterable[Outcome], share: float) -> Outcome:
    """Return the outcome whose share of alarms is nearest to the wanted one."""
    return min(tried, key=lambda outcome: abs((outcome.share or 0.0) - share))


def is_near(found: float, share: float) -> bool:
    """Return True if a share of alarms is as wanted, within `TOLERANCE`."""
    return abs(found - share) <= TOLERANCE * share


class Trial:
    """Runs policies on the same recordings.

    Args:
        settings: budget, chunk, dtype and pins of the caches.
    """

    def __init__(
        self,
        local: LocalModel,
        settings: RunSettings,
        recordings: Sequence[Recording],
        progress: Progress,
    ) -> None:
        self._local, self._settings, self._recordings = local, settings, recordings
        self._progress = progress
        self._far: list[int] = []
        """Per recording, the tokens before its first eviction."""

    @torch.inference_mode()
    def run(self, label: str, policy: Policy, after_feed: AfterFeed | None = None) -> Outcome:
        """Run one policy on all recordings; the first call finds out where entries are evicted.

        Raises:
            CalibrationError: nothing is evicted.
        """
        local, settings = self._local, self._settings
        budget = budget_for(settings, policy)
        acting = local.with_cache(policy, settings, budget=budget)
        is_first, peak, cold = not self._far, 0, 0
        scores: list[tuple[float, bool]] = []
        bar = self._progress.add_task(label, total=len(self._recordings))
        for number, recording in enumerate(self._recordings):
            cache = acting.new_cache()
            if recording.num_goal:
                cache.label("goal", recording.num_goal, pinned=settings.pins)
            if is_first:
                self._far.append(len(recording.ids))
            scores += self._scores(cache, recording, number, after_feed, is_first=is_first)
            peak, cold = max(peak, cache.peak_nbytes), max(cold, cache.cold_nbytes)
            self._progress.advance(bar)
        self._progress.remove_task(bar)
        if not scores:
            longest = max(len(recording.ids) for recording in self._recordings)
            raise CalibrationError(
                f"nothing was evicted before a written token: the longest recording has {longest} "
                f"tokens, and the budget is {budget}; give longer ones or lower --budget"
            )
        return Outcome(
            label=label,
            policy=policy,
            nll=sum(nll for nll, _ in scores) / len(scores),
            agreement=sum(hit for _, hit in scores) / len(scores),
            peak_bytes=peak,
            cold_bytes=cold,
        )

    def _scores(
        self,
        cache: Cache,
        recording: Recording,
        number: int,
        after_feed: AfterFeed | None,
        *,
        is_first: bool,
    ) -> Iterator[tuple[float, bool]]:
        """Feed a recording, and yield how well its written tokens were predicted after the first
        eviction."""
        model = self._local.model
        ids = torch.tensor([recording.ids], device=model.device)
        for start, stop, is_written in recording.parts:
            if not is_written:
                logits = cache.feed(model, ids[:, start:stop])
                if is_first and _has_evicted(cache):
                    self._far[number] = min(self._far[number], stop)
                if after_feed is not None:
                    after_feed(cache)
                continue
            for place in range(start, stop):
                if place >= self._far[number]:
                    log_odds = F.log_softmax(logits[0].to(torch.float32), -1)
                    target = recording.ids[place]
                    yield -float(log_odds[target]), int(log_odds.argmax()) == target
                logits = cache.feed(model, ids[:, place : place + 1])
                if after_feed is not None:
                    after_feed(cache)


def _has_evicted(cache: Cache) -> bool:
    layers = [cache.cache_layers[i] for i in cache.evictor.layer_policies]
    return any(
        layer.storage.num_entries(0) < layer.storage.num_segments * cache.seen for layer in layers
    )
