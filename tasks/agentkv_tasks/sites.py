"""The sites that the tasks of a run are played on."""

from collections.abc import Iterable
from typing import Any

from agentkv_env.sites.miniwob import SITE as MINIWOB
from agentkv_env.sites.registry import SITES
from agentkv_env.sites.site import Site
from agentkv_tasks.task import Task


def sites_for(tasks: Iterable[Task]) -> tuple[Site[Any], ...]:
    """Return the sites that serve `tasks`.

    These are the embedded sites, or MiniWoB++'s pages alone if every task starts on one.
    """
    only_miniwob = all(task.start_url.startswith(MINIWOB.placeholder) for task in tasks)
    return (MINIWOB,) if only_miniwob else SITES
