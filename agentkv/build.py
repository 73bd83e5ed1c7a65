"""Build models, policies and agents from settings. Nothing else turns settings into objects."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentkv.defaults import BUDGET
from agentkv.models.model import Model
from agentkv.models.scripted import RandomClicks, Solution, Stop
from agentkv.nearest import did_you_mean
from agentkv.progress import Listener
from agentkv.settings import (
    SCRIPTED,
    ActingSettings,
    ComposedPolicy,
    ModelSettings,
    PoliciesSettings,
    PolicySettings,
    Slot,
    tuned_for,
)
from agentkv.startup import no_collections

if TYPE_CHECKING:
    from agentkv.agent import Agent
    from agentkv.models.local import ActingModel, LocalModel
    from agentkv.policies.policy import Policy

PARTS = ("gate", "allocator", "scorer", "selector", "precision", "recall")
"""Parts of a policy."""


def check_model(settings: ModelSettings) -> None:
    """Check that the model of a run exists, without loading it.

    Raises:
        ValueError: no such model, or an adapter of another one; the message names the known
            models and scripts.
    """
    if settings.model in SCRIPTED:
        return
    from agentkv.models.find import ModelError, find_model

    try:
        find_model(settings.model)
    except ModelError as error:
        hint = did_you_mean(settings.model, SCRIPTED)
        raise ModelError(f"{error}; {hint}scripts: {', '.join(SCRIPTED)}") from None
    if settings.has_adapter:
        from agentkv.models.adapter import check_adapters

        check_adapters(settings.model, settings.adapter)


def check_language_model(settings: ModelSettings) -> None:
    """Check that the model of a measurement exists and is no script, without loading it.

    Raises:
        ModelError: a ValueError; the message says what to give.
    """
    from agentkv.models.find import ModelError

    if settings.model in SCRIPTED:
        raise ModelError(
            f"--model {settings.model} is a script; give nano, smollm2, smollm2-web, a folder, a "
            "GGUF file or a hub id"
        )
    check_model(settings)


def convert_model(settings: ModelSettings, on_progress: Listener) -> None:
    """Write the converted copy of a GGUF file if it needs one and there is none yet.

    A run does it before it starts workers, which have a time limit for their start.

    Args:
        on_progress: told how much is written.

    Raises:
        ModelError: a ValueError; the file cannot be served, or its copy cannot be written.
    """
    if settings.model in SCRIPTED:
        return
    from agentkv.models.find import find_model, gguf_in_blocks, is_gguf, model_folder

    source = find_model(settings.model)
    if not is_gguf(source):
        return
    chosen = {
        "device": settings.device,
        "dtype": settings.dtype,
        "weights": settings.loaded_weights,
    }
    if gguf_in_blocks(source, **chosen) is None:
        model_folder(source, on_progress)


def load_run_model(
    settings: ModelSettings, on_progress: Listener | None = None
) -> "LocalModel | None":
    """Load the language model of a run; return None if the run uses a script.

    Load a model once per process: episodes share its weights.

    Args:
        on_progress: as of `agentkv.load_model`.

    Raises:
        ValueError: no such model; the message names what was searched for and what to do.
    """
    if settings.model in SCRIPTED:
        return None
    with no_collections():
        from agentkv.models.load import load_model  # seconds of imports, which no script needs

        return load_model(
            settings.model,
            device=settings.device,
            dtype=settings.dtype,
            weights=settings.weights,
            adapter=settings.adapter,
            merge_adapter=settings.merge_adapter,
            on_progress=on_progress,
        )


def make_policy(settings: PolicySettings) -> "Policy":
    """Make the cache policy that `settings` names, or that its file composes.

    Raises:
        ValueError: no such policy, parameter or file; the message names the known ones.
    """
    from agentkv.policies.entries import PolicyError
    from agentkv.policies.registry import policy

    if not settings.is_file:
        return policy(settings.name, **settings.parameters)
    if settings.parameters:
        raise PolicyError(
            f"{settings.name} is a composed policy and takes no further parameters; found "
            f"{settings.parameters}; write them into the file"
        )
    path = Path(settings.name)
    composed = ComposedPolicy.read(path)
    try:
        return _composed(composed)
    except PolicyError as error:
        raise PolicyError(f"{path}: {error}") from error


def _composed(composed: ComposedPolicy) -> "Policy":
    """Compose a policy. Raises PolicyError, which names the part that is wrong."""
    from agentkv.policies.entries import PolicyError
    from agentkv.policies.policy import Policy
    from agentkv.policies.registry import policy

    def made(part: str, slot: Slot) -> Policy:
        try:
            return policy(slot.of, **slot.parameters)
        except PolicyError as error:
            raise PolicyError(f"{part}: {error}") from error

    base = made("base", composed.base)
    parts = {part: getattr(base, part) for part in PARTS}
    used = {"base": composed.base.of, **base.parameters}
    for part in PARTS:
        slot: Slot | None = getattr(composed, part)
        if slot is not None:
            other = made(part, slot)
            parts[part] = getattr(other, part)
            used[part] = {"of": slot.of, **other.parameters}
    return Policy(composed.name, **parts, parameters=used)


def budget_for(settings: ModelSettings, policy: "Policy") -> int | str | None:
    """Return the run's budget for a policy that needs one, None for a policy that keeps everything
    or brings its own budget.

    Raises:
        PolicyError: the run's budget cannot be parsed, or the policy does not fit into it.
    """
    from agentkv.cache.budget import needs_budget, parse_budget

    if not needs_budget(policy):
        return None
    budget = BUDGET if settings.budget is None else settings.budget
    parsed = parse_budget(budget)
    if isinstance(parsed, int):
        policy.fitted(parsed)  # a budget that is too small fails before anything starts
    return budget


def ignored_budget(settings: PoliciesSettings) -> str:
    """Say which policies of `settings` ignore the budget that the user chose; empty if none does.

    Raises:
        ValueError: an unknown policy.
    """
    from agentkv.cache.budget import needs_budget

    if settings.budget is None or settings.budget == tuned_for(settings.model).get("budget"):
        return ""
    ignoring = [
        policy.row_name for policy in settings.policies if not needs_budget(make_policy(policy))
    ]
    if not ignoring:
        return ""
    verb = (
        "keeps every token or has its own"
        if len(ignoring) == 1
        else "keep every token or have their own"
    )
    return f"the budget {settings.budget} has no effect on {', '.join(ignoring)}, which {verb}"


def resolved_parameters(settings: ModelSettings, policy: PolicySettings) -> dict[str, Any]:
    """Return all parameters of `policy`, defaults included, its budget, and how many pages it is
    left if that is not all.

    Raises:
        ValueError: no such policy or parameter, with the known ones named; or a label that belongs
            to a named policy with other parameters.
    """
    made = make_policy(policy)
    parameters = {**made.parameters, **policy.pages}
    _refuse_shared_label(policy.row_name, parameters)
    budget = None if settings.model in SCRIPTED else budget_for(settings, made)
    return _plain({**parameters, "budget": budget})


def _plain(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return `parameters` as a row holds them: tuples become lists."""
    return dict(json.loads(json.dumps(dict(parameters))))


def _refuse_shared_label(label: str, parameters: Mapping[str, Any]) -> None:
    from agentkv.policies.entries import PolicyError
    from agentkv.policies.registry import DECLARED, parameters_of

    own, named = _plain(parameters), _plain(parameters_of(label)) if label in DECLARED else None
    if named is not None and own != named:
        raise PolicyError(
            f"the label {label!r} belongs to the policy of that name with its default parameters; "
            f"found other parameters: {own}; give them another `label`"
        )


def make_acting(
    settings: ActingSettings, *, policy: PolicySettings, model: "LocalModel"
) -> "ActingModel":
    """Give `model` a cache under one policy of a run.

    Raises:
        ValueError: an unknown policy, or a budget that the policy does not fit into.
    """
    made = make_policy(policy)
    return model.with_cache(made, settings, budget=budget_for(settings, made), **policy.pages)


def make_agent(
    settings: ActingSettings, *, model: Model | None, solution: Sequence[str] = ()
) -> "Agent":
    """Make the agent of one episode.

    Args:
        model: the acting model, as from `make_acting`; None stands for the script of the settings.
        solution: steps of the task's solution, for the script `solution`.
    """
    from agentkv.agent import Agent  # imports Playwright, which measurements of a cache do without

    return Agent(_script(settings, solution) if model is None else model, settings=settings)


def _script(settings: ModelSettings, solution: Sequence[str]) -> Solution | Stop | RandomClicks:
    match settings.model:
        case "solution":
            return Solution(tuple(solution))
        case "stop":
            return Stop()
        case "random":
            return RandomClicks()
    raise AssertionError(f"{settings.model} is not a script")
