"""The `miniwob` suite: the pages of MiniWoB++ that our actions can solve."""

from agentkv_env.sites.world import World
from agentkv_tasks import miniwob
from agentkv_tasks.task import Task
from agentkv_tasks.template import NamedSuite


def _tasks(world: World) -> list[Task]:
    return miniwob.tasks(world.seed)


SUITE = NamedSuite(
    "70 pages of MiniWoB++ with two seeds each; needs the package miniwob",
    _tasks,
    has_solutions=False,
)
