"""Return of freed memory to the system.

Attention's work space is large and short-lived; the tables of a cache are small, long-lived, and
end up in between. glibc returns freed memory only from the end of its heap, so that a process would
keep most of what it ever used: more with every layer.
"""

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

MIN_TOKENS = 32
"""Tokens from which on a forward needs enough memory to make this worth a call (our choice)."""


def trim_heap() -> None:
    """Return the C library's free memory to the system, in well under a millisecond.

    Only glibc can; elsewhere nothing happens.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], Any] | None:
    if not sys.platform.startswith("linux"):
        return None
    found: Callable[[int], Any] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return found
