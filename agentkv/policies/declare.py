"""Declarations of named policies.

    @named(window)
    def streaming(base: Policy, *, sinks: Annotated[int, Help("Entries kept ...")] = 4) -> Policy:
        return replace(base, selector=TopK(sinks=sinks))

declares the policy `streaming`, with its parameter `sinks` and those of `window`.

    SNAPKV = preset(snapkv, "Compresses a prompt once. ...", whole=True, schedule="prefill")

declares `paper:snapkv`, the policy `snapkv` with the constants of a paper.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_type_hints

from agentkv.nearest import did_you_mean
from agentkv.policies.allocators import Uniform
from agentkv.policies.entries import PolicyError
from agentkv.policies.gates import Confident, Fixed, Unbounded
from agentkv.policies.parameters import Help
from agentkv.policies.policy import Policy
from agentkv.policies.precision import Dense
from agentkv.policies.scorers import Age
from agentkv.policies.selectors import TopK

WHEN = ("slack", "schedule", "interval")
"""Parameters of almost all policies, about when eviction runs; people read them last."""
AnyGate = type[Unbounded] | type[Fixed] | type[Confident]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a named policy."""

    default: Any
    help: str


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """A policy that is made by name, and its description for people."""

    name: str
    declared: Mapping[str, Parameter]
    """Parameters by name, those of `base` included."""
    base: "NamedPolicy | AnyGate"
    """The policy that `change` changes, or the gate of one with the parts `Uniform`, `Age`, `TopK`,
    `Dense` and `Forget`."""
    change: Callable[..., Policy]
    """Takes the base and, by keyword, the parameters that its signature names."""
    text: str
    """One sentence, perhaps more paragraphs, and perhaps a last one `Source: ...`."""

    @property
    def parameters(self) -> dict[str, Any]:
        """Defaults of the parameters, in the order for people."""
        return {key: parameter.default for key, parameter in self.declared.items()}

    @property
    def paragraphs(self) -> list[str]:
        """The text without its source: one sentence, and perhaps more paragraphs."""
        return [text for text in self._paragraphs() if not text.startswith("Source: ")]

    @property
    def source(self) -> str:
        """Paper and section; empty if there is none."""
        last = self._paragraphs()[-1]
        return last.removeprefix("Source: ").rstrip(".") if last.startswith("Source: ") else ""

    @property
    def lineage(self) -> tuple[str, ...]:
        """Names of the policies that it builds on, and its own."""
        base = self.base.lineage if isinstance(self.base, NamedPolicy) else ()
        return (*base, self.name)

    def make(self, **parameters: Any) -> Policy:
        """Make the policy. Raises PolicyError, with the known parameters if one is unknown."""
        defaults = self.parameters
        for key in parameters:
            if key not in defaults:
                hint = did_you_mean(key, defaults)
                has = f"{hint}known: {', '.join(defaults)}" if defaults else "it has none"
                raise PolicyError(f"policy {self.name!r} has no parameter {key!r}; {has}")
        values = {**defaults, **parameters}
        try:
            return replace(self._made(self.name, values), parameters=values)
        except TypeError as error:
            raise PolicyError(f"policy {self.name!r}: {error}") from error

    def _made(self, name: str, values: Mapping[str, Any]) -> Policy:
        if isinstance(self.base, NamedPolicy):
            base = self.base._made(name, values)
        else:
            gate = self.base(**{key: values[key] for key in _parameters_of_gate(self.base)})
            base = Policy(name, gate, Uniform(), Age(), TopK(), Dense())
        return self.change(base, **{key: values[key] for key in self.change.__kwdefaults__ or ()})

    def _paragraphs(self) -> list[str]:
        return [" ".join(paragraph.split()) for paragraph in self.text.split("\n\n")]


def named(
    base: NamedPolicy | AnyGate = Unbounded,
) -> Callable[[Callable[..., Policy]], NamedPolicy]:
    """Declare the policy that a function makes of another one.

    The function's name is the policy's, with dashes; its docstring begins with one sentence, and
    may end with a paragraph `Source: ...`. It takes the base and its own parameters, by keyword,
    each with a default and a `Help`. The new policy has the parameters of the base too. Where the
    function declares one of them again, default and help are the new ones, and both receive it.

    Args:
        base: a named policy, or the gate of one with the parts `Uniform`, `Age`, `TopK`, `Dense`
            and `Forget`.
    """

    def declare(change: Callable[..., Policy]) -> NamedPolicy:
        inherited = base.declared if isinstance(base, NamedPolicy) else _parameters_of_gate(base)
        declared = {**inherited, **_own_parameters(change)}
        ordered = sorted(declared.items(), key=lambda item: item[0] in WHEN)
        name, text = change.__name__.replace("_", "-"), inspect.getdoc(change) or ""
        return NamedPolicy(name, dict(ordered), base, change, text)

    return declare


def preset(
    base: NamedPolicy, text: str, *, name: str = "", whole: bool = False, **constants: Any
) -> NamedPolicy:
    """Declare `paper:NAME`, a named policy with other defaults.

    Args:
        base: has all parameters of the preset.
        text: as `NamedPolicy.text`.
        name: NAME; empty: the name of `base`.
        whole: whether inputs are read whole, whatever the cache's `prefill` says.
        constants: defaults that differ from those of `base`.
    """
    declared = dict(base.declared)
    for key, value in constants.items():
        declared[key] = replace(declared[key], default=value)
    change = _reading_whole if whole else _unchanged
    return NamedPolicy(
        f"{PRESET}{name or base.name}", declared, base, change, inspect.cleandoc(text)
    )


PRESET = "paper:"
"""The names of presets begin with this."""


def _unchanged(base: Policy) -> Policy:
    return base


def _reading_whole(base: Policy) -> Policy:
    gate = base.gate
    assert isinstance(gate, Fixed | Confident), f"{base.name} never evicts"
    return replace(base, gate=replace(gate, whole=True))


def _own_parameters(change: Callable[..., Policy]) -> dict[str, Parameter]:
    hints = get_type_hints(change, include_extras=True)
    defaults = change.__kwdefaults__ or {}
    return {key: Parameter(default, _help(hints[key])) for key, default in defaults.items()}


def _parameters_of_gate(gate: AnyGate) -> dict[str, Parameter]:
    """Return the fields of a gate that have a `Help`, those of a subclass first."""
    hints = get_type_hints(gate, include_extras=True)
    defaults = inspect.signature(gate).parameters
    names = [name for kind in gate.__mro__ for name in vars(kind).get("__annotations__", ())]
    return {
        name: Parameter(defaults[name].default, _help(hints[name]))
        for name in names
        if _help(hints[name])
    }


def _help(hint: Any) -> str:
    """Return the text of the `Help` of a type; empty if it has none."""
    metadata = getattr(hint, "__metadata__", ())
    return next((each.text for each in metadata if isinstance(each, Help)), "")
