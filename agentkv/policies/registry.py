"""The policies that have a name, and what there is to say about them."""

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from torch import Tensor

from agentkv.policies import confident, named, windowed
from agentkv.policies.allocators import Shared, Uniform
from agentkv.policies.entries import Entries, PolicyError
from agentkv.policies.function import Function
from agentkv.policies.gates import Fixed, Schedule
from agentkv.policies.parameters import require_flag
from agentkv.policies.policy import Policy
from agentkv.policies.precision import Dense
from agentkv.policies.selectors import TopK

NAMED: Mapping[str, Callable[..., Policy]] = MappingProxyType(
    {
        "full": named.full,
        "window": named.window,
        "streaming": named.streaming,
        "h2o": named.h2o,
        "scissorhands": named.scissorhands,
        "snapkv": windowed.snapkv,
        "pyramidkv": windowed.pyramidkv,
        "ada-snapkv": windowed.ada_snapkv,
        "ada-pyramidkv": windowed.ada_pyramidkv,
        "critical-snapkv": windowed.critical_snapkv,
        "critical-pyramidkv": windowed.critical_pyramidkv,
        "critical-ada-snapkv": windowed.critical_ada_snapkv,
        "arkv": named.arkv,
        "edie": named.edie,
        "edie-tada": named.edie_tada,
        "conf-kv": confident.conf_kv,
        "conf-kv-int8": confident.conf_kv_int8,
        "conf-kv-l": confident.conf_kv_l,
        "int8": named.int8,
        "fp8": named.fp8,
        "int4": named.int4,
        "nf4": named.nf4,
    }
)
"""From the plainest on; what builds on another comes after it."""


def policy(name: str, **parameters: Any) -> Policy:
    """The named policy with its own parameters.

    Raises:
        PolicyError: an unknown name, a parameter the policy does not have, or a value it cannot
        take.
    """
    make = _maker(name)
    known = parameters_of(name)
    for parameter in parameters:
        if parameter not in known:
            has = f"known: {', '.join(known)}" if known else "it has none"
            raise PolicyError(f"policy {name!r} has no parameter {parameter!r}; {has}")
    try:
        made = make(**parameters)
    except TypeError as error:
        raise PolicyError(f"policy {name!r}: {error}") from error
    return replace(made, parameters={**known, **parameters})


def parameters_of(name: str) -> dict[str, Any]:
    """The parameters of a named policy and their defaults. Raises PolicyError."""
    return {p.name: p.default for p in inspect.signature(_maker(name)).parameters.values()}


@dataclass(frozen=True, slots=True)
class About:
    """What there is to say about a named policy."""

    summary: str
    """One sentence."""
    details: str
    """More of them, perhaps none."""
    meanings: Mapping[str, str]
    """Of every parameter, in order."""
    source: str
    """Paper and section; empty where there is none."""


def about(name: str) -> About:
    """What its docstring says, and for parameters it leaves out those of policies it names.

    Raises:
        PolicyError: an unknown name.
    """
    own = _read(_maker(name))
    # those about when to evict are the same everywhere, and explained there
    meanings = {**_meanings("window"), **_meanings(name)}
    return replace(own, meanings={key: meanings[key] for key in parameters_of(name)})


def _maker(name: str) -> Callable[..., Policy]:
    make = NAMED.get(name)
    if make is None:
        raise PolicyError(f"unknown policy {name!r}; known: {', '.join(sorted(NAMED))}")
    return make


def _meanings(name: str) -> dict[str, str]:
    own = _read(NAMED[name])
    inherited: dict[str, str] = {}
    for other in re.findall("`([^`]+)`", own.summary):
        if other in NAMED:
            inherited |= _meanings(other)
    return {**inherited, **own.meanings}


def _read(make: Callable[..., Policy]) -> About:
    """A docstring of ours taken apart: summary, details, Args, Source."""
    summary, *paragraphs = (inspect.getdoc(make) or "").split("\n\n")
    meanings: dict[str, str] = {}
    details, source, name = [], "", ""
    for paragraph in paragraphs:
        text = " ".join(paragraph.split())
        if paragraph.startswith("Args:"):
            for line in textwrap.dedent(paragraph.partition("\n")[2]).splitlines():
                if line.startswith(" "):  # goes on with what a line above began
                    meanings[name] += " " + line.strip()
                else:
                    name, _, meaning = line.partition(": ")
                    meanings[name] = meaning
        elif text.startswith("Source: "):
            source = text.removeprefix("Source: ").rstrip(".")
        else:
            details.append(text)
    return About(summary, "\n\n".join(details), meanings, source)


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
    """A policy of one's own: `function` says what rows are worth, and the best of them stay.

    Args:
        name: what result rows call it.
        function: rows of one layer and sequence to (H, T), larger is better.
        window: how many of the last queries `Entries.attention` is to give.
        protected: newest rows that never go.
        sinks: first rows that never go.
        slack: rows over the budget that are let be before eviction goes back to it.
        shared: one set of rows for all heads of a layer, by the mean over the heads.
        comparable: whether scores of different heads are in one unit, so that the policy may be
            given an allocator whose heads compete.
        schedule: as in the policy `window`.

    Raises:
        PolicyError: a value that cannot be.
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
