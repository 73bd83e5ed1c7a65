"""The files that a user allows an agent to upload."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from agentkv_env.errors import ActionFailed
from agentkv_env.sanitize import neutralize, quote

MAX_NAMES = 40
"""Maximum number of names shown to the model."""


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
        return tuple(self._shown())

    def find(self, names: Sequence[str]) -> list[Path]:
        """Return the paths of the files with these names.

        Raises:
            ActionFailed: the user does not allow one of them; the message lists those allowed.
        """
        return [self._find(name) for name in names]

    def _find(self, name: str) -> Path:
        shown = self._shown()
        below = [shown[name]] if name in shown else [_folder(root) / name for root in self._roots]
        # A model copies a name as it is shown.
        alike = [path for each, path in shown.items() if neutralize(each) == neutralize(name)]
        for path in (*below, *alike):
            if any(_is_allowed(path, root) for root in self._roots):
                return path.resolve()
        known = " | ".join(map(quote, shown))
        allowed = f"the user allows: {known}" if known else "the user allows none"
        raise ActionFailed(f"{name[:200]!r} cannot be uploaded; {allowed}")

    def _shown(self) -> dict[str, Path]:
        """Return the first `MAX_NAMES` files by name; a second of a name has its folder before."""
        shown: dict[str, Path] = {}
        for root in self._roots:
            folder = _folder(root)
            for path in _files(root):
                if len(shown) == MAX_NAMES:
                    return shown
                name = path.relative_to(folder).as_posix()
                shown.setdefault(f"{folder.name}/{name}" if name in shown else name, path)
        return shown


def _folder(root: Path) -> Path:
    return root if root.is_dir() else root.parent


def _files(root: Path) -> Iterator[Path]:
    """Yield the allowed files of a root one by one: a folder may have any number."""
    if not root.is_dir():
        yield root
    for folder, folders, files in os.walk(root):
        folders.sort()
        paths = (Path(folder, name) for name in sorted(files))
        yield from (path for path in paths if _is_allowed(path, root))


def _is_allowed(path: Path, root: Path) -> bool:
    try:
        real = path.resolve()
        return real.is_file() and real.is_relative_to(root)
    except (
        OSError,
        RuntimeError,
        ValueError,
    ):  # no name of a file, or links in a circle
        return False
