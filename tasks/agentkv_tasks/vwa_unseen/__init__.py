"""The `vwa-unseen` suite: 25 tasks whose flows occur in no other suite, so none was trained on.

They use the same sites and the same kinds of action as `vwa75`. An agent that has learned to act
solves some of them; one that has learned the flows by heart solves none.
"""

from typing import TYPE_CHECKING

from agentkv_tasks.task import Category, Task
from agentkv_tasks.template import Template, suite
from agentkv_tasks.vwa_unseen.form import TEMPLATES as FORM
from agentkv_tasks.vwa_unseen.information import TEMPLATES as INFORMATION
from agentkv_tasks.vwa_unseen.navigation import TEMPLATES as NAVIGATION
from agentkv_tasks.vwa_unseen.shopping import TEMPLATES as SHOPPING

if TYPE_CHECKING:
    from agentkv_env.sites.world import World

QUOTAS = {"shopping": 7, "navigation": 6, "information": 6, "form": 6}

TEMPLATES: dict[Category, tuple[Template, ...]] = {
    "shopping": SHOPPING,
    "navigation": NAVIGATION,
    "information": INFORMATION,
    "form": FORM,
}


def tasks(world: "World") -> list[Task]:
    """Return the suite for `world`: every world has the same templates with its own values."""
    return suite(world, TEMPLATES)
