"""The `vwa75` suite: 75 tasks of our own on the embedded sites, in VisualWebArena's schema.

The paper that reports on 75 VisualWebArena tasks did not publish which tasks it used, so results on
this suite are comparable only with each other.
"""

from functools import partial

from agentkv_tasks.template import NamedSuite, Templates, suite
from agentkv_tasks.vwa75 import form, information, navigation, shopping

TEMPLATES: Templates = {
    "shopping": shopping.TEMPLATES,
    "navigation": navigation.TEMPLATES,
    "information": information.TEMPLATES,
    "form": form.TEMPLATES,
}

SUITE = NamedSuite(
    "75 tasks on the embedded world: shopping 19, navigation 19, information 19, form 18",
    partial(suite, templates=TEMPLATES),
)
