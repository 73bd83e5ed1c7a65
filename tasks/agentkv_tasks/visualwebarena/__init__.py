"""The official tasks of VisualWebArena, read from a file of the user's, and suites drawn from them.

They are played on VisualWebArena's own sites, which run elsewhere. `sites.toml` takes their
addresses and passwords from environment variables.
"""

from collections.abc import Sequence
from pathlib import Path

from agentkv_tasks.own_sites.site_file import SiteFile, read_site_file
from agentkv_tasks.task import Task
from agentkv_tasks.visualwebarena.classify import classify
from agentkv_tasks.visualwebarena.draws import select
from agentkv_tasks.visualwebarena.official import read_official

SUITES = {
    "visualwebarena": "all official tasks of FILE",
    "vwa75-live": "75 of them, of four categories, that are text alone and scored without a model",
    "vwa541": "all 541 of them that are text alone and scored without a model",
}
"""Suites that a file of official tasks gives, written as `visualwebarena:FILE`."""
SITES = ("classifieds", "reddit", "shopping", "wikipedia", "homepage")


def tasks(name: str, path: Path) -> list[Task]:
    """Return the tasks of a suite in `SUITES`, each with its category.

    Args:
        path: file or folder of official tasks; see `read_official`.

    Raises:
        TaskError: a file is invalid, or its tasks are not those that the suite was drawn from.
    """
    official = read_official(path)
    categories = classify(official)
    if name != "visualwebarena":
        official = select(official, name, source=f"{name}:{path}")
    return [
        each.task.model_copy(update={"category": categories[each.task.task_id]})
        for each in official
    ]


def sites_of(tasks: Sequence[Task]) -> SiteFile:
    """Return the sites that `tasks` need, with addresses from the environment.

    Raises:
        SiteFileError: a ValueError; an environment variable is not set.
    """
    used = "\n".join(task.model_dump_json(include={"start_url", "eval"}) for task in tasks)
    only = [
        site
        for site in SITES
        if f"__{site.upper()}__" in used or any(site in task.sites for task in tasks)
    ]
    return read_site_file(Path(__file__).with_name("sites.toml"), only=only)
