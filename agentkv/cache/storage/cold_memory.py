"""Where the entries of a cold tier are: in memory, or in files of a folder."""

import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor


class ColdMemoryError(ValueError):
    """A cold tier that cannot be made or cannot grow; the message says what is possible."""


@dataclass(frozen=True, slots=True)
class ColdMemory:
    """Where a cold tier is, and how large it may become.

    In a folder, every tensor is a mapped file. It loses its name as soon as it is open, so that
    nobody else can change or cut it, and its space returns with the tensor, however the process
    ends.
    """

    folder: Path | None = None
    """Folder of the files; None: memory."""
    limit: int | None = None
    """Most bytes of the cold tier; None: no limit."""

    def require_usable(self) -> None:
        """Check that the folder takes files.

        Raises:
            ColdMemoryError: it does not, or the limit is no number of bytes.
        """
        if self.limit is not None and self.limit < 1:
            raise ColdMemoryError(f"the cold tier needs a byte or more; found {self.limit}")
        if self.folder is not None:
            self.empty((1,), torch.uint8, torch.device("cpu"))

    def empty(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return a tensor with any content.

        Raises:
            ColdMemoryError: the folder cannot take the file, for example because the disk is full.
        """
        num_bytes = math.prod(shape) * dtype.itemsize
        if self.folder is None or not num_bytes:
            return torch.empty(shape, dtype=dtype, device=device)
        try:
            file, name = tempfile.mkstemp(prefix="agentkv-cold-", dir=self.folder)
            try:
                os.posix_fallocate(file, 0, num_bytes)
                mapped = torch.from_file(name, shared=True, size=math.prod(shape), dtype=dtype)
            finally:
                os.unlink(name)
                os.close(file)
        except OSError as error:
            raise ColdMemoryError(
                f"the cold tier needs a file of {num_bytes} bytes in {self.folder}: "
                f"{error.strerror}; give another folder, or keep the cold tier in memory"
            ) from error
        return mapped.view(tuple(shape))


IN_MEMORY = ColdMemory()
