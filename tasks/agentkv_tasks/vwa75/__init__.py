"""The suite `vwa75`: 75 tasks of our own on the embedded world, in VisualWebArena's schema.

It is *a* vwa75. The paper that reports on 75 VisualWebArena tasks never published which ones, so
results on this suite are to be compared with each other and with nothing else.
"""

from typing import TYPE_CHECKING

from agentkv_tasks.task import Category, Task
from agentkv_tasks.template import Template, suite
from agentkv_tasks.vwa75.form import TEMPLATES as FORM
from agentkv_tasks.vwa75.information import TEMPLATES as INFORMATION
from agentkv_tasks.vwa75.navigation import TEMPLATES as NAVIGATION
from agentkv_tasks.vwa75.shopping import TEMPLATES as SHOPPING

if TYPE_CHECKING:
    from agentkv_env.sites.world import World

QUOTAS = {"shopping": 19, "navigation": 19, "information": 19, "form": 18}

_TEMPLATES: dict[Category, tuple[Template, ...]] = {
    "shopping": SHOPPING,
    "navigation": NAVIGATION,
    "information": INFORMATION,
    "form": FORM,
}


def tasks(world: "World") -> list[Task]:
    """The suite in `world`: the same templates in every world, other names and values in each."""
    return suite(world, _TEMPLATES)
