"""The `vwa-long` suite: 15 tasks of 25 to 60 steps, longer than any attention window.

The last pages need facts read on the first ones. The goal lists what to look at, in order; pages
show each fact behind a key.
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
    """Return the suite for `world`: every world has the same templates with its own values."""
    return suite(world, _TEMPLATES)
