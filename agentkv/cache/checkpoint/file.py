"""Tensors and metadata in one safetensors file, with a digest over all of it.

A file is written completely or not at all, and only its owner may read it: a cache holds in latent
form what was read on screen, so its file is as private as a transcript.

Errors: CacheFileError (ValueError) for a file that cannot be used; OSError from the system.
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
"""Value of "format" in the metadata."""
VERSION = 2
"""Version of the file's contents; other versions are refused."""

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
"""Names that safetensors has for the dtypes that a cache stores."""

ITEM_SIZES: Mapping[str, int] = MappingProxyType({kind: d.itemsize for d, kind in KINDS.items()})
NO_DIGEST = "0" * 64


class CacheFileError(ValueError):
    """A file that cannot be loaded, or a cache that cannot be saved; nothing has changed."""


@dataclass(frozen=True, slots=True)
class PendingTensor:
    """A tensor to be written, whose shape is known before it is made."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    make: Callable[[], Tensor]

    @property
    def num_bytes(self) -> int:
        return self.dtype.itemsize * torch.Size(self.shape).numel()


def write(
    path: str | os.PathLike[str], metadata: Mapping[str, str], tensors: Iterable[PendingTensor]
) -> None:
    """Write a file and let it replace `path` once it is complete on disk.

    Tensors are made and written one at a time.

    Raises:
        OSError: the file could not be written; `path` is untouched, and no partial file is left.
    """
    target = os.path.abspath(os.fspath(path))
    folder = os.path.dirname(target)
    # mkstemp grants access to the owner alone
    handle, part = tempfile.mkstemp(dir=folder, prefix=".agentkv-", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            _write(file, metadata, sorted(tensors, key=lambda e: _place(e.dtype.itemsize, e.name)))
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    except BaseException:
        os.unlink(part)
        raise
    _sync_folder(folder)


def _write(file: BinaryIO, metadata: Mapping[str, str], tensors: Sequence[PendingTensor]) -> None:
    words = {**metadata, "format": MARK, "version": str(VERSION)}
    header = _header(words, NO_DIGEST, tensors)
    file.write(header)
    digest = _begin_digest(words)
    for tensor in tensors:
        data = _bytes(tensor.make())
        assert data.nbytes == tensor.num_bytes, f"{tensor.name} has {data.nbytes} bytes"
        _add(digest, tensor.name, KINDS[tensor.dtype], tensor.shape, data)
        file.write(data)
    final = _header(words, digest.hexdigest(), tensors)
    assert len(final) == len(header)
    file.seek(0)
    file.write(final)


def _header(words: Mapping[str, str], digest: str, tensors: Sequence[PendingTensor]) -> bytes:
    table: dict[str, Any] = {"__metadata__": {**words, "digest": digest}}
    end = 0
    for tensor in tensors:
        start, end = end, end + tensor.num_bytes
        kind = KINDS[tensor.dtype]
        table[tensor.name] = {"dtype": kind, "shape": tensor.shape, "data_offsets": [start, end]}
    text = json.dumps(table, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)  # aligns every number to its size
    return len(text).to_bytes(8, "little") + text


def _sync_folder(folder: str) -> None:
    """Make the new name survive a crash of the machine."""
    if not hasattr(os, "O_DIRECTORY"):
        return  # this system cannot open folders
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class SavedFile:
    """A file of ours, opened and verified on entering the context.

    Raises:
        CacheFileError: the file is another program's, of another version, cut short or altered.
        OSError: the file does not exist or may not be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        with open(self.path, "rb"):
            pass  # raises the system's own error for a missing file
        self._file: Any = None
        self.metadata: dict[str, str] = {}
        self.shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
        """By name: the dtype in safetensors' terms, and the shape."""

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
                f"{self.path} is no complete safetensors file ({error}); it was cut short, "
                "damaged, or written by another program"
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
        """Return a value of the metadata. Raises CacheFileError if it is missing."""
        if key not in self.metadata:
            raise CacheFileError(f"{self.path} has no {key} in its metadata; it cannot be used")
        return self.metadata[key]

    def tensor(self, name: str) -> Tensor:
        """Return a tensor on the CPU, which may be mapped from the file: do not write to it."""
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
                f"{self.path} was altered since it was saved: its digest does not match. Restore "
                "it from a backup, or start a new cache"
            )


def _place(item_size: int, name: str) -> tuple[int, str]:
    """Return the sort key of a tensor: the largest items first, so that each is aligned."""
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
