"""Fit the shares of the layers: a line from the first to the last."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from agentkv.policies.allocators import Linear
from agentkv.policies.policy import Policy
from agentkv_tasks.calibrate.trial import Outcome, Trial

SLOPES = ((1.75, 0.25), (1.5, 0.5), (1.25, 0.75), (1.0, 1.0), (0.75, 1.25), (0.5, 1.5))
"""Shares of the first and the last layer to try (our choice); each sums to the budget."""


@dataclass(frozen=True, slots=True)
class Layers:
    """Chooses which share of the budget each layer gets, all sums being equal."""

    alarms: ClassVar[tuple[str, str] | None] = None
    suffix: ClassVar[str] = "layers"

    def check(self, policy: Policy) -> None:
        """Every policy that evicts has a budget to divide."""

    def outcomes(self, trial: Trial, policy: Policy, share: float) -> list[Outcome]:
        """Return the outcome of the policy's own shares, then those of all lines."""
        own = trial.run("its own", policy)
        return [own, *(trial.run(_name(each), _sloped(policy, each)) for each in SLOPES)]

    def parameters(self, chosen: Policy) -> dict[str, Any]:
        """The base keeps its parameters."""
        return {}

    def slot(self, chosen: Policy) -> tuple[str, str, dict[str, Any]] | None:
        """Return the allocator; None if the policy's own was best."""
        if not isinstance(chosen.allocator, Linear):
            return None
        return "allocator", "conf-kv-l", {"slope": list(chosen.allocator.slope)}


def _sloped(policy: Policy, slope: tuple[float, float]) -> Policy:
    return replace(policy, allocator=Linear(slope=slope))


def _name(slope: tuple[float, float]) -> str:
    return f"{slope[0]:g} to {slope[1]:g}"
