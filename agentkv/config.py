"""What a run is: everything a person may set, in one frozen value that fits in a TOML or JSON file.

`build.py` alone turns these into objects.
"""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from agentkv.defaults import CHUNK, POLICY

Decoding = Literal["constrained", "free"]
Observations = Literal["whole", "changes"]


class SettingsError(ValueError):
    """A settings file that cannot be read, or a value in it that makes no sense."""


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _is_text(cls, value: object) -> object:
        if isinstance(value, str) and not is_text(value):
            raise ValueError("holds a zero byte, or bytes that are no UTF-8")
        return value


def is_text(value: str) -> bool:
    """Whether `value` can be written as UTF-8 and given to the system as a name."""
    return "\0" not in value and not any("\ud800" <= character <= "\udfff" for character in value)


_LARGEST = 2**63 - 1
_YEAR_S = 366 * 24 * 3600.0
_LEAST_TEMPERATURE = 0.001
"""Below, logits that are divided by it leave the range of 32 bits."""
_BUDGET_CHARACTERS = 40
_FILE_BYTES = 1_000_000
_DOTS = 2_000
_SHOWN = 80
"""Characters of a wrong value that an error repeats."""


class PolicySettings(_Settings):
    """One cache policy of a run: a named one, perhaps with parameters of its own."""

    name: str
    """A named policy (`agentkv policies` lists them), or a TOML file that composes one."""
    parameters: dict[str, Any] = {}
    """Its own parameters, such as `window` or `kernel`; those left out keep their defaults."""
    label: str = ""
    """Name in result rows. Empty stands for the policy's name followed by its own parameters."""

    @property
    def row_name(self) -> str:
        """The label, or a name that no other parameters share."""
        if self.label:
            return self.label
        name = Path(self.name).stem if self.is_file else self.name
        return " ".join([name, *(f"{key}={value}" for key, value in self.parameters.items())])

    @property
    def is_file(self) -> bool:
        return self.name.endswith(".toml")


def _named(policy: object) -> object:
    return {"name": policy} if isinstance(policy, str) else policy


def _slot(part: object) -> object:
    return {"of": part} if isinstance(part, str) else part


class Slot(_Settings):
    """One of a policy's five parts, taken from a named policy."""

    of: str
    """The named policy that has the part."""
    parameters: dict[str, Any] = {}
    """That policy's parameters, as far as the part reads them."""


OneSlot = Annotated[Slot, BeforeValidator(_slot)]
"""In a file a bare name stands for that policy's part with its defaults."""


class ComposedPolicy(_Settings):
    """A policy of one's own, put together from parts of named ones.

    name = "mine"
    base = { of = "conf-kv-int8", parameters = { threshold = 0.8 } }
    allocator = "conf-kv-l"
    selector = { of = "streaming", parameters = { sinks = 8 } }
    """

    name: str
    base: OneSlot
    """Gives every part that is not named below."""
    gate: OneSlot | None = None
    """How much may stay, and when rows go."""
    allocator: OneSlot | None = None
    """How that is shared out over layers and heads."""
    scorer: OneSlot | None = None
    """What each row is worth."""
    selector: OneSlot | None = None
    """Which rows stay."""
    precision: OneSlot | None = None
    """How they are stored."""


Policy = Annotated[PolicySettings, BeforeValidator(_named)]
"""In a file a bare name stands for the policy with its defaults."""


_NANO_PROFILE = Path(__file__).parent / "models" / "nano" / "profile.toml"


def _profile(model: object) -> dict[str, Any]:
    """Return the settings that were tuned for `model`: those beside nano's weights, else none."""
    return _read(_NANO_PROFILE) if model == "nano" else {}


class RunSettings(_Settings):
    """One run: which tasks, on which model, under which policies, within which limits."""

    tasks: str = "vwa75"
    """A suite's name or the path of a task file."""
    model: str = "nano"
    """`nano`, a hub id, a folder, or a script: `solution`, `stop`, `random`."""
    policies: tuple[Policy, ...] = (
        PolicySettings(name="full"),
        PolicySettings(name="window"),
        PolicySettings(name=POLICY),
    )
    """Policies; every task runs under each. nano's profile names others."""
    seeds: tuple[Annotated[int, Field(ge=-_LARGEST, le=_LARGEST)], ...] = (0,)
    """Every task is run once per policy and seed. Greedy decoding makes equal runs of them."""
    world_seed: int = Field(default=75, ge=0, le=_LARGEST)
    """Which embedded world the tasks are set in."""
    limit: int | None = Field(default=None, ge=1, le=_LARGEST)
    """Only the first so many tasks."""
    out: Path = Path("results")
    """Folder for rows, traces and the report."""
    workers: int = Field(default=1, ge=1, le=_LARGEST)
    """Processes, each with a model, a browser and the sites of its own."""

    budget: int | str | None = None
    """Budget of every policy that does not bring its own: tokens per layer and KV head, a share of
    the tokens seen such as "25%" or "25%, at least 1024", or bytes such as "64MiB". None stands for
    `agentkv.defaults.BUDGET`; nano's profile says 704."""
    prefill: Literal["chunked", "whole"] = "chunked"
    """Feed a page in pieces that keep the cache near its budget, or at once."""
    chunk: int = Field(default=CHUNK, ge=1, le=_LARGEST)
    """Tokens of a page that are read at once. The cache's peak is this many dense entries above the
    budget. nano's profile says 32."""
    decoding: Decoding = "constrained"
    """`constrained` admits only what can be done on the page; `free` counts what cannot be read."""
    temperature: float = Field(default=0.0, ge=0.0)
    """0 takes the likeliest token; from 0.001 on the seed matters."""
    deterministic: bool = False
    """Decode every reply in separate forwards. Replies that share a forward change how its sums are
    rounded, and rounding can change a token. Two equal runs on one machine then write equal rows,
    except for times."""
    max_new_tokens: int = Field(default=256, ge=8, le=_LARGEST)
    """Tokens a reply may have."""
    observation_tokens: int | None = Field(default=3840, ge=64, le=_LARGEST)
    """Tokens of a page that are shown; the rest is cut with a marker. VisualWebArena's figure."""
    observations: Observations = "whole"
    """`changes` shows a page that is looked at again as the lines that are new or changed since."""
    device: str = Field(default="auto", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")
    """`auto` takes CUDA when there is one; `cpu`, `cuda`, `cuda:1` ..."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """`auto` is the checkpoint's own on CUDA, float32 on a CPU."""

    strict: bool = False
    """Read actions bit for bit as VisualWebArena does, traps included; else mend the known ones."""
    max_steps: int | None = Field(default=None, ge=1)
    """Actions per episode, at most as many as its task allows; None: so many."""
    max_parse_failures: int = Field(default=3, ge=1)
    """Replies in a row without a readable action that end an episode."""
    max_repeats: int = Field(default=5, ge=2)
    """Equal actions in a row on an unchanged page that end an episode."""
    timeout_s: float = Field(default=900.0, gt=0, le=_YEAR_S)
    """Seconds an episode may take, a year at most."""
    screenshots: bool = True
    """Keep a picture of every page beside the trace."""
    ocr: bool = True
    """Read text inside images, where Tesseract is installed."""
    browser_path: Path | None = None
    """A Chromium to use instead of the one found."""

    @model_validator(mode="before")
    @classmethod
    def _use_profile(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {**_profile(values.get("model", cls.model_fields["model"].default)), **values}

    @field_validator("temperature")
    @classmethod
    def _can_divide(cls, value: float) -> float:
        if 0 < value < _LEAST_TEMPERATURE:
            raise ValueError(f"must be 0, or at least {_LEAST_TEMPERATURE}")
        return value

    @field_validator("budget")
    @classmethod
    def _has_a_size(cls, value: int | str | None) -> int | str | None:
        if isinstance(value, str) and len(value) > _BUDGET_CHARACTERS:
            raise ValueError("expected a number, a share such as '25%', or bytes such as '64MiB'")
        if isinstance(value, int) and not 0 < value <= _LARGEST:
            raise ValueError("must be at least one token")
        return value

    @field_validator("policies", "seeds")
    @classmethod
    def _is_not_empty(cls, value: tuple[Any, ...]) -> tuple[Any, ...]:
        if not value:
            raise ValueError("at least one is needed")
        return value

    @field_validator("policies")
    @classmethod
    def _has_distinct_names(cls, value: tuple[PolicySettings, ...]) -> tuple[PolicySettings, ...]:
        names = [policy.row_name for policy in value]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)} named twice; give each a `label` of its own")
        return value


def read_settings(path: Path | None = None, **given: Any) -> RunSettings:
    """Settings from a TOML file, overridden by `given`; either may be left out.

    Raises:
        SettingsError: no such file, no TOML, a bad value, an unknown key (the known are named).
    """
    values = {} if path is None else _read(path)
    try:
        return RunSettings(**{**values, **given})
    except ValidationError as error:
        raise SettingsError(_explain(error, path, RunSettings)) from error


def read_policy(path: Path) -> ComposedPolicy:
    """A policy of a person's own from its TOML file. Raises SettingsError, as `read_settings`."""
    try:
        return ComposedPolicy(**_read(path))
    except ValidationError as error:
        raise SettingsError(_explain(error, path, ComposedPolicy)) from error


def _read(path: Path) -> dict[str, Any]:
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
    except ValueError as error:  # no TOML, no UTF-8, or a number of thousands of digits
        raise SettingsError(f"{path} is no TOML: {error}") from error


def _explain(error: ValidationError, path: Path | None, schema: type[BaseModel]) -> str:
    lines = []
    for problem in error.errors():
        where = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            known = f"; known: {', '.join(schema.model_fields)}" if "." not in where else ""
            lines.append(f"unknown setting {where!r}{known}")
        else:
            lines.append(f"{where}: {problem['msg']}, found {_shown(problem['input'])}")
    return f"{path}: " * (path is not None) + "; ".join(lines)


def _shown(value: object) -> str:
    text = "a very large number" if _is_huge(value) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _is_huge(value: object) -> bool:
    # Python refuses to write a number of more than 4,300 digits.
    return isinstance(value, int) and abs(value) > _LARGEST
