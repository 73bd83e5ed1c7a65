"""Settings: frozen values that fit in a TOML or JSON file.

A setting is declared once, as a field with a docstring. Options of the command line and their help,
keys of files, the reference and the keywords of `Agent` follow from the declaration. `build.py`
turns settings into objects.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    field_validator,
    model_validator,
)

from agentkv.defaults import CHUNK, POLICY
from agentkv.nearest import did_you_mean
from agentkv_env.masking import Secrets

SCRIPTED = ("solution", "stop", "random")
"""Names of the scripted models."""

Decoding = Literal["constrained", "free"]
Observations = Literal["whole", "changes"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Weights = Literal["auto", "float", "int8", "int4"]


@dataclass(frozen=True, slots=True)
class Flag:
    """Annotation of a boolean setting: its two options on the command line."""

    options: str
    """Such as `--strict/--lenient`."""


class SettingsError(ValueError):
    """An unreadable settings file, or a value that no setting can have."""


class Settings(BaseModel):
    """Base of all settings: frozen, without unknown keys, each field with a docstring."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @classmethod
    def read(cls, path: Path | None = None, **given: Any) -> Self:
        """Read settings from a TOML file; `given` overrides them.

        Raises:
            SettingsError: a ValueError; the file cannot be read or is not TOML, a value is invalid,
                or a key is unknown; the message names the known keys.
        """
        values = {} if path is None else read_toml(path)
        try:
            return cls(**{**values, **given})
        except ValidationError as error:
            raise SettingsError(_explain(error, path, cls)) from error

    def chosen(self, schema: "type[Settings]") -> dict[str, Any]:
        """Return those settings of `schema` that were given, not left at their defaults."""
        return {
            name: getattr(self, name)
            for name in schema.model_fields
            if name in self.model_fields_set
        }

    @field_validator("*", mode="before")
    @classmethod
    def _is_text(cls, value: object) -> object:
        if isinstance(value, str) and not is_text(value):
            raise ValueError("holds a zero byte, or bytes that are not UTF-8")
        return value


def is_text(value: str) -> bool:
    """Return True if `value` can be written as UTF-8 and used as a file name."""
    return "\0" not in value and not any("\ud800" <= character <= "\udfff" for character in value)


LARGEST = 2**63 - 1
"""The largest number that a setting can be."""
YEAR_S = 366 * 24 * 3600.0
_LEAST_TEMPERATURE = 0.001
"""Dividing logits by a lower temperature leaves the range of float32."""
_BUDGET_CHARACTERS = 40
_FILE_BYTES = 1_000_000
_DOTS = 2_000
_SHOWN = 80
"""Characters of a wrong value that an error message quotes."""


class PageSettings(Settings):
    """What of the earlier pages a model is left, before its policy acts on the rest."""

    last_pages: int | None = Field(default=None, ge=1, le=LARGEST)
    """Number of the latest pages that stay readable, the current one included. An older page leaves
    only its head (address and title); replies and notes stay. None: all pages."""
    notes_only: bool = False
    """An older page leaves nothing, and its reply only the notes that it begins with: nano's `read`
    lines, or what another model says before its action. Needs `last_pages`."""
    rebuild: bool = False
    """Read the whole prompt again in every turn, into an empty cache, as programs without a lasting
    cache do."""

    @model_validator(mode="after")
    def _forgets_what_notes_replace(self) -> Self:
        if self.notes_only and self.last_pages is None:
            raise ValueError(
                "notes_only is about pages that are forgotten, and last_pages forgets none; "
                "give last_pages=1 as well"
            )
        return self

    @property
    def pages(self) -> dict[str, Any]:
        """The settings of pages that differ from their defaults, as rows hold them."""
        return self.model_dump(include=set(PageSettings.model_fields), exclude_defaults=True)


class PolicySettings(PageSettings):
    """One policy of a comparison: a named cache policy or a composed one, its parameters, and the
    pages it is left."""

    name: str
    """Named policy (`agentkv policies` lists them), or TOML file that composes a policy."""
    parameters: dict[str, Any] = {}
    """Parameters of the policy, such as `window` or `kernel`; missing ones keep their defaults."""
    label: str = ""
    """Name in result rows. Empty stands for the policy's name followed by its own parameters."""

    @property
    def row_name(self) -> str:
        """The label, or a name that no other parameters share."""
        if self.label:
            return self.label
        name = Path(self.name).stem if self.is_file else self.name
        given = {**self.parameters, **self.pages}
        return " ".join([name, *(f"{key}={value}" for key, value in given.items())])

    @property
    def is_file(self) -> bool:
        """True if `name` is the path of a composed policy."""
        return self.name.endswith(".toml")


def _named(policy: object) -> object:
    return {"name": policy} if isinstance(policy, str) else policy


def _slot(part: object) -> object:
    return {"of": part} if isinstance(part, str) else part


class Slot(Settings):
    """Part of a composed policy, taken from a named policy."""

    of: str
    """Named policy that provides the part."""
    parameters: dict[str, Any] = {}
    """Parameters of the named policy; only those that the part reads matter."""


OneSlot = Annotated[Slot, BeforeValidator(_slot)]
"""In a file, a bare name stands for the part of that policy with default parameters."""


class ComposedPolicy(Settings):
    """A policy composed of parts of named policies.

    name = "mine"
    base = { of = "conf-kv-int8", parameters = { threshold = 0.8 } }
    allocator = "conf-kv-l"
    selector = { of = "streaming", parameters = { sinks = 8 } }
    """

    name: str
    base: OneSlot
    """Provides every part that is not named below."""
    gate: OneSlot | None = None
    """How many entries may stay, and when eviction runs."""
    allocator: OneSlot | None = None
    """How the budget is divided among layers and heads."""
    scorer: OneSlot | None = None
    """Score of each entry."""
    selector: OneSlot | None = None
    """Which entries stay."""
    precision: OneSlot | None = None
    """Format of the stored entries."""
    recall: OneSlot | None = None
    """The cache forgets evicted entries, or keeps them for tokens that look back."""


Policy = Annotated[PolicySettings, BeforeValidator(_named)]
"""In a file, a bare name stands for the policy with default parameters."""


_NANO_PROFILE = Path(__file__).parent / "models" / "nano" / "profile.toml"


def tuned_for(model: object) -> dict[str, Any]:
    """Return the settings that were tuned for `model`: `budget` and `chunk` of nano's profile, and
    nothing for any other model. They take the place of the defaults."""
    return read_toml(_NANO_PROFILE) if model == "nano" else {}


ADAPTED = {"smollm2-web": "smollm2"}
"""Models that are another with an adapter that ships with the package: the other's name."""


class ModelSettings(Settings):
    """A language model, and how its caches are kept.

    Where the model is nano, its profile takes the place of the defaults of `budget` and `chunk`.
    From Python, None stands for the model's own `budget`, `chunk` and `cache_dtype`.
    """

    model: str = "nano"
    """`nano`, `smollm2`, `smollm2-web`, a folder, a GGUF file, a hub id, or a script where tasks
    are played: `solution`, `stop` or `random`."""
    device: str = Field(default="auto", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")
    """`auto` (CUDA where there is a device), `cpu`, `mps`, `cuda` or `cuda:1`."""
    dtype: Dtype = "auto"
    """Dtype of the weights. `auto` is the checkpoint's on CUDA, and float32 on a CPU."""
    weights: Weights = "auto"
    """Form of the weights. `auto` leaves those of a quantized GGUF file as they are where a CPU can
    compute with them, and is `float` otherwise; `int8` and `int4` quantize linear layers when the
    model is loaded, on a CPU."""
    adapter: str | None = None
    """Folder of a LoRA adapter, as `agentkv train` and peft write it. The weights are then `float`
    unless `int8` or `int4` is given, as with the own adapter of `smollm2-web`."""
    merge_adapter: bool = True
    """Add the adapter to the weights when the model is loaded. Otherwise layers keep it apart, and
    no step is compiled; a model's own adapter is added all the same beside another one."""
    cache_dtype: Literal["auto", "model", "float32", "bfloat16", "float16"] = "auto"
    """Dtype in which the cache stores what it does not quantize, whatever the model computes in.
    `auto` is the checkpoint's if that has 16 bits, else bfloat16; `model` is what the model
    computes in."""
    budget: int | str | None = None
    """Budget of every policy that does not bring its own: tokens per layer and KV head, a share of
    the tokens seen (25%), both ('25%, at least 1024'), or bytes (64MiB). The default is
    '25%, at least 1024', and 3.1MiB for nano."""
    prefill: Literal["chunked", "whole"] = "chunked"
    """`chunked` reads a page in chunks, which keeps the cache near its budget; `whole` reads it at
    once."""
    chunk: int = Field(default=CHUNK, ge=1, le=LARGEST)
    """Tokens of a page in one forward. The cache's peak is this many dense entries above the
    budget. nano's profile says 32."""

    @model_validator(mode="wrap")
    @classmethod
    def _use_profile(cls, values: Any, make: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(values, dict):
            return make(values)
        of_model = ("budget", "chunk", "cache_dtype")
        values = {k: v for k, v in values.items() if v is not None or k not in of_model}
        profile = tuned_for(values.get("model", cls.model_fields["model"].default))
        made = make({**profile, **values})
        made.model_fields_set.difference_update(profile.keys() - values.keys())
        return made

    @property
    def has_adapter(self) -> bool:
        """Whether an adapter is added to the weights: `adapter`, or the model's own."""
        return self.adapter is not None or self.model in ADAPTED

    @property
    def loaded_weights(self) -> Weights:
        """The form of the weights: no adapter can be added to the blocks of a GGUF file."""
        return "float" if self.has_adapter and self.weights == "auto" else self.weights

    @field_validator("budget")
    @classmethod
    def _has_a_size(cls, value: int | str | None) -> int | str | None:
        if isinstance(value, str) and len(value) > _BUDGET_CHARACTERS:
            raise ValueError("expected a number, a share such as '25%', or bytes such as '64MiB'")
        if isinstance(value, int) and not 0 < value <= LARGEST:
            raise ValueError("must be at least one token")
        return value


class PoliciesSettings(ModelSettings):
    """A model under several policies.

    Where the model is a script, the default policy is `full` alone.
    """

    policies: tuple[Policy, ...] = (
        PolicySettings(name="full"),
        PolicySettings(name="int4"),
        PolicySettings(name=POLICY),
    )
    """Cache policies, or TOML files that compose them."""

    @model_validator(mode="before")
    @classmethod
    def _need_one_for_a_script(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("model") in SCRIPTED:
            return {"policies": ("full",), **values}
        return values

    @field_validator("policies")
    @classmethod
    def _have_distinct_names(cls, value: tuple[PolicySettings, ...]) -> tuple[PolicySettings, ...]:
        if not value:
            raise ValueError("at least one is needed")
        names = [policy.row_name for policy in value]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)} named twice; give each a `label` of its own")
        return value


class ActingSettings(ModelSettings):
    """What a model that acts on pages reads and writes, and when its episode ends."""

    decoding: Decoding = "constrained"
    """`constrained` admits only actions that the page allows; `free` admits any text."""
    temperature: float = Field(default=0.0, ge=0.0)
    """0 takes the most probable token; 0.001 or more samples, seeded by the episode."""
    max_new_tokens: int = Field(default=512, ge=8, le=LARGEST)
    """Maximum tokens of a reply."""
    thinking: int = Field(default=0, ge=0, le=LARGEST)
    """Maximum tokens of a thought before each reply, for a model whose chat template knows
    thoughts. A thought stays in the cache as far as the policy lets it, and is no part of an
    action. 0: the model does not think."""
    observation_tokens: int | None = Field(default=3840, ge=64, le=LARGEST)
    """Maximum tokens of a page that the model reads, as many as in VisualWebArena; a marker stands
    for the rest. From Python, None sets no limit."""
    observations: Observations = "whole"
    """`whole` shows every page in full; `changes` shows only what changed since the last visit."""
    pins: bool = True
    """Keep the goal, and the instructions before it, in the cache under every policy; they count in
    the budget. Otherwise the policy alone decides, as in its paper."""
    strict: Annotated[bool, Flag("--strict/--lenient")] = False
    """Parse actions exactly as VisualWebArena does, or without its known parsing flaws."""
    max_parse_failures: int = Field(default=3, ge=1)
    """The episode ends after this many replies in a row without a readable action."""
    max_repeats: int = Field(default=5, ge=2)
    """The episode ends after this many identical actions in a row on an unchanged page; the last
    one is not carried out."""
    # Our choice: actions are compared with their text, pages with everything the agent can observe
    # except notices. VisualWebArena compares only element numbers, and for `type` even across
    # pages, which ends episodes that still make progress.

    @classmethod
    def merged(cls, settings: "ActingSettings | None", overrides: Mapping[str, Any]) -> Self:
        """Return what `settings` chose, with `overrides` in its place.

        Raises:
            SettingsError: an unknown setting, or a value that it cannot have.
        """
        given = {} if settings is None else settings.chosen(ActingSettings)
        return cls.read(**{**given, **overrides})

    @field_validator("temperature")
    @classmethod
    def _can_divide(cls, value: float) -> float:
        if 0 < value < _LEAST_TEMPERATURE:
            raise ValueError(f"must be 0, or at least {_LEAST_TEMPERATURE}")
        return value


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file of settings.

    Raises:
        SettingsError: the file cannot be read, is not TOML, or is larger than settings are.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_FILE_BYTES + 1).decode("utf-8")
        if len(text) > _FILE_BYTES:
            raise SettingsError(f"{path} is longer than {_FILE_BYTES} bytes; expected settings")
        if text.count(".") > _DOTS:  # tomllib takes memory quadratic in the parts of a key
            raise SettingsError(f"{path} holds more than {_DOTS} dots; expected settings")
        return tomllib.loads(text)
    except SettingsError:
        raise
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    except RecursionError:
        raise SettingsError(f"{path} is nested too deeply") from None
    except ValueError as error:  # no TOML, not UTF-8, or a number of thousands of digits
        raise SettingsError(f"{path} is no TOML: {error}") from error


def _explain(error: ValidationError, path: Path | None, schema: type[BaseModel]) -> str:
    lines = []
    for problem in error.errors():
        where = ".".join(str(part) for part in problem["loc"])
        message = (
            problem["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
        )
        if problem["type"] in ("int_parsing", "int_parsing_size"):
            message = "expected a whole number"
        if problem["type"] == "extra_forbidden":
            names = tuple(schema.model_fields)
            hint = did_you_mean(where, names)
            known = f"; {hint}known: {', '.join(names)}" if "." not in where else ""
            lines.append(f"unknown setting {where!r}{known}")
        elif not where:
            lines.append(message)
        else:
            lines.append(f"{where}: {message}, found {_shown(problem['input'])}")
    return Secrets().mask(f"{path}: " * (path is not None) + "; ".join(lines))


def _shown(value: object) -> str:
    text = "a very large number" if _is_huge(value) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _is_huge(value: object) -> bool:
    # Python refuses to write a number of more than 4,300 digits.
    return isinstance(value, int) and abs(value) > LARGEST
