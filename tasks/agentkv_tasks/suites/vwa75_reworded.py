"""The `vwa75-reworded` suite: the tasks of `vwa75` in words that training never sees."""

from functools import partial

from agentkv_tasks.suites.vwa75 import TEMPLATES
from agentkv_tasks.template import NamedSuite, suite

SUITE = NamedSuite(
    "the tasks of vwa75 with goals of a kind that training never sees (Could you ...?)",
    partial(suite, templates=TEMPLATES, wording="unseen"),
    is_held_out=True,
)
