"""Policies by name, and policies made of a function."""

from collections.abc import Callable, Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType
from typing import Any

from torch import Tensor

from agentkv.nearest import did_you_mean
from agentkv.policies import named
from agentkv.policies.allocators import Shared, Uniform
from agentkv.policies.declare import PRESET, NamedPolicy
from agentkv.policies.entries import Entries, PolicyError
from agentkv.policies.gates import Fixed, Schedule
from agentkv.policies.parameters import require_flag
from agentkv.policies.policy import Policy
from agentkv.policies.precision import Dense
from agentkv.policies.scorers import Function
from agentkv.policies.selectors import TopK


def _find() -> Mapping[str, NamedPolicy]:
    found: dict[str, NamedPolicy] = {}
    for module in iter_modules(named.__path__, f"{named.__name__}."):
        for value in vars(import_module(module.name)).values():
            if isinstance(value, NamedPolicy) and found.setdefault(value.name, value) is not value:
                raise AssertionError(f"{module.name} declares {value.name!r} a second time")
    return MappingProxyType(found)


DECLARED = _find()
"""The policies and presets that the modules of `agentkv.policies.named` declare, by name."""

PRESETS = {name: each for name, each in DECLARED.items() if name.startswith(PRESET)}
"""The constants and schedules of papers as `paper:NAME`, paper by paper."""

NAMED = {
    each.name: each
    for each in sorted(DECLARED.values(), key=lambda each: each.lineage)
    if each.name not in PRESETS
}
"""The other policies, in the order of their names; a policy follows the one it builds on."""


def policy(name: str, **parameters: Any) -> Policy:
    """Make a named policy.

    Raises:
        PolicyError: the name or a parameter is unknown, or a value is out of range.
    """
    return about(name).make(**parameters)


def parameters_of(name: str) -> dict[str, Any]:
    """Return the parameters of a named policy and their defaults. Raises PolicyError."""
    return about(name).parameters


def about(name: str) -> NamedPolicy:
    """Return the declaration of a named policy. Raises PolicyError."""
    if name not in DECLARED:
        hint = did_you_mean(name, DECLARED)
        known = PRESETS if name.startswith(PRESET) else NAMED
        raise PolicyError(f"unknown policy {name!r}; {hint}known: {', '.join(sorted(known))}")
    return DECLARED[name]


def scored(
    name: str,
    function: Callable[[Entries], Tensor],
    *,
    window: int = 0,
    protected: int = 0,
    sinks: int = 0,
    slack: int = 0,
    shared: bool = False,
    comparable: bool = False,
    schedule: Schedule = "always",
) -> Policy:
    """Make a policy from a scoring function; the entries with the highest scores stay.

    Args:
        name: the policy's name in result rows.
        function: maps the entries of one layer and sequence to scores (H, T); larger is better.
        window: number of last queries that `Entries.attention` covers.
        protected: newest entries that are never dropped.
        sinks: first entries that are never dropped.
        slack: entries tolerated above the budget before eviction runs.
        shared: whether all heads of a layer keep the same entries, by their mean score.
        comparable: whether scores of different heads have the same unit, which an allocator with
            competing heads requires.
        schedule: as in the policy `window`.

    Raises:
        PolicyError: a value is out of range.
    """
    if not isinstance(name, str) or not name:
        raise PolicyError(f"a policy needs a name; found {name!r}")
    if not callable(function):
        raise PolicyError(f"policy {name!r} needs a function of Entries; found {function!r}")
    scorer = Function(name, function, window, require_flag("comparable", comparable))
    selector = TopK(sinks, protected)
    allocator = Shared() if require_flag("shared", shared) else Uniform()
    used = {
        "window": window,
        "protected": protected,
        "sinks": sinks,
        "slack": slack,
        "shared": shared,
        "comparable": comparable,
        "schedule": schedule,
    }
    return Policy(name, Fixed(slack, schedule), allocator, scorer, selector, Dense(), used)
