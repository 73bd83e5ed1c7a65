"""Settings of a run on tasks."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from agentkv.settings import LARGEST, YEAR_S, ActingSettings, Flag, PoliciesSettings
from agentkv_env.hosts import is_web_address

T = TypeVar("T")

Scoring = Literal["compat", "mended"]
"""How strings are compared: as VisualWebArena does, or with its known flaws fixed."""

Executor = Literal["local", "ray"]
"""Where episodes are played: on this machine, or on the nodes of a Ray cluster."""

JUDGE_KEY = "AGENTKV_JUDGE_KEY"
"""Environment variable with the API key of the judge."""


def _default_workers() -> int:
    return min(2, os.cpu_count() or 1)


class RunSettings(PoliciesSettings, ActingSettings):
    """One run: its tasks, model, policies and limits."""

    UNRECORDED: ClassVar = (
        *(
            "tasks",
            "world_seed",
            "model",
            "device",
            "weights",
            "policies",
            "budget",
            "seeds",
        ),  # rows name them
        *("every", "limit", "out", "workers", "executor", "ray_address"),
        *("browser_path", "allow_unreset"),
        *("step_timeout_s", "retries", "checkpoint_s", "judge_model"),
        *("screenshots", "playwright_traces", "profile"),
    )
    """Settings without an effect on what an episode does, or which rows name elsewhere."""

    tasks: str = "vwa75"
    """Suite (see `agentkv tasks`), JSON file in VisualWebArena's schema, TOML file of sites and
    tasks of your own (see `agentkv tasks new`), or VisualWebArena's own tasks
    (`vwa75-live:FILE`)."""
    seeds: tuple[Annotated[int, Field(ge=-LARGEST, le=LARGEST)], ...] = (0,)
    """Every task runs once per policy and seed. Under greedy decoding a seed changes nothing: all
    are equal with `deterministic`, and otherwise up to rounding."""
    world_seed: int = Field(default=75, ge=0, le=LARGEST)
    """Seed of the embedded world that holds the tasks."""
    every: int = Field(default=1, ge=1, le=LARGEST)
    """Run one task in so many, from the first: 3 runs every third, a sample all over the suite."""
    limit: int | None = Field(default=None, ge=1, le=LARGEST)
    """Maximum number of tasks to run, from the first."""
    out: Path = Path("runs")
    """Folder of result rows, traces and the report. The default is below `runs`."""
    workers: int = Field(default_factory=_default_workers, ge=1, le=LARGEST)
    """Episodes at a time, each in a process with its own browser and sites. One more process holds
    the model and decodes all of them in one batch. With `executor` ray, every node of the cluster
    plays this many, or every GPU of a node. The default is 2, or 1 on a single core."""
    executor: Executor = "local"
    """`local`: this machine plays all episodes; `ray`: the nodes of a Ray cluster share them. Rows,
    traces and report stay here."""
    ray_address: str | None = None
    """Ray cluster for `executor` ray, as host:port; auto: the one that runs on this machine. The
    default is the variable RAY_ADDRESS, or auto."""

    deterministic: Annotated[bool, Flag("--deterministic/--shared")] = False
    """Decode every reply in its own forwards; slower. Replies that share a forward change its
    rounding, and rounding can change a token. Equal runs on one machine then write equal rows,
    except for times, if both load compiled kernels: a process that compiles them rounds
    differently."""
    max_steps: int | None = Field(default=None, ge=1)
    """Maximum number of actions in an episode. A task's own limit, 30 or 100, holds as well."""
    timeout_s: float = Field(default=900.0, gt=0, le=YEAR_S)
    """Maximum seconds of an episode; a year at most."""
    step_timeout_s: float = Field(default=300.0, gt=0, le=YEAR_S)
    """Seconds without a step after which the worker is killed."""
    retries: int = Field(default=1, ge=0, le=LARGEST)
    """Maximum number of further attempts at an episode that ends in a crash or a lost browser, page
    or site."""
    checkpoint_s: float = Field(default=60.0, ge=0, le=YEAR_S)
    """Seconds between two checkpoints of an episode on embedded sites, from which it resumes after
    an interruption; 0: after every step."""
    allow_unreset: bool = False
    """Play each task several times although nothing resets a site in between, so that later
    policies find what earlier ones left. Every table then carries a warning."""

    sites: dict[str, str] = {}
    """Address of a site that runs elsewhere: SHOPPING=http://host:7770."""
    scoring: Scoring = "compat"
    """`compat`: as VisualWebArena scores; `mended`: with its known flaws fixed."""
    judge: str | None = None
    """Address of a chat model that scores what texts cannot decide, such as
    http://127.0.0.1:8000/v1. Its key, if it has one, is in AGENTKV_JUDGE_KEY."""
    judge_model: str | None = None
    """Name of the model at `judge`."""

    ocr: bool = True
    """Read text in images, where Tesseract is installed."""
    browser_path: Path | None = None
    """Chromium executable. The default is the one that `agentkv doctor` finds."""
    screenshots: bool = True
    """Keep a screenshot of every page beside the trace."""
    playwright_traces: bool = False
    """Keep Playwright's own trace of every episode, for `playwright show-trace`. It holds whatever
    was loaded and typed, unmasked, so a run with accounts or secrets refuses it."""
    profile: bool = False
    """Measure where the time of every episode goes, part by part."""

    @field_validator("seeds")
    @classmethod
    def _is_not_empty(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value:
            raise ValueError("at least one is needed")
        return tuple(dict.fromkeys(value))

    @field_validator("sites")
    @classmethod
    def _have_addresses(cls, value: dict[str, str]) -> dict[str, str]:
        sites = {}
        for name, url in value.items():
            is_plain = re.fullmatch(r"[^\s\"\\<>]+", url)
            if not re.fullmatch("_*[A-Za-z]+_*", name) or not is_plain or not is_web_address(url):
                raise ValueError("expected NAME=http://host, such as SHOPPING=http://host:7770")
            sites[f"__{name.strip('_').upper()}__"] = url.rstrip("/")
        return sites

    @field_validator("judge")
    @classmethod
    def _has_no_key(cls, value: str | None) -> str | None:
        if value is not None and not is_web_address(value):
            raise ValueError("expected an address such as http://host:8000/v1")
        if value is not None and "@" in urlsplit(value).netloc:
            raise ValueError(f"put the key of the judge into {JUDGE_KEY}, not the address")
        return value

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if (self.judge is None) != (self.judge_model is None):
            raise ValueError("judge is an address and judge_model the name there; give both")
        if self.ray_address is not None and self.executor != "ray":
            raise ValueError("ray_address needs executor ray")
        return self

    def with_folder(self) -> Self:
        """Return these settings; where none was chosen, `out` follows from tasks, world and
        model."""
        if "out" in self.model_fields_set:
            return self
        return self.model_copy(
            update={"out": default_out(Path(self.tasks).stem, self.world_seed, self.model)}
        )

    def selected(self, tasks: Sequence[T]) -> Sequence[T]:
        """Return those tasks of a suite that are run."""
        return tasks[:: self.every][: self.limit]

    @property
    def in_rows(self) -> dict[str, Any]:
        """The settings that every row records, because they affect what episodes do."""
        return self.model_dump(exclude=set(self.UNRECORDED))


def default_out(what: str, world_seed: int, model: str) -> Path:
    """Return the folder or file, without a suffix, of results that were given no --out."""
    suffix = "" if model == "nano" else "-" + Path(model).name
    return Path("runs") / f"{what}-{world_seed}{suffix}"
