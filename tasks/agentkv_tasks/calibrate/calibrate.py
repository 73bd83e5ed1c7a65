"""Choose threshold, stretch and blocks of a policy that looks back, for a wanted share of looks.

All candidates read the same tokens, with teacher forcing. Each gets the threshold at which the
wanted share of its tokens looks back, and the one that predicts what was written best is chosen.
"""

import json
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from agentkv.build import (
    budget_for,
    cache_dtype_for,
    check_language_model,
    load_run_model,
    make_policy,
)
from agentkv.cache.cache import Cache
from agentkv.config import PolicySettings, RunSettings
from agentkv.files import require_file, write_atomic
from agentkv.models.local import LocalModel
from agentkv.policies.policy import Policy
from agentkv.policies.recall import Forget, LookBack, Unsure
from agentkv.policies.slots import Occasion
from agentkv_tasks.calibrate.recorded import CalibrationError, Recording, of_runs, of_text
from agentkv_tasks.calibrate.table import table

BLOCKS = (4, 8, 16)
"""Numbers of blocks to try, without a stretch."""
STRETCHES = (4, 16)
"""Stretches to try, with the best number of blocks."""
MOST_RUNS = 3
"""Runs of a candidate until its share of looks is as wanted."""
TOLERANCE = 0.1
"""Accepted difference from the wanted share, as a part of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Settings of a calibration."""

    settings: RunSettings
    """Only the model with its dtype and device, the first policy, the budget, the chunk, the cache
    dtype and the pins count."""
    share: float
    """Wanted share of the written tokens that look back."""
    runs: tuple[Path, ...] = ()
    """Folders of runs whose episodes are read."""
    text: Path | None = None
    """File to read instead."""
    limit: int | None = None
    """Number of episodes, the longest ones; None: all."""
    threads: int | None = None
    """Threads of torch; None: its default."""
    out: Path
    """File of the calibrated policy."""
    fresh: bool = False
    """Overwrite the file."""


@dataclass(frozen=True, slots=True)
class Heard:
    """The confidences of tokens, in order, recording by recording."""

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
    """`Unsure`, and what it heard."""

    unsure: Unsure
    heard: Heard
    num_queries: ClassVar[int] = 0

    def is_alarm(self, signal: float, position: int, last_alarm: int | None) -> bool:
        self.heard.positions.append(position)
        self.heard.confidences.append(signal)
        return self.unsure.is_alarm(signal, position, last_alarm)

    def looks(self, position: int, last_alarm: int | None) -> bool:
        return self.unsure.looks(position, last_alarm)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One policy on all recordings."""

    label: str
    recall: LookBack | None
    """None for a policy that does not look back."""
    looks: float | None
    """Share of the tokens that looked back, among those that could; None without looks."""
    nll: float
    """Mean negative log-likelihood of a written token, in nats, once something was evicted."""
    agreement: float
    """Share of these tokens that were the likeliest."""
    peak_bytes: int
    """Largest peak of a cache."""
    cold_bytes: int
    """Largest cold tier at the end of a recording."""


def check(calibration: Calibration) -> Policy:
    """Check the options without loading a model, and return the policy that is calibrated.

    Raises:
        ValueError: an option is wrong; the message names valid values.
    """
    settings = calibration.settings
    check_language_model(settings)
    policy = make_policy(settings.policies[0])
    budget_for(settings, policy)
    if not policy.gate.evicts:
        raise CalibrationError(
            f"--policy {policy.name} evicts nothing, so nothing can be looked for; give one with a "
            "budget, such as lookback or h2o"
        )
    if not 0 < calibration.share < 1:
        raise CalibrationError(f"--share {calibration.share:g}: expected more than 0, less than 1")
    if bool(calibration.runs) == (calibration.text is not None):
        raise CalibrationError("give folders of runs or a --text, one of the two")
    if calibration.out.suffix != ".toml":
        raise CalibrationError(f"--out {calibration.out}: a policy file ends with .toml")
    if calibration.out.exists() and not calibration.fresh:
        raise CalibrationError(f"{calibration.out} exists already; give another --out, or --fresh")
    require_file(calibration.out)
    return policy


def calibrate(calibration: Calibration, console: Console) -> list[Outcome]:
    """Calibrate, write the policy file, and print the table.

    Returns:
        The outcomes: of the full cache, of the policy without looks, then of all candidates.

    Raises:
        ValueError: as `check`; nothing is evicted from any recording, or the budget is too small.
    """
    policy, settings = check(calibration), calibration.settings
    if calibration.threads is not None:
        torch.set_num_threads(calibration.threads)
    local = load_run_model(settings)
    assert local is not None, "scripts are refused by `check`"
    recordings = _recordings(calibration, local)
    start = policy.recall if isinstance(policy.recall, LookBack) else LookBack(Unsure())
    with Progress(console=console, transient=True) as progress:
        trial = _Trial(local, settings, recordings, progress)
        without = trial.run("without looks", replace(policy, recall=Forget()))
        full = trial.run("full", make_policy(PolicySettings(name="full")))

        def fitted(blocks: int, stretch: int) -> Outcome:
            recall = replace(start, blocks=blocks)
            return trial.fitted(replace(policy, recall=recall), stretch, calibration.share)

        candidates = [fitted(blocks, 0) for blocks in BLOCKS]
        best = best_of(candidates).recall
        assert best is not None
        candidates += [fitted(best.blocks, stretch) for stretch in STRETCHES]
    chosen = best_of(candidates)
    write_atomic(calibration.out, policy_file(settings.policies[0], chosen, calibration.share))
    outcomes = [full, without, *candidates]
    console.print(table(outcomes, chosen, num_recordings=len(recordings)))
    console.print()
    console.print(Text(f"policy: {calibration.out}"), soft_wrap=True)
    return outcomes


def best_of(candidates: Iterable[Outcome]) -> Outcome:
    """Return the candidate that predicts best; of equal ones the first."""
    return min(candidates, key=lambda outcome: outcome.nll)


def _recordings(calibration: Calibration, local: LocalModel) -> list[Recording]:
    if calibration.text is not None:
        found = of_text(calibration.text, local.template)
    else:
        model = calibration.settings.model
        found = of_runs(calibration.runs, local.template, model=model)
    longest = sorted(found, key=lambda recording: -len(recording.ids))[: calibration.limit]
    if local.max_positions is not None and len(longest[0].ids) > local.max_positions:
        raise CalibrationError(
            f"a recording has {len(longest[0].ids)} tokens, and {local.name} has "
            f"{local.max_positions} positions; give a shorter text"
        )
    return longest


class _Trial:
    """Runs policies on the same recordings."""

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

    def fitted(self, policy: Policy, stretch: int, share: float) -> Outcome:
        """Run a policy that looks back until as many of its tokens look back as wanted.

        What a token fetches changes the confidence of later ones, so a threshold is tried out.
        """
        recall = policy.recall
        assert isinstance(recall, LookBack)
        unsure = Unsure(0.99, stretch)
        tried: list[Outcome] = []
        for _ in range(MOST_RUNS):
            heard = Heard()
            trying = replace(recall, when=_Listening(unsure, heard))
            label = f"{recall.blocks} blocks, stretch {stretch}"
            outcome = self.run(label, replace(policy, recall=trying), heard)
            tried.append(replace(outcome, recall=replace(recall, when=unsure)))
            if abs((outcome.looks or 0.0) - share) <= TOLERANCE * share:
                break
            unsure = Unsure(heard.threshold(share, stretch), stretch)
        return min(tried, key=lambda outcome: abs((outcome.looks or 0.0) - share))

    @torch.inference_mode()
    def run(self, label: str, policy: Policy, heard: Heard | None = None) -> Outcome:
        """Run one policy on all recordings; the first call finds out where entries are evicted.

        Raises:
            CalibrationError: nothing is evicted.
        """
        local, settings = self._local, self._settings
        budget = budget_for(settings, policy)
        acting = local.with_cache(
            policy,
            budget=budget,
            prefill=settings.prefill,
            chunk=settings.chunk,
            cache_dtype=cache_dtype_for(settings, local),
        )
        is_first, peak, cold, looks = not self._far, 0, 0, 0
        scores: list[tuple[float, bool]] = []
        bar = self._progress.add_task(label, total=len(self._recordings))
        for number, recording in enumerate(self._recordings):
            cache = acting.new_cache()
            if recording.num_goal:
                cache.label("goal", recording.num_goal, pinned=settings.pins)
            if is_first:
                self._far.append(len(recording.ids))
            scores += self._scores(cache, recording, number, heard, is_first=is_first)
            peak, cold = max(peak, cache.peak_nbytes), max(cold, cache.cold_nbytes)
            looks += cache.num_looks
            self._progress.advance(bar)
        self._progress.remove_task(bar)
        if not scores:
            longest = max(len(recording.ids) for recording in self._recordings)
            raise CalibrationError(
                f"nothing was evicted before a written token: the longest recording has {longest} "
                f"tokens, and the budget is {budget}; give longer ones or lower --budget"
            )
        could_look = sum(heard.could_look) if heard is not None else 0
        return Outcome(
            label=label,
            recall=None,
            looks=looks / max(1, could_look) if heard is not None else None,
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
        heard: Heard | None,
        *,
        is_first: bool,
    ) -> Iterable[tuple[float, bool]]:
        """Feed a recording, and yield how well its written tokens were predicted after the first
        eviction."""
        model = self._local.model
        ids = torch.tensor([recording.ids], device=model.device)
        for start, stop, is_written in recording.parts:
            if not is_written:
                logits = cache.feed(model, ids[:, start:stop])
                if is_first and _has_evicted(cache):
                    self._far[number] = min(self._far[number], stop)
                if heard is not None:
                    heard.note(could_look=any(cache.evictor.num_cold))
                continue
            for place in range(start, stop):
                if place >= self._far[number]:
                    log_odds = F.log_softmax(logits[0].to(torch.float32), -1)
                    target = recording.ids[place]
                    yield -float(log_odds[target]), int(log_odds.argmax()) == target
                logits = cache.feed(model, ids[:, place : place + 1])
                if heard is not None:
                    heard.note(could_look=any(cache.evictor.num_cold))


def _has_evicted(cache: Cache) -> bool:
    layers = [cache.cache_layers[i] for i in cache.evictor.layer_policies]
    return any(
        layer.storage.num_entries(0) < layer.storage.num_segments * cache.seen for layer in layers
    )


def policy_file(settings: PolicySettings, chosen: Outcome, share: float) -> bytes:
    """Return the TOML file of the calibrated policy."""
    recall = chosen.recall
    assert recall is not None and isinstance(recall.when, Unsure)
    parameters: dict[str, Any] = {
        "threshold": recall.when.threshold,
        "stretch": recall.when.stretch,
        "blocks": recall.blocks,
        "block": recall.block,
        "promotes": recall.promotes,
        "format": recall.format,
    }
    name = (
        settings.row_name
        if settings.row_name.startswith("lookback")
        else f"{settings.row_name}-lookback"
    )
    lines = [
        f"# agentkv calibrate: {100 * (chosen.looks or 0.0):.1f} % of the written tokens look back "
        f"({100 * share:.1f} % wanted).",
        f"name = {_toml(name)}",
        f"base = {{ of = {_toml(settings.name)}, parameters = {_toml(settings.parameters)} }}",
        f'recall = {{ of = "lookback", parameters = {_toml(parameters)} }}',
    ]
    return ("\n".join(lines) + "\n").encode()


def _toml(value: object) -> str:
    """Return a value in TOML; numbers, texts and lists look as in JSON."""
    if isinstance(value, dict):
        pairs = ", ".join(f"{name} = {_toml(each)}" for name, each in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    return json.dumps(value)
