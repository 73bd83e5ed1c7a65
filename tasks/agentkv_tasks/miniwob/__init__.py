"""The `miniwob` suite: the pages of MiniWoB++ that our actions can solve, each with two seeds.

The pages come from the package `miniwob` and are not part of ours. The instruction on the page is
the task's goal, and the page's own reward, before any discount for time, is its score.
"""

from collections.abc import Iterable

from agentkv_env.sites.miniwob import SITE, find_pages
from agentkv_tasks.miniwob.pages import LONG, SCORED
from agentkv_tasks.miniwob.script import Play
from agentkv_tasks.miniwob.scripts import SCRIPTS
from agentkv_tasks.task import MAX_STEPS, Task, Viewport
from agentkv_tasks.template import shows

NUM_INSTANCES = 2
"""Tasks per page."""
VIEWPORT = Viewport(width=320, height=240)
"""A page is 160 pixels wide and 210 high; lists that open may be wider. In a window much larger, a
page's own scrolling area would be too small to count as what scrolls."""

_INSTRUCTION = "#query"
_START = f"{SITE.placeholder}/task/"


def tasks(
    seed: int, *, pages: Iterable[str] = SCORED, num_instances: int = NUM_INSTANCES
) -> list[Task]:
    """Return the tasks of the world `seed`: `num_instances` of each page.

    The seed of a page's content is made of the world's seed and the number of the instance, so
    two worlds share no seed. Small pages have few contents, and worlds may share those.

    Raises:
        MiniwobMissing: the package `miniwob` is not installed; the message says what to do.
    """
    find_pages()
    return [
        _task(page, f"{seed}-{instance}", number * num_instances + instance, number)
        for number, page in enumerate(pages)
        for instance in range(num_instances)
    ]


def script_for(task: Task) -> Play | None:
    """Return the script that plays `task`, or None if there is none."""
    page = task.start_url.removeprefix(_START).partition("?")[0]
    return SCRIPTS.get(page) if task.start_url.startswith(_START) else None


def _task(page: str, seed: str, task_id: int, template_id: int) -> Task:
    path = f"/task/{page}?seed={seed}"
    # The agent may end on any page of the site, so the address counts as well.
    reward = (
        f"lambda:() => location.pathname + location.search === '{path}'"
        " && WOB_DONE_GLOBAL && WOB_RAW_REWARD_GLOBAL > 0 ? 'solved' : 'unsolved'"
    )
    return Task(
        sites=(SITE.name,),
        task_id=task_id,
        start_url=SITE.placeholder + path,
        intent_template="MiniWoB++ {{page}}, seed {{seed}}",
        intent_template_id=template_id,
        instantiation_dict={"page": page, "seed": seed},
        intent=f"MiniWoB++ {page}, seed {seed}",
        intent_element=_INSTRUCTION,
        viewport_size=VIEWPORT,
        eval=shows("last", reward, exact_match="solved"),
        max_steps=LONG.get(page, MAX_STEPS),
    )
