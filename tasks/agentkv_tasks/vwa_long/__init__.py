"""The suite `vwa-long`: 15 tasks of 25 to 60 steps, made to outgrow any window.

What is read on the first pages is written on the last ones. The goal names what to look at, in
order; the facts stand behind keys on pages.
"""

from typing import TYPE_CHECKING

from agentkv_tasks.task import Category, Task
from agentkv_tasks.template import Template, suite
from agentkv_tasks.vwa_long.form import TEMPLATES as FORM
from agentkv_tasks.vwa_long.information import TEMPLATES as INFORMATION
from agentkv_tasks.vwa_long.navigation import TEMPLATES as NAVIGATION
from agentkv_tasks.vwa_long.shopping import TEMPLATES as SHOPPING

if TYPE_CHECKING:
    from agentkv_env.sites.world import World

QUOTAS = {"shopping": 4, "navigation": 3, "information": 4, "form": 4}

_TEMPLATES: dict[Category, tuple[Template, ...]] = {
    "shopping": SHOPPING,
    "navigation": NAVIGATION,
    "information": INFORMATION,
    "form": FORM,
}


def tasks(world: "World") -> list[Task]:
    """The suite in `world`: the same templates in every world, other names and values in each."""
    return suite(world, _TEMPLATES)
