"""Sweeps: further policies that differ from a chosen one in one parameter."""

import re
import tomllib
from collections.abc import Sequence
from typing import Any

from agentkv.policies.registry import parameters_of
from agentkv.settings import PolicySettings
from agentkv_tasks.bench.errors import BenchError

_COMMAS = re.compile(r",(?![^\[]*\])")
"""Commas that are not inside brackets."""


def swept(policies: Sequence[PolicySettings], sweeps: Sequence[str]) -> list[PolicySettings]:
    """Return the policies, each followed by its variations.

    Args:
        sweeps: texts such as `threshold=0.5,0.9` or `weights=[1,0,0],[0,0,1]`; each value makes a
            variation of every named policy that has the parameter. A value equal to the policy's
            own makes none.

    Raises:
        BenchError: a text cannot be read, or no policy has the parameter; the message names those
            that there are.
        PolicyError: an unknown policy.
    """
    known = {each.row_name: parameters_of(each.name) for each in policies if not each.is_file}
    wanted: list[tuple[str, list[Any]]] = []
    for text in sweeps:
        name, _, given = (part.strip() for part in text.partition("="))
        if not name or not given:
            raise BenchError(
                f"--sweep {text!r}: expected a parameter and its values, such as threshold=0.5,0.9"
            )
        if not any(name in parameters for parameters in known.values()):
            there = "; ".join(f"{label}: {', '.join(each)}" for label, each in known.items())
            raise BenchError(f"--sweep {name}: no policy has this parameter. There are {there}")
        wanted.append((name, [_value(each.strip()) for each in _COMMAS.split(given)]))
    found = []
    for chosen in policies:
        found.append(chosen)
        own = {**known.get(chosen.row_name, {}), **chosen.parameters}
        for name, values in wanted:
            for value in values:
                if name in own and not _is_same(value, own[name]):
                    parameters = {**chosen.parameters, name: value}
                    label = f"{chosen.label} {name}={value}" if chosen.label else ""
                    changes = {"parameters": parameters, "label": label}
                    found.append(chosen.model_copy(update=changes))
    return found


def variation_of(label: str) -> tuple[str, str, str] | None:
    """Return policy, parameter and value of a variation's label, `policy parameter=value`; None for
    another label."""
    found = re.fullmatch(r"(\S+) ([a-z_]+)=(.+)", label)
    return None if found is None else (found[1], found[2], found[3])


def _value(text: str) -> Any:
    """Read a value as in a settings file; a bare word is a text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _is_same(value: Any, own: Any) -> bool:
    return bool(value == (list(own) if isinstance(own, tuple) else own))
