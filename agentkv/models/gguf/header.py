"""The header of a GGUF file: its metadata, and where its tensors lie.

Reads no weights. Source: the format's description in the repository of ggml (docs/gguf.md).
"""

import hashlib
import mmap
import re
import struct
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from agentkv.models.refused import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
_ALIGNMENT = 32  # bytes, unless the file says otherwise
_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_SCALARS = {
    **{0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?"},
    **{10: "Q", 11: "q", 12: "d"},
}
"""Struct codes of the types of values, by their number in the format."""
_STRING, _ARRAY = 8, 9
_MOST_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where a tensor lies, and how it is stored."""

    name: str
    shape: tuple[int, ...]
    """As numpy and torch order it: the last dimension is contiguous."""
    kind: int
    """Number of the quantization, as `gguf.GGMLQuantizationType` has it."""
    path: Path
    start: int
    """Bytes from the beginning of the file."""
    num_values: int
    num_bytes: int


@dataclass(frozen=True)
class Header:
    """What a GGUF file, or all parts of a split one, say before their weights."""

    paths: tuple[Path, ...]
    """The files, in order."""
    stamps: tuple[tuple[int, int], ...]
    """Their sizes, and when they were changed."""
    metadata: dict[str, Any]
    """Of the first file: numbers, booleans, strings, and lists of them."""
    tensors: tuple[TensorPlace, ...]

    @property
    def name(self) -> str:
        """The first file's name, for messages."""
        return self.paths[0].name

    @property
    def architecture(self) -> str:
        """llama.cpp's name of the model family."""
        return str(self.metadata.get("general.architecture", ""))

    @cached_property
    def num_values(self) -> int:
        """Values of all tensors."""
        return sum(tensor.num_values for tensor in self.tensors)

    def of_architecture(self, key: str) -> Any:
        """Return the value of a key that begins with the architecture's name, or None."""
        return self.metadata.get(f"{self.architecture}.{key}")

    @cached_property
    def digest(self) -> str:
        """16 hex digits that tell files and their versions apart, without reading weights."""
        paths = [str(path.resolve()) for path in self.paths]
        told = repr((paths, self.stamps, self.metadata, self.tensors))
        return hashlib.sha256(told.encode("utf-8", "surrogateescape")).hexdigest()[:16]


class _Cut(Exception):
    """The file ends within its header."""


class _Reader:
    """Reads values from the beginning of a mapped file."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self.place = data, 0

    def bytes(self, count: int) -> bytes:
        """Return the next bytes. Raises _Cut."""
        if count > len(self._data) - self.place:
            raise _Cut
        self.place += count
        return self._data[self.place - count : self.place]

    def number(self, code: str) -> Any:
        """Return the next number, by its struct code."""
        return struct.unpack(f"<{code}", self.bytes(struct.calcsize(f"<{code}")))[0]

    def string(self) -> str:
        """Return the next string. Bytes that are no UTF-8 are kept as surrogates."""
        return self.bytes(self.number("Q")).decode("utf-8", "surrogateescape")

    def value(self, kind: int, depth: int = 0) -> Any:
        """Return the next value of a type, by the type's number. Raises ValueError."""
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY or depth:
            raise ValueError(f"a value of type {kind}")
        of, count = self.number("I"), self.number("Q")
        if of in _SCALARS:
            size = struct.calcsize(f"<{_SCALARS[of]}")
            packed = self.bytes(size * count)
            return list(struct.unpack(f"<{count}{_SCALARS[of]}", packed))
        return [self.value(of, depth + 1) for _ in range(count)]


def read_header(path: Path) -> Header:
    """Read the header of a GGUF file, and those of its other parts if it is split.

    Raises:
        ModelError: the file or one of its parts is missing, cut short, of another format, or holds
            a quantization that is not known; or the package `gguf` is not installed.
    """
    paths = _parts(path)
    try:
        stamps = tuple((each.stat().st_size, each.stat().st_mtime_ns) for each in paths)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    return _read_parts(paths, stamps)


@lru_cache(maxsize=4)
def _read_parts(paths: tuple[Path, ...], stamps: tuple[tuple[int, int], ...]) -> Header:
    """Read the header of a model: once, as long as the files keep their sizes and times."""
    metadata, tensors = _read(paths[0])
    count = metadata.get("split.count", 1)
    if count > 1 and len(paths) != count:
        raise ModelError(
            f"{paths[0].name} is one of {count} parts, and its name should end in "
            f"-00001-of-{count:05}.gguf; keep the names that the parts came with"
        )
    for further in paths[1:]:
        tensors += _read(further)[1]
    if not tensors:
        raise ModelError(f"{paths[0].name} holds no weights")
    return Header(paths, stamps, metadata, tuple(tensors))


def _parts(path: Path) -> tuple[Path, ...]:
    """Return all files of a model, given one. Raises ModelError if some are missing."""
    found = _SPLIT.search(path.name)
    if found is None:
        return (path,)
    count, stem = int(found[2]), path.name[: found.start()]
    paths = tuple(path.with_name(f"{stem}-{n:05}-of-{count:05}.gguf") for n in range(1, count + 1))
    missing = [part.name for part in paths if not part.is_file()]
    if missing or not paths:
        some = ", ".join(missing[:3]) or "all of them"
        raise ModelError(f"{path.name} is one of {count} parts; missing beside it: {some}")
    return paths


def _read(path: Path) -> tuple[dict[str, Any], list[TensorPlace]]:
    try:
        with path.open("rb") as file:
            if not (size := path.stat().st_size):
                raise ModelError(f"{path.name} is empty")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(path, _Reader(data), size)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    except _Cut:
        raise ModelError(
            f"{path.name} is cut short: it ends within its header; download it again"
        ) from None
    except (ValueError, OverflowError, MemoryError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{path.name} is damaged: its header has {error}") from error


def _parse(path: Path, reader: _Reader, size: int) -> tuple[dict[str, Any], list[TensorPlace]]:
    if (magic := reader.bytes(4)) != MAGIC:
        raise ModelError(f"{path.name} is no GGUF file: it begins with {magic!r}")
    if (version := reader.number("I")) not in VERSIONS:
        raise ModelError(
            f"{path.name} has version {version} of the format; agentkv reads "
            f"{' and '.join(map(str, VERSIONS))}, little-endian"
        )
    num_tensors, num_keys = reader.number("Q"), reader.number("Q")
    metadata: dict[str, Any] = {}
    for _ in range(num_keys):
        key = reader.string()
        metadata[key] = reader.value(reader.number("I"))
    described = []
    for _ in range(num_tensors):
        name, num_dimensions = reader.string(), reader.number("I")
        if num_dimensions > _MOST_DIMENSIONS:
            raise ValueError(f"a tensor of {num_dimensions} dimensions")
        shape = tuple(reader.number("Q") for _ in range(num_dimensions))
        described.append((name, shape[::-1], reader.number("I"), reader.number("Q")))
    alignment = metadata.get("general.alignment", _ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"an alignment of {alignment}")
    start = -(-reader.place // alignment) * alignment
    tensors = [_placed(path, start, *tensor) for tensor in described]
    end = max((tensor.start + tensor.num_bytes for tensor in tensors), default=0)
    if end > size:
        raise ModelError(
            f"{path.name} is cut short: {size} bytes of {end} are there; download it again"
        )
    return metadata, tensors


def _placed(
    path: Path, start: int, name: str, shape: tuple[int, ...], kind: int, offset: int
) -> TensorPlace:
    block, block_bytes = block_of(kind, path.name, name)
    num_values = 1
    for length in shape:
        num_values *= length
    if shape and shape[-1] % block:
        raise ValueError(
            f"rows of {shape[-1]} values in {name}, which blocks of {block} do not fit"
        )
    num_bytes = num_values // block * block_bytes
    return TensorPlace(name, shape, kind, path, start + offset, num_values, num_bytes)


def block_of(kind: int, file: str, tensor: str) -> tuple[int, int]:
    """Return how many values a block of a quantization has, and how many bytes.

    Raises:
        ModelError: the quantization is not known, or the package `gguf` is not installed.
    """
    try:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
    except ImportError as error:
        raise ModelError(
            f"{file} is a GGUF file, which needs a package: pip install 'agentkv-web[gguf]'"
        ) from error
    try:
        found = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    except (KeyError, ValueError):
        raise ModelError(
            f"{file}: {tensor} has the quantization number {kind}, which gguf does not know; "
            "update the package gguf, or take a file with another quantization"
        ) from None
    return int(found[0]), int(found[1])
