"""The `vwa-horizon` suite: the tasks of vwa75 and vwa-long, ordered by how much they see.

Success over the position in this suite shows how far a policy carries.
"""

from agentkv_env.sites.world import World
from agentkv_tasks import measured
from agentkv_tasks.suites import vwa75, vwa_long
from agentkv_tasks.task import Task
from agentkv_tasks.template import NamedSuite


def _tasks(world: World) -> list[Task]:
    """Return the tasks for `world`, the one whose solution sees the fewest tokens first.

    The order is that of the committed measurements, so a number stands for the same template in
    every world.
    """
    short, long = vwa75.SUITE.tasks(world), vwa_long.SUITE.tasks(world)
    num_templates = 1 + max(task.intent_template_id for task in short)
    tokens = {"vwa75": measured.read("vwa75"), "vwa-long": measured.read("vwa-long")}
    sized = [(tokens["vwa75"][task.task_id].tokens, task) for task in short]
    sized += [
        (
            tokens["vwa-long"][task.task_id].tokens,
            task.model_copy(update={"intent_template_id": task.intent_template_id + num_templates}),
        )
        for task in long
    ]
    sized.sort(key=lambda pair: pair[0])
    return [task.model_copy(update={"task_id": number}) for number, (_, task) in enumerate(sized)]


SUITE = NamedSuite(
    "the 135 tasks of vwa75 and vwa-long, from the one that sees the least to the most", _tasks
)
