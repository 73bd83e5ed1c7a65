"""Compiled functions whose cache on disk belongs to one state of all kernels.

Numba keeps compiled code on disk and looks at a function's own file to tell whether it is still
right. It does not look at the functions that it calls or at the constants that it imports, so that
after an update of this package, callers in unchanged files would go on with old code: they would
read layouts that no longer hold.
"""

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit


def compiled(
    *, fastmath: set[str] | None = None, nogil: bool = False
) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that compiles a function at its first call, in numpy's error model.

    Args:
        fastmath: liberties with floating-point arithmetic, as Numba names them; None: none.
        nogil: let other threads run during a call.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        own = njit(error_model="numpy", fastmath=fastmath or False, nogil=nogil, cache=True)(
            function
        )
        file = own._cache._cache_file
        file._source_stamp = (file._source_stamp, _digest_of_sources())
        return own

    return decorate


@cache
def _digest_of_sources() -> str:
    """Return a digest of all files that compiled code comes from."""
    found, package = hashlib.sha256(), Path(__file__).parents[1]
    for path in sorted([*package.glob("*.py"), *package.glob("numba/*.py")]):
        found.update(path.read_bytes())
    return found.hexdigest()
