"""Tensors and text in one safetensors file, with a digest over all of it.

A file is written completely or not at all. Only its owner may read it: a cache holds in latent form
what was read on screen, so its file is as private as a transcript.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

FORMAT = "agentkv cache"
"""Value of "format" in the metadata."""
VERSION = "4"
"""Version of the file's contents; other versions are refused."""


class CacheFileError(ValueError):
    """A file that cannot be loaded, or a cache that cannot be saved; nothing has changed."""


class FileLimit(CacheFileError):
    """A file that might have more bytes than it may have; nothing was written."""


def write(
    path: str | os.PathLike[str],
    state: str,
    tensors: Mapping[str, Tensor],
    *,
    most_bytes: int | None = None,
) -> None:
    """Write a file and let it replace `path` once it is complete on disk.

    Args:
        state: text that describes the tensors.
        tensors: contiguous, on the CPU.
        most_bytes: bytes that the file may have; None: any number.

    Raises:
        FileLimit: the file might have more.
        OSError: the file could not be written; `path` is untouched, and no partial file is left.
    """
    target = os.path.abspath(os.fspath(path))
    folder = os.path.dirname(target)
    metadata = {"format": FORMAT, "version": VERSION, "state": state}
    if most_bytes is not None and (needed := _most_nbytes(metadata, tensors)) > most_bytes:
        raise FileLimit(f"the file would have up to {needed} bytes, and may have {most_bytes}")
    metadata["digest"] = _digest(state, tensors)
    # only its owner can open the temporary folder
    with tempfile.TemporaryDirectory(dir=folder, prefix=".agentkv-") as private:
        part = os.path.join(private, "part")
        try:
            save_file(dict(tensors), part, metadata)
        except SafetensorError as error:
            raise OSError(f"{target} could not be written: {error}") from error
        os.chmod(part, 0o600)
        with open(part, "r+b") as file:
            os.fsync(file.fileno())
        os.replace(part, target)
    _sync_folder(folder)


def _most_nbytes(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> int:
    """Return no fewer bytes than a file has, and few more: the format states the shape and the
    place of each tensor as text."""
    text = len(json.dumps(metadata, ensure_ascii=False).encode()) + 256  # the digest among it
    places = sum(len(name) + 128 + 20 * tensor.dim() for name, tensor in tensors.items())
    return text + places + sum(tensor.nbytes for tensor in tensors.values())


def _sync_folder(folder: str) -> None:
    """Make the new name survive a crash of the machine."""
    if not hasattr(os, "O_DIRECTORY"):
        return  # this system cannot open folders
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read(path: str | os.PathLike[str]) -> tuple[str, dict[str, Tensor]]:
    """Return the text and the tensors of a file that `write` wrote.

    The tensors are on the CPU and may be mapped from the file: do not write to them.

    Raises:
        CacheFileError: the file is another program's, of another version, cut short or altered.
        OSError: the file does not exist or may not be read.
    """
    with open(path, "rb"):
        pass  # raises the system's own error for a missing file
    try:
        with safe_open(os.fspath(path), framework="pt", device="cpu") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise CacheFileError(
            f"{path} is no complete safetensors file ({error}); it was cut short, damaged, or "
            "written by another program"
        ) from error
    if metadata.get("format") != FORMAT:
        raise CacheFileError(
            f"{path} was not written by agentkv: its format is {metadata.get('format')!r}, not "
            f"{FORMAT!r}"
        )
    if metadata.get("version") != VERSION:
        raise CacheFileError(
            f"{path} is of version {metadata.get('version')} and this agentkv reads version "
            f"{VERSION}; load it with the agentkv that saved it"
        )
    state = metadata.get("state", "")
    if metadata.keys() != {"format", "version", "state", "digest"} or (
        metadata["digest"] != _digest(state, tensors)
    ):
        raise CacheFileError(
            f"{path} was altered since it was saved: its digest does not match. Restore it from a "
            "backup, or start a new cache"
        )
    return state, tensors


def _digest(state: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.blake2b(state.encode(), digest_size=32)
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
