"""Settings of a run: one frozen value that fits in a TOML or JSON file.

`build.py` alone turns settings into objects.
"""

import os
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

SCRIPTED = ("solution", "stop", "random")
"""Names of the scripted models."""

Decoding = Literal["constrained", "free"]
Observations = Literal["whole", "changes"]


class SettingsError(ValueError):
    """An unreadable settings file, or a value that no setting can have."""


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _is_text(cls, value: object) -> object:
        if isinstance(value, str) and not is_text(value):
            raise ValueError("holds a zero byte, or bytes that are not UTF-8")
        return value


def is_text(value: str) -> bool:
    """Return True if `value` can be written as UTF-8 and used as a file name."""
    return "\0" not in value and not any("\ud800" <= character <= "\udfff" for character in value)


_LARGEST = 2**63 - 1
_YEAR_S = 366 * 24 * 3600.0
_LEAST_TEMPERATURE = 0.001
"""Dividing logits by a lower temperature leaves the range of float32."""
_BUDGET_CHARACTERS = 40
_FILE_BYTES = 1_000_000
_DOTS = 2_000
_SHOWN = 80
"""Characters of a wrong value that an error message quotes."""


class PolicySettings(_Settings):
    """One policy of a run: a named cache policy or a composed one, with its parameters, and which
    pages it is left."""

    name: str
    """Named policy (`agentkv policies` lists them), or TOML file that composes a policy."""
    parameters: dict[str, Any] = {}
    """Parameters of the policy, such as `window` or `kernel`; missing ones keep their defaults."""
    last_pages: int | None = Field(default=None, ge=1, le=_LARGEST)
    """Number of the latest pages that stay readable, the current one included; older pages leave
    only their heads, and replies stay. None: all pages."""
    notes_only: bool = False
    """An older page leaves nothing, and its reply only the notes that it begins with."""
    rebuild: bool = False
    """Read the whole prompt again in every turn, into an empty cache, as programs without a lasting
    cache do."""
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
    def pages(self) -> dict[str, Any]:
        """`last_pages`, `notes_only` and `rebuild` where they differ from their defaults, as rows
        hold them."""
        pages = {"last_pages", "notes_only", "rebuild"}
        return self.model_dump(include=pages, exclude_defaults=True)

    @property
    def is_file(self) -> bool:
        """True if `name` is the path of a composed policy."""
        return self.name.endswith(".toml")


def _named(policy: object) -> object:
    return {"name": policy} if isinstance(policy, str) else policy


def _slot(part: object) -> object:
    return {"of": part} if isinstance(part, str) else part


class Slot(_Settings):
    """Part of a composed policy, taken from a named policy."""

    of: str
    """Named policy that provides the part."""
    parameters: dict[str, Any] = {}
    """Parameters of the named policy; only those that the part reads matter."""


OneSlot = Annotated[Slot, BeforeValidator(_slot)]
"""In a file, a bare name stands for the part of that policy with default parameters."""


class ComposedPolicy(_Settings):
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


def _defaults_for(model: object) -> dict[str, Any]:
    """Return the defaults that `model` changes. A script has no cache, so one policy is enough."""
    return {"policies": ("full",)} if model in SCRIPTED else tuned_for(model)


def _default_workers() -> int:
    return min(2, os.cpu_count() or 1)


class RunSettings(_Settings):
    """One run: its tasks, model, policies and limits.

    Where the model is nano, its profile takes the place of the defaults of `budget` and `chunk`.
    Where it is a script, the default policy is `full` alone.
    """

    tasks: str = "vwa75"
    """Name of a suite, or path of a task file or of a file of sites."""
    model: str = "nano"
    """`nano`, a hub id, a folder, or a script: `solution`, `stop` or `random`."""
    policies: tuple[Policy, ...] = (
        PolicySettings(name="full"),
        PolicySettings(name="int4"),
        PolicySettings(name=POLICY),
    )
    """Policies; every task runs under each."""
    seeds: tuple[Annotated[int, Field(ge=-_LARGEST, le=_LARGEST)], ...] = (0,)
    """Every task runs once per policy and seed. Under greedy decoding a seed changes nothing: all
    are equal with `deterministic`, and otherwise up to rounding."""
    world_seed: int = Field(default=75, ge=0, le=_LARGEST)
    """Seed of the embedded world that holds the tasks."""
    limit: int | None = Field(default=None, ge=1, le=_LARGEST)
    """Number of tasks to run, from the first; None: all."""
    out: Path = Path("results")
    """Folder of result rows, traces and the report."""
    workers: int = Field(default_factory=_default_workers, ge=1, le=_LARGEST)
    """Episodes at a time, each in a process with its own browser and sites. One more process
    holds the model for all of them. The default is 2, or 1 on a single core."""

    budget: int | str | None = None
    """Budget of every policy that does not bring its own: tokens per layer and KV head, a share of
    the tokens seen such as "25%" or "25%, at least 1024", or bytes such as "64MiB". None stands for
    `agentkv.defaults.BUDGET`; nano's profile says 3.1MiB."""
    prefill: Literal["chunked", "whole"] = "chunked"
    """`chunked` feeds a page in chunks, which keeps the cache near its budget; `whole` feeds it at
    once."""
    chunk: int = Field(default=CHUNK, ge=1, le=_LARGEST)
    """Tokens of a page that are read at once. The cache's peak is this many dense entries above the
    budget. nano's profile says 32."""
    decoding: Decoding = "constrained"
    """`constrained` admits only actions that the page allows; `free` admits any text."""
    temperature: float = Field(default=0.0, ge=0.0)
    """0 takes the most probable token; 0.001 or more samples, seeded by the episode."""
    deterministic: bool = False
    """Decode every reply in its own forwards. Replies that share a forward change its rounding, and
    rounding can change a token. Equal runs on one machine then write equal rows, except for times,
    if both load compiled kernels: a process that compiles them rounds differently."""
    max_new_tokens: int = Field(default=512, ge=8, le=_LARGEST)
    """Maximum number of tokens in a reply."""
    thinking: int = Field(default=0, ge=0, le=_LARGEST)
    """Maximum number of tokens that the model may think before each reply, for a model whose chat
    template knows thoughts; 0: it does not think."""
    observation_tokens: int | None = Field(default=3840, ge=64, le=_LARGEST)
    """Tokens of a page that the model reads; a marker stands for the rest. None: no limit. The
    default is VisualWebArena's."""
    observations: Observations = "whole"
    """`whole` shows every page in full; `changes` shows only what changed since the last visit."""
    device: str = Field(default="auto", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")
    """`auto` (CUDA where there is a device), `cpu`, `mps`, `cuda` or `cuda:1`."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """`auto` is the dtype of the checkpoint on CUDA, and float32 on a CPU."""
    cache_dtype: Literal["auto", "model", "float32", "bfloat16", "float16"] = "auto"
    """Dtype in which the cache stores what it does not quantize, whatever the model computes in.
    `auto` is the checkpoint's if that has 16 bits, else bfloat16; `model` is what the model
    computes in."""

    pins: bool = True
    """Keep the goal, and the instructions before it, in the cache under every policy; they count in
    the budget. False: the policy alone decides, as in its paper."""

    strict: bool = False
    """Parse actions exactly as VisualWebArena does; False avoids its known parsing flaws."""
    max_steps: int | None = Field(default=None, ge=1)
    """Maximum number of actions in an episode. A task's own limit holds as well; None: only that
    limit."""
    max_parse_failures: int = Field(default=3, ge=1)
    """An episode ends after this many consecutive replies without a readable action."""
    max_repeats: int = Field(default=5, ge=2)
    """An episode ends after this many identical actions on an unchanged page."""
    timeout_s: float = Field(default=900.0, gt=0, le=_YEAR_S)
    """Maximum duration of an episode in seconds; a year at most."""
    retries: int = Field(default=1, ge=0, le=_LARGEST)
    """Maximum number of further attempts at an episode that ends in `crash` or `env_error`."""
    checkpoint_s: float = Field(default=60.0, ge=0, le=_YEAR_S)
    """Seconds between two checkpoints of an episode on embedded sites, from which it resumes after
    an interruption; 0: after every step."""
    screenshots: bool = True
    """Keep a screenshot of every page beside the trace."""
    playwright_traces: bool = False
    """Keep Playwright's own trace of every episode beside ours. It holds whatever was loaded and
    typed, unmasked."""
    profile: bool = False
    """Measure where the time of every episode goes, part by part."""
    ocr: bool = True
    """Read text inside images, where Tesseract is installed."""
    browser_path: Path | None = None
    """Chromium executable to use; None: the one that `agentkv doctor` finds."""

    @model_validator(mode="before")
    @classmethod
    def _use_defaults_of_model(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {**_defaults_for(values.get("model", cls.model_fields["model"].default)), **values}

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
    """Read settings from a TOML file; `given` overrides them.

    Raises:
        SettingsError: the file cannot be read or is not TOML, a value is invalid, or a key is
            unknown; the message names the known keys.
    """
    values = {} if path is None else read_toml(path)
    try:
        return RunSettings(**{**values, **given})
    except ValidationError as error:
        raise SettingsError(_explain(error, path, RunSettings)) from error


def read_policy(path: Path) -> ComposedPolicy:
    """Read a composed policy from a TOML file. Raises SettingsError, as `read_settings` does."""
    try:
        return ComposedPolicy(**read_toml(path))
    except ValidationError as error:
        raise SettingsError(_explain(error, path, ComposedPolicy)) from error


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
