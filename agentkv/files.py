"""Private files, written atomically, with errors that name the path, the cause and a remedy.

Files of a run are as private as the pages that the agent saw: folders get mode 0700 and files 0600,
whatever the umask.
"""

import contextlib
import errno
import json
import lzma
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class OutputPathError(ValueError):
    """An output path that cannot be written to, found before any work began."""


class PrivateFileError(ValueError):
    """A file with a secret that cannot be read, or that others may read as well."""


class WriteError(RuntimeError):
    """A write that failed; everything written earlier is intact.

    The message names the path and the cause and says what to do.
    """


MOST_BYTES = 1 << 30
"""Limit of the decompressed content of a file (our choice)."""

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def json_line(row: Mapping[str, Any]) -> bytes:
    """Return `row` as a line of JSON in UTF-8, with U+FFFD for each lone surrogate."""
    return _LONE_SURROGATE.sub("\ufffd", json.dumps(row, ensure_ascii=False)).encode() + b"\n"


def make_folder(path: Path) -> None:
    """Create the folder and its missing parents, all with mode 0700.

    Raises:
        WriteError: a folder cannot be created.
    """
    with _as_write_error(path, "the folder cannot be created"):
        missing = []
        while not path.is_dir():
            missing.append(path)
            path = path.parent
        for folder in reversed(missing):
            folder.mkdir(mode=0o700, exist_ok=True)
            folder.chmod(0o700)


def require_folder(path: Path, option: str = "--out") -> None:
    """Create the folder if it is missing, and check that files can be created in it.

    Raises:
        OutputPathError: they cannot; the message names `option`.
    """
    try:
        make_folder(path)
        _try_folder(path)
    except (WriteError, OSError) as error:
        raise OutputPathError(
            f"{option} {path}: {_reason(error)}; give a folder that can be written to"
        ) from None


def require_file(path: Path, option: str = "--out") -> None:
    """Check that the file can be written. Creates neither the file nor a folder.

    Raises:
        OutputPathError: it cannot; the message names `option`.
    """
    try:
        if path.exists() and not path.is_file():
            raise OutputPathError(f"{option} {path}: not a regular file; give a file to write")
        if path.exists():
            with path.open("ab"):
                return
        folder = path.parent
        while not folder.exists():
            folder = folder.parent
        _try_folder(folder)
    except OSError as error:
        raise OutputPathError(
            f"{option} {path}: {_reason(error)}; give a file that can be written"
        ) from None


def _try_folder(path: Path) -> None:
    with tempfile.TemporaryFile(dir=path) as file:
        file.write(b"\0")


def read_private(path: Path, *, most_bytes: int) -> str:
    """Read a small text file that holds a secret.

    Raises:
        PrivateFileError: the file cannot be read, belongs to somebody else, gives others a right,
            or is longer than `most_bytes`. The message does not quote the file.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise PrivateFileError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise PrivateFileError(f"{path}: not a regular file; give a text file")
        if status.st_uid != os.geteuid():
            raise PrivateFileError(f"{path}: belongs to another user; give a file of your own")
        if status.st_mode & 0o077:
            mode = stat.S_IMODE(status.st_mode)
            raise PrivateFileError(
                f"{path}: others have rights to it (mode {mode:04o}); run chmod 600 {path}"
            )
        with os.fdopen(handle, "rb", closefd=False) as file:
            content = file.read(most_bytes + 1)
    finally:
        os.close(handle)
    if len(content) > most_bytes:
        raise PrivateFileError(f"{path}: is longer than {most_bytes} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise PrivateFileError(f"{path}: is not UTF-8 text") from None


def stored(path: Path) -> Path:
    """Return `path`, or its compressed form `path`.xz if only that exists, as for kept results."""
    compressed = path.with_name(f"{path.name}.xz")
    return compressed if not path.exists() and compressed.is_file() else path


def read_stored(path: Path) -> bytes:
    """Return the content of `path`, or of `path`.xz if only that exists.

    Raises:
        OSError: the file cannot be read or decompressed, or has more than `MOST_BYTES`.
    """
    found = stored(path)
    if found == path:
        return path.read_bytes()
    try:
        with lzma.open(found) as file:
            content = file.read(MOST_BYTES + 1)
    except (lzma.LZMAError, EOFError):
        raise OSError(errno.EINVAL, "not a complete xz file") from None
    if len(content) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"longer than {MOST_BYTES} bytes")
    return content


class AppendedFile:
    """An append-only file; each `append` is written in full and synced to the disk, or not at all.

    Creates missing folders.

    Args:
        must_be_new: fail if the file exists.
        truncate: drop the file's content.

    Raises:
        FileExistsError: the file exists and `must_be_new` is set.
        WriteError: the file cannot be opened.
    """

    def __init__(self, path: Path, *, must_be_new: bool = False, truncate: bool = False) -> None:
        self.path = path
        make_folder(path.parent)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with _as_write_error(path, "the file cannot be opened", FileExistsError):
            self._handle = os.open(path, flags | (os.O_EXCL if must_be_new else 0), 0o600)
            _make_private(self._handle)
            if truncate:
                self.truncate(0)

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._handle

    def truncate(self, size: int) -> None:
        """Drop everything after the first `size` bytes. Does nothing for pipes and devices."""
        if stat.S_ISREG(os.fstat(self._handle).st_mode):
            os.ftruncate(self._handle, size)

    def append(self, content: bytes) -> None:
        """Append `content` in full or not at all.

        Raises:
            WriteError: it could not be written; the earlier content is intact.
        """
        size = os.fstat(self._handle).st_size
        try:
            _write(self._handle, content)
        except OSError as error:
            with contextlib.suppress(OSError):
                self.truncate(size)
            raise _write_error(self.path, error) from error

    def close(self) -> None:
        """Close the file; safe to call twice."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def append_line(path: Path, line: bytes, *, fresh: bool = False) -> None:
    """Append a line after the file's last complete line, dropping a partial line at its end.

    Args:
        line: the line with its line break.
        fresh: drop the file's content first.

    Raises:
        WriteError: the line could not be written; all earlier lines are intact.
    """
    file = AppendedFile(path, truncate=fresh)
    try:
        if not fresh and stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            # A run that was killed may have left a partial line.
            file.truncate(path.read_bytes().rfind(b"\n") + 1)
        file.append(line)
    finally:
        file.close()


def write_atomic(path: Path, content: bytes | str) -> None:
    """Replace the file at `path` with `content`, once all of it is on the disk.

    Raises:
        WriteError: it could not be written; the old file is intact.
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
        raise _write_error(path, error) from error


def _write(handle: int, content: bytes) -> None:
    """Write all of `content` and sync it to the disk."""
    view = memoryview(content)
    while view:
        view = view[os.write(handle, view) :]
    if stat.S_ISREG(os.fstat(handle).st_mode):
        os.fsync(handle)


def _make_private(handle: int) -> None:
    if stat.S_ISREG(os.fstat(handle).st_mode):
        os.fchmod(handle, 0o600)


@contextlib.contextmanager
def _as_write_error(path: Path, problem: str, *unchanged: type[OSError]) -> Iterator[None]:
    """Raise an OSError as a `WriteError` that names `path`, except the `unchanged` types."""
    try:
        yield
    except unchanged:
        raise
    except OSError as error:
        raise WriteError(f"{path}: {problem}: {_reason(error)}") from error


def _write_error(path: Path, error: OSError) -> WriteError:
    return WriteError(
        f"{path}: could not be written: {_reason(error)}; what was written before is intact; free "
        "some space or give another place, then run the same command again"
    )


def _reason(error: BaseException) -> str:
    cause = error.__cause__ if isinstance(error, WriteError) else error
    return cause.strerror or str(cause) if isinstance(cause, OSError) else str(error)
