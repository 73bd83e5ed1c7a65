"""The door to the disk: files for their owner alone, written whole, and errors that say what to do.

What a run writes is as private as the pages it saw: folders are made with mode 0700 and files with
0600, whatever the umask is.
"""

import contextlib
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class Unwritable(ValueError):
    """A place where nothing can be written; found before any work began. The message says why."""


class NotWritten(RuntimeError):
    """Something was lost because it could not be written; the message says what, why, and what to
    do. What had been written before is whole."""


_LONE = re.compile("[\ud800-\udfff]")


def json_line(row: Mapping[str, Any]) -> bytes:
    """`row` as a line of JSON in UTF-8; half of a surrogate pair, which is no text, as U+FFFD."""
    return _LONE.sub("\ufffd", json.dumps(row, ensure_ascii=False)).encode() + b"\n"


def make_folder(path: Path) -> None:
    """Make the folder and those above it, as far as they are missing, for their owner alone.

    Raises:
        NotWritten: it cannot be made.
    """
    with _told(path, "the folder cannot be made"):
        missing = []
        while not path.is_dir():
            missing.append(path)
            path = path.parent
        for folder in reversed(missing):
            folder.mkdir(mode=0o700, exist_ok=True)
            folder.chmod(0o700)


def require_folder(path: Path, option: str = "--out") -> None:
    """Make the folder and see that files can be made in it.

    Raises:
        Unwritable: they cannot; the message names `option`.
    """
    try:
        make_folder(path)
        _try_folder(path)
    except (NotWritten, OSError) as error:
        raise Unwritable(f"{option} {path}: {_why(error)}; give a folder to write in") from None


def require_file(path: Path, option: str = "--out") -> None:
    """See that the file can be written; neither it nor a folder is made where there is none.

    Raises:
        Unwritable: it cannot; the message names `option`.
    """
    try:
        if path.exists() and not path.is_file():
            raise Unwritable(f"{option} {path}: is no plain file; give a file to write")
        if path.exists():
            with path.open("ab"):
                return
        folder = path.parent
        while not folder.exists():
            folder = folder.parent
        _try_folder(folder)
    except OSError as error:
        raise Unwritable(f"{option} {path}: {_why(error)}; give a file to write") from None


def _try_folder(path: Path) -> None:
    with tempfile.TemporaryFile(dir=path) as file:
        file.write(b"\0")


class AppendedFile:
    """A file that grows by whole pieces, each on the disk when `append` returns.

    Args:
        is_new: it must not be there yet.
        is_empty: what it holds is dropped.

    Raises:
        FileExistsError: it is there and must not be.
        NotWritten: it cannot be opened.
    """

    def __init__(self, path: Path, *, is_new: bool = False, is_empty: bool = False) -> None:
        self.path = path
        make_folder(path.parent)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with _told(path, "it cannot be opened", FileExistsError):
            self._handle = os.open(path, flags | (os.O_EXCL if is_new else 0), 0o600)
            _make_private(self._handle)
            if is_empty:
                self.cut(0)

    def fileno(self) -> int:
        return self._handle

    def cut(self, size: int) -> None:
        """Drop everything after the first `size` bytes. Does nothing where a file has no end."""
        if stat.S_ISREG(os.fstat(self._handle).st_mode):
            os.ftruncate(self._handle, size)

    def append(self, content: bytes) -> None:
        """Write `content` whole or not at all. Raises NotWritten."""
        size = os.fstat(self._handle).st_size
        try:
            _write(self._handle, content)
        except OSError as error:
            with contextlib.suppress(OSError):
                self.cut(size)
            raise _lost(self.path, error) from error

    def close(self) -> None:
        """Close it; safe to call twice."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def append_line(path: Path, line: bytes, *, fresh: bool = False) -> None:
    """Add a line to the file, behind its last whole one; `fresh` drops what it holds.

    Raises:
        NotWritten: the line was lost; the lines before it are whole.
    """
    file = AppendedFile(path, is_empty=fresh)
    try:
        if not fresh and stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            # a killed run may have left the beginning of a line
            file.cut(path.read_bytes().rfind(b"\n") + 1)
        file.append(line)
    finally:
        file.close()


def write_whole(path: Path, content: bytes | str) -> None:
    """Put `content` in the place of what stands at `path`, once it is whole and on the disk.

    Raises:
        NotWritten: it could not be; what stood there still does.
    """
    if isinstance(content, str):
        content = content.encode(errors="replace")
    part = None
    try:
        handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        try:
            _make_private(handle)
            _write(handle, content)
        finally:
            os.close(handle)
        os.replace(part, path)
    except OSError as error:
        if part is not None:
            Path(part).unlink(missing_ok=True)
        raise _lost(path, error) from error


def _write(handle: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(handle, view) :]
    if stat.S_ISREG(os.fstat(handle).st_mode):
        os.fsync(handle)


def _make_private(handle: int) -> None:
    if stat.S_ISREG(os.fstat(handle).st_mode):
        os.fchmod(handle, 0o600)


@contextlib.contextmanager
def _told(path: Path, what: str, *others: type[OSError]) -> Iterator[None]:
    try:
        yield
    except others:
        raise
    except OSError as error:
        raise NotWritten(f"{path}: {what}: {_why(error)}") from error


def _lost(path: Path, error: OSError) -> NotWritten:
    return NotWritten(
        f"{path}: could not be written: {_why(error)}; what was written before is whole; make room "
        "or give another place, and start the same command again"
    )


def _why(error: BaseException) -> str:
    cause = error.__cause__ if isinstance(error, NotWritten) else error
    return cause.strerror or str(cause) if isinstance(cause, OSError) else str(error)
