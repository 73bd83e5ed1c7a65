"""Policies as text, in which a value can be told from another one, and a named one made again."""

import dataclasses
import functools
import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from agentkv.policies.entries import PolicyError
from agentkv.policies.policy import Policy
from agentkv.policies.registry import NAMED
from agentkv.policies.registry import policy as named_policy

PARTS = ("gate", "allocator", "scorer", "selector", "precision")


class Written(BaseModel):
    """A policy written down."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    parameters: dict[str, JsonValue] | None
    """With which `agentkv.policy(name)` makes it again; None: it was not made so."""
    parts: dict[str, str]
    """What each of its five parts is, with everything that its behaviour depends on."""


def written(policy: Policy) -> str:
    """As JSON. What an allocator has learned is not part of it."""
    parts = {part: _text(getattr(policy, part)) for part in PARTS}
    parameters: Any = None
    if policy.name in NAMED:
        try:
            parameters = json.loads(json.dumps(dict(policy.parameters)))
            again = _named(policy.name, parameters)
        except (TypeError, PolicyError):
            parameters = None
        else:
            if any(getattr(again, part) != getattr(policy, part) for part in PARTS):
                parameters = None  # it was changed since
    return Written(name=policy.name, parameters=parameters, parts=parts).model_dump_json()


def read(text: str, given: Policy | None) -> Policy:
    """The policy that was written down.

    Args:
        given: it must be of the same parts, and is the answer then. None: make it again.

    Raises:
        PolicyError: the text is none of ours, the policy given is another one, or it can only be
            given.
    """
    try:
        found = Written.model_validate_json(text)
    except ValidationError as error:
        raise PolicyError(f"the policy cannot be read: {error.errors()[0]['msg']}") from error
    policy = given
    if policy is None:
        if found.parameters is None:
            raise PolicyError(
                f"the policy {found.name!r} was put together by hand and cannot be made from its "
                "name; put it together again and pass it as policy="
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
    """As `repr`, but the same in every process: a function by its name, without its address."""
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        said = [
            f"{field.name}={_text(getattr(part, field.name))}"
            for field in dataclasses.fields(part)
            if field.repr
        ]
        return f"{type(part).__qualname__}({', '.join(said)})"
    if isinstance(part, functools.partial):
        return f"partial({_text(part.func)}, {part.args!r}, {part.keywords!r})"
    name = getattr(part, "__qualname__", None)
    if isinstance(name, str):
        return f"{getattr(part, '__module__', '')}.{name}"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(part))
