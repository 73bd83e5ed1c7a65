"""The `vwa-long` suite: 60 tasks of 26 to 56 steps, longer than any attention window.

Most tasks are a round of errands whose end needs one or two facts from its beginning; some need
many. A fact may stand on the first page, which the goal does not name, or be a value that the
errands change. In some tasks, a rule that the goal states once decides every errand.
"""

from functools import partial

from agentkv_tasks.template import NamedSuite, Templates, suite
from agentkv_tasks.vwa_long import form, information, navigation, shopping

TEMPLATES: Templates = {
    "shopping": shopping.TEMPLATES,
    "navigation": navigation.TEMPLATES,
    "information": information.TEMPLATES,
    "form": form.TEMPLATES,
}

SUITE = NamedSuite(
    "60 tasks of 26 to 56 steps on the embedded world: the end needs the start",
    # a solution has at most 60 steps, so that 40 are to spare
    partial(suite, templates=TEMPLATES, max_steps=100),
)
