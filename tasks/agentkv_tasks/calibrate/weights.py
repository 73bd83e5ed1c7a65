"""Fit the confidence of a gate: the weights of its features, and its threshold."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from agentkv.cache.cache import Cache
from agentkv.policies.gates import Confident
from agentkv.policies.policy import Policy
from agentkv_tasks.calibrate.recorded import CalibrationError
from agentkv_tasks.calibrate.trial import MOST_RUNS, Outcome, Trial, is_near, nearest

WEIGHTS = (
    (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0),
    (0.5, 0.5, 0.0), (0.5, 0.0, 0.5), (0.0, 0.5, 0.5),
)  # fmt: skip
"""Weights of entropy, gap and top probability to try besides the policy's own (our choice: the
corners and the edges' middles)."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Chooses how the features of the confidence are weighed.

    Every candidate gets the threshold below which the wanted share of the tokens lies, so that all
    of them keep the loose budget equally often. What was evicted changes the confidence of later
    tokens, so a threshold is tried out.
    """

    alarms: ClassVar[tuple[str, str] | None] = (
        "unsure",
        "share of the tokens below the threshold, which keep the loose budget",
    )
    suffix: ClassVar[str] = "weighed"

    def check(self, policy: Policy) -> None:
        """Refuse a policy without a confidence gate. Raises CalibrationError."""
        if not isinstance(policy.gate, Confident):
            raise CalibrationError(
                f"--policy {policy.name} has no confidence gate; --fit weights needs one, such as "
                "conf-kv-int8"
            )

    def outcomes(self, trial: Trial, policy: Policy, share: float) -> list[Outcome]:
        """Return the outcomes of the policy's own weights and of the others."""
        assert isinstance(policy.gate, Confident)
        tried = dict.fromkeys((policy.gate.weights, *WEIGHTS))
        return [self._fitted(trial, policy, weights, share) for weights in tried]

    def parameters(self, chosen: Policy) -> dict[str, Any]:
        """Return the parameters of the base that are fitted."""
        assert isinstance(chosen.gate, Confident)
        return {"threshold": chosen.gate.threshold, "weights": list(chosen.gate.weights)}

    def slot(self, chosen: Policy) -> None:
        """The base has the gate."""

    def _fitted(
        self, trial: Trial, policy: Policy, weights: tuple[float, float, float], share: float
    ) -> Outcome:
        gate = policy.gate
        assert isinstance(gate, Confident)
        threshold, tried = gate.threshold, list[Outcome]()
        for _ in range(MOST_RUNS):
            heard: list[float] = []

            def note(cache: Cache, heard: list[float] = heard) -> None:
                heard.extend(cache.confidences or ())

            trying = replace(policy, gate=replace(gate, weights=weights, threshold=threshold))
            outcome = trial.run(", ".join(f"{weight:g}" for weight in weights), trying, note)
            found = sum(value < threshold for value in heard) / max(1, len(heard))
            tried.append(replace(outcome, threshold=threshold, share=found))
            if is_near(found, share):
                break
            threshold = quantile(heard, share)
        return nearest(tried, share)


def quantile(values: list[float], share: float) -> float:
    """Return the value below which this share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * len(ordered)))]
