"""Compiled functions, and their cache on disk.

The cache belongs to one state of all kernels. Numba looks at a function's own file to tell whether
compiled code is still right. It does not look at the functions that it calls or at the constants
that it imports, so that after an update of this package, callers in unchanged files would go on
with old code: they would read layouts that no longer hold.

Compiling all of it takes a minute, which `telling_of_compilation` announces.

No thread compiles while the process ends. LLVM's global state is destroyed then, and a daemon
thread that still compiled would crash the process.
"""

import atexit
import contextlib
import hashlib
import pickle
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit, types
from numba.core.caching import IndexDataCacheFile
from numba.core.compiler_lock import global_compiler_lock


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
        theirs = own._cache._cache_file
        stamp = (theirs._source_stamp, _digest_of_sources())
        base = own._cache._impl.filename_base
        own._cache._cache_file = FilePerSignature(theirs._cache_path, base, stamp)
        return own

    return decorate


def address_of(function: Any) -> int:
    """Return the address of a function of one int64, compiled if need be, for `addresses.call`."""
    function.compile((types.int64,))
    (found,) = function.overloads.values()
    return int(found.library.get_pointer_to_function(found.fndesc.llvm_func_name))


class FilePerSignature(IndexDataCacheFile):  # type: ignore[misc]  # Numba has no types
    """Compiled code of one function on disk, in a file for each signature.

    Numba's own class keeps an index for each function. Two processes that compile a function for
    two signatures at once may both choose the same file, and then one's code is found under the
    other's signature.
    """

    def save(self, key: Any, data: Any) -> None:
        """Write what was compiled for a key, in place of what was there."""
        with self._open_for_write(self._path_of(key)) as file:
            for each in (self._version, (self._source_stamp, key), data):
                file.write(self._dump(each))
        _tell(is_over=True)

    def load(self, key: Any) -> Any:
        """Return what was compiled for a key from the present sources, or None.

        After None, Numba compiles it.
        """
        found = self._read(key)
        if found is None:
            _tell(is_over=False)
        return found

    def _read(self, key: Any) -> Any:
        try:
            with open(self._path_of(key), "rb") as file:
                # another version's classes may not be here, so its file is not read on
                if pickle.load(file) != self._version:
                    return None
                return pickle.load(file) if pickle.load(file) == (self._source_stamp, key) else None
        except (OSError, EOFError, pickle.UnpicklingError):
            return None  # absent, or cut short when the machine stopped

    def _path_of(self, key: Any) -> str:
        name = hashlib.sha256(repr(key).encode()).hexdigest()[:16]
        return f"{self._index_path.removesuffix('.nbi')}.{name}.nbc"


_listeners: list[Callable[[bool], None]] = []


@contextlib.contextmanager
def telling_of_compilation(listener: Callable[[bool], None]) -> Iterator[None]:
    """Tell `listener` of every function of this process that is compiled while the block runs.

    It is called with False before a function is compiled that the disk does not hold, and with True
    once the compiled code is on disk, in the thread that compiles. A function that calls others
    encloses them.
    """
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def _tell(*, is_over: bool) -> None:
    for listener in list(_listeners):
        listener(is_over)


@atexit.register
def _stop_compiling() -> None:
    """Wait for the thread that compiles, if there is one, and let no other thread begin."""
    while True:
        try:
            global_compiler_lock.acquire()
            return
        except KeyboardInterrupt:  # to end now would crash
            continue


@cache
def _digest_of_sources() -> str:
    """Return a digest of all files that compiled code comes from."""
    found, package = hashlib.sha256(), Path(__file__).parents[1]
    for path in sorted([*package.glob("*.py"), *package.glob("numba/*.py")]):
        found.update(path.read_bytes())
    return found.hexdigest()
