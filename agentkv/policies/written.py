"""Policies as text: compares a saved policy with a present one and rebuilds named ones."""

import dataclasses
import functools
import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from agentkv.policies.entries import PolicyError
from agentkv.policies.policy import Policy
from agentkv.policies.registry import DECLARED
from agentkv.policies.registry import policy as named_policy

PARTS = ("gate", "allocator", "scorer", "selector", "precision", "recall")


class WrittenPolicy(BaseModel):
    """The serialized form of a policy."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    parameters: dict[str, JsonValue] | None
    """Parameters for `agentkv.policy(name)`; None: the policy was not made by name."""
    parts: dict[str, str]
    """Each of the six parts with everything that its behavior depends on."""


def written(policy: Policy) -> str:
    """Return the policy as JSON, without the state of its allocator."""
    parts = {part: _text(getattr(policy, part)) for part in PARTS}
    parameters: Any = None
    if policy.name in DECLARED:
        try:
            parameters = json.loads(json.dumps(dict(policy.parameters)))
            again = _named(policy.name, parameters)
        except (TypeError, PolicyError):
            parameters = None
        else:
            if any(getattr(again, part) != getattr(policy, part) for part in PARTS):
                parameters = None  # a part was replaced afterwards
    return WrittenPolicy(name=policy.name, parameters=parameters, parts=parts).model_dump_json()


def read(text: str, given: Policy | None) -> Policy:
    """Rebuild or check a serialized policy.

    Args:
        given: returned if it has the same parts; None: rebuild the policy by name.

    Raises:
        PolicyError: the text is not a policy, `given` differs from it, or the policy has no name
            to rebuild it from.
    """
    try:
        found = WrittenPolicy.model_validate_json(text)
    except ValidationError as error:
        raise PolicyError(f"the policy cannot be read: {error.errors()[0]['msg']}") from error
    policy = given
    if policy is None:
        if found.parameters is None:
            raise PolicyError(
                f"the policy {found.name!r} was assembled from parts and cannot be rebuilt from "
                "its name; assemble it again and pass it as policy="
            )
        policy = _named(found.name, found.parameters)
    for part in PARTS:
        saved, here = found.parts.get(part), _text(getattr(policy, part))
        if saved != here:
            hint = "pass the same one" if given is not None else "use the agentkv that wrote it"
            raise PolicyError(
                f"the {part} of the policy {found.name!r} was {saved}, and here it is {here}; "
                f"{hint}"
            )
    return policy


def _named(name: str, parameters: Mapping[str, Any]) -> Policy:
    # JSON knows no tuples, and no parameter is a list
    return named_policy(name, **{key: _tuples(value) for key, value in parameters.items()})


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if isinstance(value, list) else value


def _text(part: object) -> str:
    """Return a `repr` that is the same in every process: functions by name, without addresses."""
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        fields = [
            f"{field.name}={_text(getattr(part, field.name))}"
            for field in dataclasses.fields(part)
            if field.repr
        ]
        return f"{type(part).__qualname__}({', '.join(fields)})"
    if isinstance(part, functools.partial):
        return f"partial({_text(part.func)}, {part.args!r}, {part.keywords!r})"
    name = getattr(part, "__qualname__", None)
    if isinstance(name, str):
        return f"{getattr(part, '__module__', '')}.{name}"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(part))
