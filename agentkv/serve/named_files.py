"""Where sessions lie that clients save by name: no name and no link leads out of their folder."""

import re
import stat
from pathlib import Path

from agentkv.models.saved import INDEX

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MOST_PARTS = 8
MOST_INDEX_BYTES = 64 * 2**20
"""Bytes of a file that says what a session holds, without its cache (our choice)."""


class NoSuchSession(ValueError):
    """A slot or a file holds no session of this owner."""


class NamedFolder:
    """A folder for saved sessions. A client chooses each name, which is the name of a subfolder.

    Args:
        folder: holds them; it is made when the first one is saved.
        in_folders: whether names may have folders before them, as in `runs/7/turn-3`.
        by_owner: whether each owner has a folder.
    """

    def __init__(self, folder: Path, *, in_folders: bool, by_owner: bool) -> None:
        self._folder, self._in_folders, self._by_owner = folder, in_folders, by_owner

    def path(self, owner: str, name: str) -> Path:
        """Return the folder that has a name; it may not be there.

        Raises:
            NoSuchSession: the name is none, or a link or a file stands in its way.
        """
        parts = name.split("/") if self._in_folders else [name]
        has_form = len(parts) <= _MOST_PARTS and all(map(_PART.fullmatch, parts))
        if not has_form or INDEX in parts:
            where = " and folders before it with slashes" if self._in_folders else ""
            raise NoSuchSession(
                f"{name[:200]!r} cannot name a saved session; a name has at most 128 letters, "
                f"digits, dots, hyphens and underscores, and begins with a letter or a digit{where}"
            )
        place = self._folder
        for part in [owner, *parts] if self._by_owner else parts:
            place = place / part
            kind = _kind(place)
            if kind is not None and not stat.S_ISDIR(kind):
                raise NoSuchSession(
                    f"{name!r} is not the name of a session: {part!r} is a file or a link"
                )
        return place

    def for_saving(self, owner: str, name: str) -> Path:
        """Return the folder that a session is saved to; raises as `path` does, and if something
        else is there."""
        place = self.path(owner, name)
        if place.exists() and not is_file(place / INDEX) and any(place.iterdir()):
            raise NoSuchSession(f"{name!r} is a folder with other files; give another name")
        return place

    def for_restoring(self, owner: str, name: str) -> Path:
        """Return the folder that holds a session; raises as `path` does, and if there is none."""
        place = self.path(owner, name)
        index = place / INDEX
        if not is_file(index):
            raise NoSuchSession(f"no session was saved as {name!r}")
        if index.stat().st_size > MOST_INDEX_BYTES:
            raise NoSuchSession(f"{name!r} is no session: {INDEX} is too large")
        return place


def is_file(path: Path) -> bool:
    """Return whether a path is a file, and no link to one."""
    kind = _kind(path)
    return kind is not None and stat.S_ISREG(kind)


def _kind(path: Path) -> int | None:
    """Return the mode of what is at a path, a link itself; None if there is nothing."""
    try:
        return path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
