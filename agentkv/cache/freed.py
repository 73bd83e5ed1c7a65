"""Memory that was freed, given back to the system.

What attention computes in is large and lives for a moment; the tables of a cache are small, live
long, and come to lie between. glibc gives back freed memory at the end of its heap only, so that a
process keeps most of what it ever computed in: more than its cache takes, and the more the more
layers it has.
"""

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

MANY = 32
"""Tokens of a forward from which on it pays: a decoded token computes in little (our choice)."""


def give_back() -> None:
    """Hand freed memory that the C library keeps for later back to the system, in well under a
    millisecond. Only glibc can; elsewhere nothing happens."""
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Callable[[int], Any] | None:
    if not sys.platform.startswith("linux"):
        return None
    found: Callable[[int], Any] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return found
