"""Tensors and a few words in one safetensors file: written whole or not at all, readable by its
owner alone, refused when anything in it has changed.

A cache holds in latent form what was read on screen, so its file is as private as a transcript.

Errors: CacheFileError (ValueError) for a file that cannot be used; OSError for what the system
says.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Any, BinaryIO, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

MARK = "agentkv cache"
"""What the metadata of our files says under "format"."""
VERSION = 1
"""Of the layout; a file of another version is refused."""

KINDS: Mapping[torch.dtype, str] = MappingProxyType(
    {
        torch.float64: "F64",
        torch.float32: "F32",
        torch.float16: "F16",
        torch.bfloat16: "BF16",
        torch.int32: "I32",
        torch.int8: "I8",
        torch.uint8: "U8",
    }
)
"""What safetensors calls the dtypes that a cache stores."""

ITEM_SIZES: Mapping[str, int] = MappingProxyType({kind: d.itemsize for d, kind in KINDS.items()})
NO_DIGEST = "0" * 64


class CacheFileError(ValueError):
    """A file that no cache can be loaded from, or a cache that no file can hold; nothing changed.

    The message says what was found, what was expected and what to do.
    """


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor to be written, of which the shape is known before it is made."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    make: Callable[[], Tensor]

    @property
    def num_bytes(self) -> int:
        return self.dtype.itemsize * torch.Size(self.shape).numel()


def write(
    path: str | os.PathLike[str], metadata: Mapping[str, str], entries: Iterable[Entry]
) -> None:
    """Put the file in the place of whatever stands at `path`, once it is whole and on the disk.

    Tensors are made and written one at a time.

    Raises:
        OSError: it could not be written; what stood there still does, and nothing else is left.
    """
    target = os.path.abspath(os.fspath(path))
    folder = os.path.dirname(target)
    # made for its owner alone from the first moment on
    handle, part = tempfile.mkstemp(dir=folder, prefix=".agentkv-", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            _write(file, metadata, sorted(entries, key=lambda e: _place(e.dtype.itemsize, e.name)))
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    except BaseException:
        os.unlink(part)
        raise
    _sync_folder(folder)


def _write(file: BinaryIO, metadata: Mapping[str, str], entries: Sequence[Entry]) -> None:
    words = {**metadata, "format": MARK, "version": str(VERSION)}
    header = _header(words, NO_DIGEST, entries)
    file.write(header)
    digest = _begin_digest(words)
    for entry in entries:
        data = _bytes(entry.make())
        assert data.nbytes == entry.num_bytes, f"{entry.name} has {data.nbytes} bytes"
        _add(digest, entry.name, KINDS[entry.dtype], entry.shape, data)
        file.write(data)
    final = _header(words, digest.hexdigest(), entries)
    assert len(final) == len(header)
    file.seek(0)
    file.write(final)


def _header(words: Mapping[str, str], digest: str, entries: Sequence[Entry]) -> bytes:
    table: dict[str, Any] = {"__metadata__": {**words, "digest": digest}}
    end = 0
    for entry in entries:
        start, end = end, end + entry.num_bytes
        kind = KINDS[entry.dtype]
        table[entry.name] = {"dtype": kind, "shape": entry.shape, "data_offsets": [start, end]}
    text = json.dumps(table, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)  # so that every number stands at a multiple of its size
    return len(text).to_bytes(8, "little") + text


def _sync_folder(folder: str) -> None:
    """See to it that the new name outlives a crash of the machine."""
    if not hasattr(os, "O_DIRECTORY"):
        return  # where a folder cannot be opened, there is nothing to be done
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class SavedFile:
    """A file of ours, open and found whole: to be used in a `with`.

    Raises:
        CacheFileError: another program's, of another version, cut short or altered.
        OSError: it is not there or may not be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        with open(self.path, "rb"):
            pass  # a file that is not there has an error of its own, which says so
        self._file: Any = None
        self.metadata: dict[str, str] = {}
        self.shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
        """By name: the dtype as safetensors calls it, and the shape."""

    def __enter__(self) -> Self:
        try:
            opened: Any = safe_open(self.path, framework="pt", device="cpu")
            self._file = opened.__enter__()
            self.metadata = dict(self._file.metadata() or {})
            for name in self._file.keys():  # noqa: SIM118
                piece = self._file.get_slice(name)
                self.shapes[name] = (piece.get_dtype(), tuple(piece.get_shape()))
        except (SafetensorError, OSError, RuntimeError, ValueError) as error:
            self.__exit__(None, None, None)
            raise CacheFileError(
                f"{self.path} is no whole safetensors file ({error}); it was cut short or damaged, "
                "or something else wrote it"
            ) from error
        try:
            self._check_mark()
            self._check_digest()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.__exit__(kind, error, trace)
            self._file = None

    def word(self, key: str) -> str:
        """What the metadata says under `key`. Raises CacheFileError."""
        if key not in self.metadata:
            raise CacheFileError(f"{self.path} says nothing of its {key}; it cannot be used")
        return self.metadata[key]

    def tensor(self, name: str) -> Tensor:
        """On the CPU; it may be part of the file itself, and is not to be written to."""
        found: Tensor = self._file.get_tensor(name)
        return found

    def _check_mark(self) -> None:
        if self.metadata.get("format") != MARK:
            raise CacheFileError(
                f"{self.path} was not written by agentkv: its format is "
                f"{self.metadata.get('format')!r}, not {MARK!r}"
            )
        version = self.word("version")
        if version != str(VERSION):
            raise CacheFileError(
                f"{self.path} is of version {version} and this agentkv reads version {VERSION}; "
                "load it with the agentkv that saved it"
            )

    def _check_digest(self) -> None:
        words = dict(self.metadata)
        expected = words.pop("digest", None)
        digest = _begin_digest(words)
        unknown = sorted(name for name, (kind, _) in self.shapes.items() if kind not in ITEM_SIZES)
        if unknown:
            kind = self.shapes[unknown[0]][0]
            raise CacheFileError(f"{self.path}: {unknown[0]} is of {kind}, which no cache stores")
        for name in sorted(self.shapes, key=lambda n: _place(ITEM_SIZES[self.shapes[n][0]], n)):
            kind, shape = self.shapes[name]
            _add(digest, name, kind, shape, _bytes(self.tensor(name)))
        if digest.hexdigest() != expected:
            raise CacheFileError(
                f"{self.path} was altered since it was saved: its digest is not the one it names. "
                "Take a copy of it, if there is one"
            )


def _place(item_size: int, name: str) -> tuple[int, str]:
    """The order of tensors: the largest items first, so that none stands askew."""
    return -item_size, name


def _begin_digest(words: Mapping[str, str]) -> Any:
    text = json.dumps(dict(words), sort_keys=True).encode("ascii")
    return hashlib.blake2b(text, digest_size=len(NO_DIGEST) // 2)


def _add(digest: Any, name: str, kind: str, shape: tuple[int, ...], data: memoryview) -> None:
    digest.update(json.dumps([name, kind, shape]).encode("ascii"))
    digest.update(data)


def _bytes(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
    return flat.numpy().data
