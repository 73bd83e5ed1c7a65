"""The files that a user allows an agent to upload."""

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from agentkv_env.errors import ActionFailed

MAX_NAMES = 40
"""Maximum number of files that the model is told of."""


class Uploads:
    """Files and folders named by the user; no other file is ever read.

    Args:
        allowed: paths of files, and of folders whose files are all allowed. Files that are put into
            a folder later are allowed as well. Links must not lead out of a folder.

    Raises:
        ValueError: a path does not exist.
    """

    def __init__(self, allowed: Iterable[str | Path] = ()) -> None:
        self._roots = tuple(Path(each).expanduser().resolve() for each in allowed)
        for root in self._roots:
            if not root.exists():
                raise ValueError(f"{root} does not exist; name files or folders to upload from")

    def names(self) -> tuple[str, ...]:
        """Return the names of the first `MAX_NAMES` files, below their folder or alone."""
        return tuple(islice(self._names(), MAX_NAMES))

    def _names(self) -> Iterable[str]:
        for root in self._roots:
            if root.is_file():
                yield root.name
            else:
                files = (path for path in sorted(root.rglob("*")) if self._is_inside(path, root))
                yield from (path.relative_to(root).as_posix() for path in files)

    def find(self, names: Sequence[str]) -> list[Path]:
        """Return the paths of the files with these names.

        Raises:
            ActionFailed: the user does not allow one of them; the message lists those allowed.
        """
        return [self._find(name) for name in names]

    def _find(self, name: str) -> Path:
        for root in self._roots:
            path = root if root.is_file() and name == root.name else root / name
            if path == root and root.is_file() or self._is_inside(path, root):
                return path.resolve()
        known = " | ".join(self.names())
        allowed = f"the user allows: {known}" if known else "the user allows none"
        raise ActionFailed(f"{name!r} cannot be uploaded; {allowed}")

    @staticmethod
    def _is_inside(path: Path, root: Path) -> bool:
        real = path.resolve()
        return real.is_file() and real.is_relative_to(root)
