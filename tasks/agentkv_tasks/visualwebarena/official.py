"""Official tasks: their files, their sites and their numbers."""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from agentkv_tasks.task import Task, TaskError, read_tasks

FIRST = {"classifieds": 0, "reddit": 234, "shopping": 444}
"""First number of each site's tasks where the three files stand one after the other."""
_COUNTS = {"classifieds": 234, "reddit": 210, "shopping": 466}

_STATE = re.compile(r"(?:^|/)(\w+)_state\.json$")
_NUMBERED_ELSEWHERE = {"task_id", "image", "category"}
"""Fields that differ between upstream's files and their copy on PyPI, and our own."""


@dataclass(frozen=True, slots=True)
class OfficialTask:
    """A task, the site whose file it is in, and its number in that file.

    `task.task_id` is its number among the tasks of all sites.
    """

    site: str
    number: int
    task: Task

    @property
    def template(self) -> tuple[str, int]:
        """Site and template; templates are numbered per site."""
        return self.site, self.task.intent_template_id


def read_official(path: Path) -> list[OfficialTask]:
    """Read official tasks, in the order of their numbers.

    Args:
        path: a file of one site's tasks, numbered from 0, as upstream has three; one file of
            several sites' tasks, numbered throughout, as the copy on PyPI has; or a folder of
            such files.

    Raises:
        TaskError: a file is invalid, holds a task of another site, or names a task twice.
    """
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    found: dict[int, OfficialTask] = {}
    for file in files:
        tasks = read_tasks(file)
        sites = [_site_of(task, file) for task in tasks]
        is_numbered_throughout = len(set(sites)) > 1
        for site, task in zip(sites, tasks, strict=True):
            first = FIRST[site]
            number = task.task_id - first if is_numbered_throughout else task.task_id
            if not 0 <= number < _COUNTS[site]:
                raise TaskError(
                    f"{file}: task {task.task_id}: {site} has the numbers 0 to "
                    f"{_COUNTS[site] - 1}; give whole files of official tasks"
                )
            if first + number in found:
                raise TaskError(f"{file}: task {task.task_id}: another file has it too")
            numbered = task.model_copy(update={"task_id": first + number})
            found[first + number] = OfficialTask(site, number, numbered)
    if not found:
        raise TaskError(f"{path}: no tasks; expected VisualWebArena's test_*.raw.json")
    return [found[number] for number in sorted(found)]


def digest_of(official: Iterable[OfficialTask]) -> str:
    """Return the SHA-256 of what decides a score, which is the same for all copies of the tasks."""
    lines = [
        json.dumps(
            [
                each.site,
                each.number,
                each.task.model_dump(
                    mode="json", exclude=_NUMBERED_ELSEWHERE, exclude_defaults=True
                ),
            ],
            sort_keys=True,
            ensure_ascii=False,
        )
        for each in official
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _site_of(task: Task, file: Path) -> str:
    """Return the site whose file `task` belongs to. Its log-in tells: it may visit several."""
    found = _STATE.search(task.storage_state or "")
    site = found[1] if found else task.sites[0] if task.sites else ""
    if site not in FIRST:
        raise TaskError(
            f"{file}: task {task.task_id}: site '{site}' has no official tasks; expected one of "
            f"{', '.join(FIRST)}"
        )
    return site
