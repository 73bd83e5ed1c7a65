"""Defaults that do not depend on the model. All are our choice.

What was tuned for nano is in `models/nano/profile.toml` and holds for nano alone.
"""

POLICY = "lookback-int8"
"""Cache policy."""

BUDGET = "25%, at least 1024"
"""Tokens that a cache keeps per layer and KV head where a policy needs a budget and got none. A
quarter is the share that the recorded comparisons gave the policies; short prompts stay whole."""

CHUNK = 512
"""Tokens of an input that are read at once."""
