"""The `vwa75` suite: 75 tasks of our own on the embedded sites, in VisualWebArena's schema.

The paper that reports on 75 VisualWebArena tasks did not publish which tasks it used, so results on
this suite are comparable only with each other.
"""

from typing import TYPE_CHECKING

from agentkv_tasks.task import Category, Task
from agentkv_tasks.template import Template, Wording, suite
from agentkv_tasks.vwa75.form import TEMPLATES as FORM
from agentkv_tasks.vwa75.information import TEMPLATES as INFORMATION
from agentkv_tasks.vwa75.navigation import TEMPLATES as NAVIGATION
from agentkv_tasks.vwa75.shopping import TEMPLATES as SHOPPING

if TYPE_CHECKING:
    from agentkv_env.sites.world import World

QUOTAS = {"shopping": 19, "navigation": 19, "information": 19, "form": 18}

TEMPLATES: dict[Category, tuple[Template, ...]] = {
    "shopping": SHOPPING,
    "navigation": NAVIGATION,
    "information": INFORMATION,
    "form": FORM,
}


def tasks(world: "World", *, wording: Wording = "seen") -> list[Task]:
    """Return the suite for `world`: every world has the same templates with its own values."""
    return suite(world, TEMPLATES, wording=wording)
