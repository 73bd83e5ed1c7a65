"""The `vwa-unseen` suite: 25 tasks whose flows occur in no other suite, so none was trained on.

They use the same sites and the same kinds of action as `vwa75`. An agent that has learned to act
solves some of them; one that has learned the flows by heart solves none.
"""

from functools import partial

from agentkv_tasks.template import NamedSuite, Templates, suite
from agentkv_tasks.vwa_unseen import form, information, navigation, shopping

TEMPLATES: Templates = {
    "shopping": shopping.TEMPLATES,
    "navigation": navigation.TEMPLATES,
    "information": information.TEMPLATES,
    "form": form.TEMPLATES,
}

SUITE = NamedSuite(
    "25 tasks of 3 to 9 steps on the embedded world: flows that no other suite has",
    partial(suite, templates=TEMPLATES),
    is_held_out=True,
)
