"""Names that a user may have meant."""

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `did you mean 'lookback'? ` if a known name is close to `name`, else nothing."""
    by_lower = {each.lower(): each for each in islice(known, _MOST)}
    near = get_close_matches(name[:_LONGEST].lower(), by_lower, 1)
    return f"did you mean {by_lower[near[0]]!r}? " if near else ""


_LONGEST, _MOST = 100, 2000
"""Characters and names that are compared, which takes milliseconds."""
