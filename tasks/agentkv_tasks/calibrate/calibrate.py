"""Fit a policy's parameters to a model, on recorded episodes or on a text.

All candidates read the same tokens, with teacher forcing and under the same budget, and the one
that predicts what was written best is chosen.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import torch
from rich.console import Console
from rich.text import Text

from agentkv.build import budget_for, check_language_model, load_run_model, make_policy
from agentkv.files import require_file, write_atomic
from agentkv.models.local import LocalModel
from agentkv.policies.policy import Policy
from agentkv.settings import PolicySettings
from agentkv_tasks.calibrate.draws import Draws
from agentkv_tasks.calibrate.layers import Layers
from agentkv_tasks.calibrate.looks import Looks
from agentkv_tasks.calibrate.recorded import CalibrationError, Recording, of_runs, of_text
from agentkv_tasks.calibrate.table import table
from agentkv_tasks.calibrate.trial import Outcome, Trial
from agentkv_tasks.calibrate.weights import Weights
from agentkv_tasks.progress import progress_on
from agentkv_tasks.settings import RunSettings


class Fit(Protocol):
    """Which parameters are fitted, and how."""

    @property
    def alarms(self) -> tuple[str, str] | None:
        """Name and meaning of the share of alarms; None: confidence plays no part."""

    @property
    def suffix(self) -> str:
        """Ends the name of the calibrated policy."""

    def check(self, policy: Policy) -> None:
        """Refuse a policy without such parameters. Raises CalibrationError."""

    def outcomes(self, trial: Trial, policy: Policy, share: float) -> list[Outcome]:
        """Run all candidates, and what they are compared with."""

    def parameters(self, chosen: Policy) -> Mapping[str, Any]:
        """Return the fitted parameters of the base."""

    def slot(self, chosen: Policy) -> tuple[str, str, Mapping[str, Any]] | None:
        """Return name, named policy and parameters of the fitted part; None: the base's own."""


FITS: Mapping[str, Fit] = MappingProxyType(
    {"looks": Looks(), "draw": Draws(), "weights": Weights(), "layers": Layers()}
)
"""Values of `--fit`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Settings of a calibration."""

    settings: RunSettings
    """Only the model with its dtype and device, the first policy, the budget, the chunk, the cache
    dtype and the pins count."""
    fit: str
    """Key of `FITS`."""
    share: float
    """Wanted share of the written tokens whose confidence is an alarm."""
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


def check(calibration: Calibration) -> Policy:
    """Check the options without loading a model, and return the policy that is calibrated.

    Raises:
        ValueError: an option is wrong; the message names valid values.
    """
    settings = calibration.settings
    if calibration.fit not in FITS:
        raise CalibrationError(f"--fit {calibration.fit!r} is unknown; known: {', '.join(FITS)}")
    check_language_model(settings)
    chosen = settings.policies[0]
    if chosen.is_file:
        raise CalibrationError(
            f"--policy {chosen.name}: a policy file cannot be the base of another; name a policy"
        )
    policy = make_policy(chosen)
    budget_for(settings, policy)
    if not policy.gate.evicts:
        raise CalibrationError(
            f"--policy {policy.name} evicts nothing, so there is nothing to fit; give one with a "
            "budget, such as lookback or h2o"
        )
    FITS[calibration.fit].check(policy)
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
        The outcomes: of the full cache, then those of the fit.

    Raises:
        ValueError: as `check`; nothing is evicted from any recording, or the budget is too small.
    """
    policy, settings = check(calibration), calibration.settings
    fit = FITS[calibration.fit]
    if calibration.threads is not None:
        torch.set_num_threads(calibration.threads)
    local = load_run_model(settings)
    assert local is not None, "scripts are refused by `check`"
    recordings = _recordings(calibration, local)
    with progress_on(console) as progress:
        trial = Trial(local, settings, recordings, progress)
        found = fit.outcomes(trial, policy, calibration.share)
        full = trial.run("full", make_policy(PolicySettings(name="full")))
    chosen = best_of(found)
    write_atomic(calibration.out, policy_file(calibration, chosen))
    outcomes = [full, *found]
    console.print(table(outcomes, chosen, alarms=fit.alarms, num_recordings=len(recordings)))
    console.print()
    console.print(Text(f"policy: {calibration.out}"), soft_wrap=True)
    return outcomes


def best_of(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the candidate that predicts best; of equal ones the first."""
    return min((each for each in outcomes if each.is_candidate), key=lambda each: each.nll)


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


def policy_file(calibration: Calibration, chosen: Outcome) -> bytes:
    """Return the TOML file of the calibrated policy."""
    settings, fit = calibration.settings.policies[0], FITS[calibration.fit]
    name = settings.row_name
    if not name.startswith(fit.suffix):
        name = f"{name}-{fit.suffix}"
    parameters = {**settings.parameters, **fit.parameters(chosen.policy)}
    lines = [
        f"# agentkv calibrate --fit {calibration.fit}: {chosen.nll:.4f} nats per written token",
        f"name = {_toml(name)}",
        f"base = {{ of = {_toml(settings.name)}, parameters = {_toml(parameters)} }}",
    ]
    if (slot := fit.slot(chosen.policy)) is not None:
        part, of, own = slot
        lines.append(f"{part} = {{ of = {_toml(of)}, parameters = {_toml(dict(own))} }}")
    return ("\n".join(lines) + "\n").encode()


def _toml(value: object) -> str:
    """Return a value in TOML; numbers, texts and lists look as in JSON."""
    if isinstance(value, dict):
        pairs = ", ".join(f"{name} = {_toml(each)}" for name, each in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    return json.dumps(value)
