"""Policies that cannot be used with a model, and why."""

from agentkv.cache.geometry import Geometry
from agentkv.policies.entries import PolicyError
from agentkv.policies.policy import Policy
from agentkv.policies.registry import NAMED, policy
from agentkv.policies.slots import Predictor


def why_refused(policy: Policy, geometry: Geometry) -> str | None:
    """Return why a policy cannot be used with a model, as the rest of a sentence about the policy;
    None if it can."""
    layers = [geometry.layers[i] for i in geometry.policy_layers]
    if geometry.recurrent_layers and policy.recall.looks_back:
        return (
            "computes a token again when it looks back, and the recurrent layers of "
            f"{geometry.family} would take it in twice"
        )
    if policy.allocator.learns and geometry.why_not_watched is not None:
        return f"learns from the residual shift, and {geometry.why_not_watched}"
    if isinstance(policy.scorer, Predictor) and any(each.frequencies is None for each in layers):
        return f"turns queries to coming positions, and {geometry.why_fixed}"
    if policy.selector.norms is not None and not all(each.projection for each in layers):
        return "reads output projections, and an attention of this model has none"
    return None


def refused_policies(geometry: Geometry) -> dict[str, list[str]]:
    """Return the named policies that cannot be used with a model, by the reason."""
    refused: dict[str, list[str]] = {}
    for name in NAMED:
        why = why_refused(policy(name), geometry)
        if why is not None:
            refused.setdefault(why, []).append(name)
    return refused


def require_policy(policy: Policy, geometry: Geometry) -> None:
    """Raise PolicyError if a policy cannot be used with a model."""
    why = why_refused(policy, geometry)
    if why is not None:
        raise PolicyError(
            f"policy {policy.name!r} {why}; take another policy, such as 'int8', 'full' or 'window'"
        )
