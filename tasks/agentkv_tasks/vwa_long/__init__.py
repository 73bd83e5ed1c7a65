"""The `vwa-long` suite: 60 tasks of 26 to 56 steps, longer than any attention window.

Most tasks are a round of errands whose end needs one or two facts from its beginning; some need
many. A fact may stand on the first page, which the goal does not name, or be a value that the
errands change. In some tasks, a rule that the goal states once decides every errand.
"""

from typing import TYPE_CHECKING

from agentkv_tasks.task import Category, Task
from agentkv_tasks.template import Template, Wording, suite
from agentkv_tasks.vwa_long.form import TEMPLATES as FORM
from agentkv_tasks.vwa_long.information import TEMPLATES as INFORMATION
from agentkv_tasks.vwa_long.navigation import TEMPLATES as NAVIGATION
from agentkv_tasks.vwa_long.shopping import TEMPLATES as SHOPPING

if TYPE_CHECKING:
    from agentkv_env.sites.world import World

QUOTAS = {"shopping": 15, "navigation": 15, "information": 15, "form": 15}

TEMPLATES: dict[Category, tuple[Template, ...]] = {
    "shopping": SHOPPING,
    "navigation": NAVIGATION,
    "information": INFORMATION,
    "form": FORM,
}


def tasks(world: "World", *, wording: Wording = "seen") -> list[Task]:
    """Return the suite for `world`: every world has the same templates with its own values."""
    return suite(world, TEMPLATES, wording=wording)
