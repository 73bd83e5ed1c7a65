"""Where sessions lie that clients save by name: no name and no link leads out of their folder."""

import os
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


class FilesFull(ValueError):
    """The files of clients would take more bytes than they may."""


class NamedFolder:
    """A folder for saved sessions. A client chooses each name, which is the name of a subfolder.

    Args:
        folder: holds them; it is made when the first one is saved.
        in_folders: whether names may have folders before them, as in `runs/7/turn-3`.
        by_owner: whether each owner has a folder.
        most_bytes: bytes that all files in it may have; None: any number.
    """

    def __init__(
        self, folder: Path, *, in_folders: bool, by_owner: bool, most_bytes: int | None = None
    ) -> None:
        self._folder, self._in_folders, self._by_owner = folder, in_folders, by_owner
        self.most_bytes = most_bytes

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

    def room(self, place: Path) -> int | None:
        """Return the bytes that are left for a session saved at a place, in which it replaces what
        is there; None if any number is."""
        if self.most_bytes is None:
            return None
        return self.most_bytes - _nbytes_in(self._folder) + _nbytes_in(place)

    def require_room(self, place: Path, num_bytes: int) -> None:
        """Raise FilesFull if a session with so many bytes, or more, does not fit at a place."""
        room = self.room(place)
        if room is not None and num_bytes > room:
            raise self.full(room)

    def full(self, room: int) -> FilesFull:
        """Return the error of a session that does not fit into the bytes that are left."""
        return FilesFull(
            f"the files of clients may have {self.most_bytes} bytes, and this session needs more "
            f"than the {max(0, room)} that are left for it; delete files, or let the server have a "
            "larger --client-quota"
        )

    def remove_empty(self, place: Path) -> None:
        """Remove a folder and those around it that are empty, as where nothing could be saved."""
        while place != self._folder and place.is_relative_to(self._folder):
            try:
                place.rmdir()
            except OSError:  # it holds something, or was never made
                if place.exists():
                    return
            place = place.parent


def is_file(path: Path) -> bool:
    """Return whether a path is a file, and no link to one."""
    kind = _kind(path)
    return kind is not None and stat.S_ISREG(kind)


def _nbytes_in(folder: Path) -> int:
    """Return the bytes of all files in a folder and its folders; some may leave just now."""
    return sum(_nbytes(Path(at) / name) for at, _, names in os.walk(folder) for name in names)


def _nbytes(path: Path) -> int:
    """Return the bytes of a file; 0 of a link, or of what has just left."""
    try:
        found = path.lstat()
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _kind(path: Path) -> int | None:
    """Return the mode of what is at a path, a link itself; None if there is nothing."""
    try:
        return path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
