"""Settings to objects: the only place where a run is put together."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agentkv.agent import Agent
from agentkv.config import PolicySettings, RunSettings
from agentkv.models.scripted import RandomClicks, Solution, Stop

if TYPE_CHECKING:
    from agentkv.models.local import LocalModel

SCRIPTED = ("solution", "stop", "random")
"""Names that stand for a script in place of a language model."""


def load_run_model(settings: RunSettings) -> "LocalModel | None":
    """The language model of a run, loaded; None if the run uses a script. Load once per process.

    Raises:
        ValueError: no such model; the message says what was looked for and what to do.
    """
    if settings.model in SCRIPTED:
        return None
    from agentkv.models.local import load_model  # seconds of imports, which no script needs

    return load_model(settings.model, device=settings.device, dtype=settings.dtype)


def make_policy(settings: PolicySettings) -> Any:
    """The cache policy that `settings` names.

    Raises:
        ValueError: no such policy or parameter; the message names the known ones.
    """
    import agentkv

    return agentkv.policy(settings.name, **settings.parameters)


def make_agent(
    settings: RunSettings,
    *,
    policy: PolicySettings,
    model: "LocalModel | None",
    solution: Sequence[str] = (),
) -> Agent:
    """The agent for one policy of a run.

    Args:
        settings: the run.
        policy: one of `settings.policies`.
        model: what `load_run_model` gave.
        solution: the task's own; only the script `solution` reads it.
    """
    limits = {
        "strict": settings.strict,
        "max_parse_failures": settings.max_parse_failures,
        "max_repeats": settings.max_repeats,
    }
    if model is None:
        return Agent(_script(settings, solution), **limits)  # type: ignore[arg-type]
    acting = model.under(
        make_policy(policy),
        budget=settings.budget,
        decoding=settings.decoding,
        temperature=settings.temperature,
        max_new_tokens=settings.max_new_tokens,
        observation_tokens=settings.observation_tokens,
        prefill=settings.prefill,
        chunk=settings.chunk,
    )
    return Agent(acting, **limits)  # type: ignore[arg-type]


def _script(settings: RunSettings, solution: Sequence[str]) -> Solution | Stop | RandomClicks:
    match settings.model:
        case "solution":
            return Solution(tuple(solution))
        case "stop":
            return Stop()
        case "random":
            return RandomClicks()
    raise AssertionError(f"{settings.model} is no script")
