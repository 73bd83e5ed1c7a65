"""The named policies, their parameters and their descriptions."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, get_type_hints

from torch import Tensor

from agentkv.nearest import did_you_mean
from agentkv.policies import confident, named, windowed
from agentkv.policies.allocators import Shared, Uniform
from agentkv.policies.entries import Entries, PolicyError
from agentkv.policies.function import Function
from agentkv.policies.gates import Fixed, Schedule
from agentkv.policies.options import Help
from agentkv.policies.parameters import require_flag
from agentkv.policies.policy import Policy
from agentkv.policies.precision import Dense
from agentkv.policies.selectors import TopK

NAMED: Mapping[str, Callable[..., Policy]] = MappingProxyType(
    {
        "full": named.full,
        "window": named.window,
        "window-by-span": named.window_by_span,
        "lookback": named.lookback,
        "streaming": named.streaming,
        "h2o": named.h2o,
        "scissorhands": named.scissorhands,
        "lazy-eviction": named.lazy_eviction,
        "keydiff": named.keydiff,
        "expected-attention": windowed.expected_attention,
        "triattention": windowed.triattention,
        "tova": windowed.tova,
        "snapkv": windowed.snapkv,
        "snapkv-by-phase": windowed.snapkv_by_phase,
        "snapkv-by-span": windowed.snapkv_by_span,
        "pyramidkv": windowed.pyramidkv,
        "ada-snapkv": windowed.ada_snapkv,
        "ada-pyramidkv": windowed.ada_pyramidkv,
        "critical-snapkv": windowed.critical_snapkv,
        "critical-pyramidkv": windowed.critical_pyramidkv,
        "critical-ada-snapkv": windowed.critical_ada_snapkv,
        "r-kv": windowed.r_kv,
        "arkv": named.arkv,
        "edie": named.edie,
        "edie-tada": named.edie_tada,
        "conf-kv": confident.conf_kv,
        "conf-kv-int8": confident.conf_kv_int8,
        "conf-kv-l": confident.conf_kv_l,
        "streaming-int8": named.streaming_int8,
        "lookback-int8": named.lookback_int8,
        "int8": named.int8,
        "fp8": named.fp8,
        "int4": named.int4,
        "nf4": named.nf4,
    }
)
"""Simplest first; a policy comes after the one it builds on."""


def policy(name: str, **parameters: Any) -> Policy:
    """Make a named policy.

    Raises:
        PolicyError: the name or a parameter is unknown, or a value is out of range.
    """
    make = _maker(name)
    known = parameters_of(name)
    for parameter in parameters:
        if parameter not in known:
            hint = did_you_mean(parameter, known)
            has = f"{hint}known: {', '.join(known)}" if known else "it has none"
            raise PolicyError(f"policy {name!r} has no parameter {parameter!r}; {has}")
    try:
        made = make(**parameters)
    except TypeError as error:
        raise PolicyError(f"policy {name!r}: {error}") from error
    return replace(made, parameters={**known, **parameters})


def parameters_of(name: str) -> dict[str, Any]:
    """Return the parameters of a named policy and their defaults. Raises PolicyError."""
    return {p.name: p.default for p in inspect.signature(_maker(name)).parameters.values()}


@dataclass(frozen=True, slots=True)
class About:
    """The description of a named policy, for people."""

    summary: str
    """One sentence."""
    details: str
    """Further paragraphs; empty if there are none."""
    meanings: Mapping[str, str]
    """Help text by parameter, in the order of the signature."""
    source: str
    """Paper and section; empty if there is none."""


def about(name: str) -> About:
    """Describe a named policy.

    The help text of a parameter is the `Help` in its annotation; the rest is the docstring, one
    paragraph each.

    Raises:
        PolicyError: an unknown name.
    """
    make = _maker(name)
    summary, *paragraphs = (
        " ".join(paragraph.split()) for paragraph in (inspect.getdoc(make) or "").split("\n\n")
    )
    sources = [text for text in paragraphs if text.startswith("Source: ")]
    details = [text for text in paragraphs if text not in sources]
    source = sources[0].removeprefix("Source: ").rstrip(".") if sources else ""
    hints = get_type_hints(make, include_extras=True)
    meanings = {key: _help_of(name, key, hints[key]) for key in parameters_of(name)}
    return About(summary, "\n\n".join(details), meanings, source)


def _maker(name: str) -> Callable[..., Policy]:
    make = NAMED.get(name)
    if make is None:
        hint = did_you_mean(name, NAMED)
        raise PolicyError(f"unknown policy {name!r}; {hint}known: {', '.join(sorted(NAMED))}")
    return make


def _help_of(name: str, parameter: str, annotation: Any) -> str:
    for metadata in getattr(annotation, "__metadata__", ()):
        if isinstance(metadata, Help):
            return metadata.text
    raise AssertionError(f"parameter {parameter!r} of policy {name!r} declares no Help")


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
