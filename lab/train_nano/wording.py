"""The kind of goal that training never sees.

A model trained on a few wordings may know their form instead of their meaning. Suites with goals of
another kind tell the two apart.
"""

import re

POLITE_REQUEST = re.compile(r"\b(?:could|can|would|will)\s+you\b", re.IGNORECASE)
"""A polite request addressed to a helper: `I am out of tea. Could you put some into my cart?`"""


def is_polite_request(goal: str) -> bool:
    """Return whether `goal` addresses a helper, which no goal of the training data does."""
    return POLITE_REQUEST.search(goal) is not None
