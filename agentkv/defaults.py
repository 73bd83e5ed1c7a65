"""Defaults that do not depend on the model; what was tuned for nano is in its profile.

All three are our choice. A quarter of the context is what the recorded comparisons gave the
policies beside a full cache; the floor keeps short prompts whole.
"""

POLICY = "conf-kv-int8"
"""Cache policy."""

BUDGET_SHARE = 0.25
"""Share of the tokens seen that a cache may keep, for a policy that needs a budget and got none."""

BUDGET_FLOOR = 1024
"""Tokens that this budget allows at least."""

CHUNK = 512
"""Tokens of an input that are read at once."""
