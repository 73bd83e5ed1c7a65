"""Named suites, one a module, and suites from task files in VisualWebArena's schema."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from agentkv.nearest import did_you_mean
from agentkv_env.sites.world import World
from agentkv_tasks import visualwebarena
from agentkv_tasks.evaluate.pages import check_calls
from agentkv_tasks.own_sites.site_file import SiteFile, read_site_file
from agentkv_tasks.task import Task, TaskError, read_tasks
from agentkv_tasks.template import NamedSuite


class SuiteError(ValueError):
    """An unknown suite or file, or a file without tasks."""


def _find() -> Mapping[str, NamedSuite]:
    """Read the declaration `SUITE` of every module here; the module's name is the suite's."""
    return {
        module.name.replace("_", "-"): import_module(f"{__name__}.{module.name}").SUITE
        for module in iter_modules(__path__)
    }


SUITES = _find()
"""The suites that the modules of this package declare, in the order of their names."""


@dataclass(frozen=True, slots=True)
class Suite:
    """The tasks of a run and their identity."""

    name: str
    world_seed: int
    tasks: tuple[Task, ...]
    digest: str
    """First 16 digits of the SHA-256 of all tasks."""
    sites: SiteFile | None = None
    """Sites of the user's own, on which the tasks are played; None for tasks on other sites."""


def load_suite(name: str, *, world_seed: int) -> Suite:
    """Load a named suite, a JSON file, a folder of JSON files, the tasks of a file of sites, or
    official tasks of VisualWebArena, such as `visualwebarena:FILE`.

    Raises:
        SuiteError: `name` is neither a suite nor a path; the message lists the suites.
        TaskError: a file is invalid; the message names file, task and field.
        SiteFileError: a ValueError; a file of sites is invalid.
    """
    sites = _site_file(name)
    tasks, label = load_tasks(name, world_seed=world_seed)
    if is_official(name):
        sites = visualwebarena.sites_of(tasks)
    for task in tasks:
        check_calls(task)
    digest = hashlib.sha256("\n".join(task.model_dump_json() for task in tasks).encode())
    return Suite(label, world_seed, tuple(tasks), digest.hexdigest()[:16], sites)


def load_tasks(name: str, *, world_seed: int) -> tuple[list[Task], str]:
    """Return the tasks of a suite and its name, as `load_suite` does, wherever its sites are.

    Raises:
        SuiteError, TaskError, SiteFileError: ValueErrors; see `load_suite`.
    """
    if name in SUITES:
        return SUITES[name].tasks(World(world_seed)), name
    sites = _site_file(name)
    if sites is None:
        return read_task_source(name, Path())
    tasks, _ = read_task_source(sites.tasks, sites.folder)
    return tasks, sites.path.stem


def _site_file(name: str) -> SiteFile | None:
    path = Path(name)
    return read_site_file(path) if path.suffix == ".toml" and path.exists() else None


def is_official(written: str) -> bool:
    """Return whether a name is that of official tasks, such as `visualwebarena:FILE`."""
    name, colon, _ = written.partition(":")
    return bool(colon) and name in visualwebarena.SUITES


def read_task_source(written: str, folder: Path) -> tuple[list[Task], str]:
    """Return the tasks of a file, a folder, or a suite of official tasks, and the suite's name.

    Args:
        written: a path, or `NAME:PATH` with a suite of `visualwebarena.SUITES`.
        folder: where paths begin.

    Raises:
        SuiteError: there is no such path, or no task in it.
        TaskError: a file is invalid.
    """
    name, _, rest = written.partition(":")
    has_official = is_official(written)
    path = folder / (rest if has_official else written)
    if not path.exists():
        known = [*sorted(SUITES), *(f"{suite}:FILE" for suite in visualwebarena.SUITES)]
        raise SuiteError(
            f"unknown suite or file '{written}'; {did_you_mean(written, known)}"
            f"suites: {', '.join(known)}; "
            "or give a JSON file, a folder of JSON files, or a TOML file of sites"
        )
    if has_official:
        return visualwebarena.tasks(name, path), name
    return read_task_files(path), path.stem


def read_task_files(path: Path) -> list[Task]:
    """Read the tasks of a JSON file, or of all JSON files of a folder.

    Raises:
        SuiteError: there are no tasks.
        TaskError: a file is invalid, or a `task_id` occurs twice.
    """
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    tasks: dict[int, Task] = {}
    for file in files:
        for task in read_tasks(file):
            if task.task_id in tasks:
                raise TaskError(f"{file}: task {task.task_id}: another file has this task_id too")
            tasks[task.task_id] = task
    if not tasks:
        raise SuiteError(f"{path}: no tasks found; expected JSON in VisualWebArena's schema")
    return list(tasks.values())
