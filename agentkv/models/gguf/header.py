"""Read what stands before the weights of a GGUF file, and check that the weights are there."""

import contextlib
import hashlib
import importlib
import math
import mmap
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO


class GgufError(ValueError):
    """A GGUF file that cannot be served; the message names the file and the reason."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where the values of one tensor are."""

    name: str
    shape: tuple[int, ...]
    """In the order of torch: the last dimension is contiguous."""
    format: Any
    """Its `gguf.GGMLQuantizationType`."""
    path: Path
    offset: int
    """Bytes from the beginning of the file."""
    nbytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata and tensors of a model in one GGUF file or in the parts of a split one."""

    path: Path
    """The file, or the first part."""
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]
    digest: str
    """Hex digits that change with the headers, sizes and times of the files."""

    @property
    def architecture(self) -> str:
        """What llama.cpp calls the family of the model."""
        return str(self.metadata["general.architecture"])

    @property
    def kinds_of_tensors(self) -> set[str]:
        """Names of tensors without the layer."""
        return {_IN_LAYER.sub("", name) for name in self.tensors}

    @property
    def num_layers(self) -> int:
        """Layers of the model, without those that predict further tokens."""
        return int(self.number("block_count") - self.number("nextn_predict_layers", 0))

    def has_part(self, name: str) -> bool:
        """Return whether there is a tensor or a value of that name."""
        return name in self.tensors or name in self.metadata

    @contextlib.contextmanager
    def refusing(self, verdict: str) -> Iterator[None]:
        """Turn any error of the block into a GgufError: libraries raise all kinds of them for
        values that do not fit."""
        try:
            yield
        except GgufError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            raise GgufError(f"{self.path} {verdict}: {reason}") from error

    def number(self, key: str, default: Any = None) -> Any:
        """Return a value of the architecture's own metadata, such as `block_count`.

        Raises:
            GgufError: the file has no such value, and there is no default.
        """
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        if value is None:
            raise GgufError(f"{self.path}: the metadata has no {self.architecture}.{key}")
        return value


_SCALARS = dict(enumerate(("B", "b", "H", "h", "I", "i", "f", "?", None, None, "Q", "q", "d")))
"""Format of each type of metadata that has a fixed size, as `struct` names it."""
_STRING, _ARRAY = 8, 9
_MOST_CHARACTERS = 256
"""Characters of a tensor's name beyond which a header is damaged (our choice; ggml has 64)."""
_MOST_DIMENSIONS = 4
_IN_LAYER = re.compile(r"^blk\.\d+\.")
_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


def gguf_package() -> Any:
    """Return the package `gguf`.

    Raises:
        GgufError: it is not installed.
    """
    try:
        return importlib.import_module("gguf")
    except ImportError:
        raise GgufError(
            "GGUF files need the package gguf, which is not installed; "
            "pip install 'agentkv-web[gguf]'"
        ) from None


def gguf_files(path: Path) -> list[Path]:
    """Return all parts of the GGUF file that `path` is, or is a part of."""
    found = _SPLIT.search(path.name)
    if not found:
        return [path]
    stem, count = path.name[: found.start()], int(found[2])
    return [path.with_name(f"{stem}-{i + 1:05}-of-{count:05}.gguf") for i in range(count)]


def read_header(path: Path) -> GgufHeader:
    """Read a GGUF file up to its weights; of a split file any part may be given.

    Raises:
        GgufError: a file is missing, truncated, or not GGUF, or its weights have an unknown format.
    """
    paths = gguf_files(path)
    missing = [str(each) for each in paths if not each.is_file()]
    if missing:
        whole = f"{path} is split into {len(paths)} files, and " if len(paths) > 1 else ""
        raise GgufError(f"{whole}{missing[0]} is missing")
    metadata: dict[str, Any] = {}
    tensors: dict[str, GgufTensor] = {}
    digest = hashlib.sha256()
    for each in reversed(paths):  # the first part has the metadata
        try:
            status = each.stat()
            with each.open("rb") as file, mapped(file) as content:
                end = _Reader(content, each).read_into(metadata, tensors)
                digest.update(content[:end])
        except OSError as error:
            raise GgufError(f"{each} cannot be read: {error.strerror}") from None
        digest.update(f"{status.st_size} {status.st_mtime_ns}".encode())
    if not isinstance(metadata.get("general.architecture"), str):
        raise GgufError(f"{path}: the metadata has no general.architecture")
    return GgufHeader(paths[0], metadata, tensors, digest.hexdigest()[:24])


@contextlib.contextmanager
def mapped(file: BinaryIO) -> Iterator[bytes | mmap.mmap]:
    """Map a file into memory; an empty one has nothing to map."""
    if file.seek(0, 2) == 0:
        yield b""
        return
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        yield content


class _Reader:
    """Reads one file. Every length is checked against the file's size before memory is taken."""

    def __init__(self, content: bytes | mmap.mmap, path: Path) -> None:
        self._content, self._path, self._place = content, path, 0
        self._size = len(content)

    def read_into(self, metadata: dict[str, Any], tensors: dict[str, GgufTensor]) -> int:
        """Add what the header says, and return where it ends."""
        if self._content[:4] != b"GGUF":
            raise GgufError(f"{self._path} is not a GGUF file: it does not begin with GGUF")
        self._place = 4
        version = self._scalar("I")
        if version not in (2, 3):
            raise GgufError(f"{self._path} has GGUF version {version}; 2 and 3 can be read")
        num_tensors, num_values = self._scalar("Q"), self._scalar("Q")
        for _ in range(num_values):
            key = self._string()
            metadata[key] = self._value(self._scalar("I"))
        found = [self._tensor() for _ in range(num_tensors)]
        end = self._place
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise GgufError(f"{self._path}: general.alignment is {alignment!r}")
        start = -(-end // alignment) * alignment
        for name, shape, kind, offset in found:
            form, nbytes = self._extent(name, shape, kind)
            if start + offset + nbytes > self._size:
                raise GgufError(
                    f"{self._path} is truncated: {name} ends at byte {start + offset + nbytes}, "
                    f"the file at {self._size}"
                )
            tensors[name] = GgufTensor(name, shape, form, self._path, start + offset, nbytes)
        return end

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name, count = self._string(), self._scalar("I")
        if len(name) > _MOST_CHARACTERS or not name.isprintable():
            raise GgufError(f"{self._path}: {name[:40]!r} is no name of a tensor")
        if count > _MOST_DIMENSIONS:
            raise GgufError(f"{self._path}: {name} has {count} dimensions")
        shape = tuple(self._scalar("Q") for _ in range(count))
        return name, shape[::-1], self._scalar("I"), self._scalar("Q")

    def _extent(self, name: str, shape: tuple[int, ...], kind: int) -> tuple[Any, int]:
        package = gguf_package()
        try:
            form = package.GGMLQuantizationType(kind)
            block, block_nbytes = package.GGML_QUANT_SIZES[form]
        except (ValueError, KeyError):
            raise GgufError(
                f"{self._path}: {name} has the quantization type {kind}, which is not known"
            ) from None
        if not shape or shape[-1] % block:
            raise GgufError(f"{self._path}: rows of {name} are no multiple of {block} values")
        return form, math.prod(shape) // block * block_nbytes

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            element, count = self._scalar("I"), self._scalar("Q")
            if element == _STRING:
                return self._strings(count)
            code = _SCALARS.get(element)
            if code is not None:
                return list(self._unpack(code, count))
            kind = element
        code = _SCALARS.get(kind)
        if code is None:
            raise GgufError(f"{self._path}: metadata of type {kind}, which is not known")
        return self._scalar(code)

    def _string(self) -> str:
        return self._strings(1)[0]

    def _strings(self, count: int) -> list[str]:
        # a vocabulary has a hundred thousand, so each takes as few calls as it can
        found, end = [], self._place
        for _ in range(count):
            start = end + 8
            end = start + int.from_bytes(self._content[end:start], "little")
            if end > self._size:
                raise self._truncated()
            found.append(self._content[start:end].decode("utf-8", "replace"))
        self._place = end
        return found

    def _scalar(self, code: str) -> Any:
        return self._unpack(code, 1)[0]

    def _unpack(self, code: str, count: int) -> tuple[Any, ...]:
        content = self._take(count * struct.calcsize(f"<{code}"))
        return struct.unpack(f"<{count}{code}", content)

    def _take(self, count: int) -> bytes:
        if count > self._size - self._place:
            raise self._truncated()
        start, self._place = self._place, self._place + count
        return self._content[start : self._place]

    def _truncated(self) -> GgufError:
        return GgufError(f"{self._path} is truncated: its header ends with the file")
